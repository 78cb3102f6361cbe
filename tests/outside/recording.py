"""A pytest plugin: leaves in a file what became of every test, and gives each test the same time."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

#: The environment variable that says which file.
RECORD = "CELERY_SUITE_RECORD"

#: Seconds that a test may take. One asks for 20, and needs nearly all of them where nothing else runs.
PATIENCE = 300

#: Of the outcomes of a test's phases and subtests the worst one counts.
_ORDER = ("passed", "skipped", "failed")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recording(), "celery-suite-recording")


class Recording:
    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.began = time.monotonic()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            item.add_marker(pytest.mark.timeout(PATIENCE), append=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        before = self.outcomes.get(report.nodeid, "passed")
        self.outcomes[report.nodeid] = max(before, report.outcome, key=_ORDER.index)
        if report.failed:
            self.reasons.setdefault(report.nodeid, report.longreprtext)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        deliveries: Any = session.config.pluginmanager.get_plugin("celery-suite-deliveries")
        counts = deliveries.counts() if deliveries is not None else {"received": 0, "throttled": 0}
        seconds = time.monotonic() - self.began
        record = {"outcomes": self.outcomes, "reasons": self.reasons, "seconds": seconds, **counts}
        Path(os.environ[RECORD]).write_text(json.dumps(record))
