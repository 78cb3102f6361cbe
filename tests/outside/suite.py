"""One run of Celery's suite: pytest as a process of its own, with a broker and result backend of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import processes
from celery_ratelimit.testing import embedded_server
from tests.outside.recording import RECORD
from tests.outside.source import CACHE, fetch

__all__ = ["Result", "Run", "started"]

PROJECT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Result:
    """What came out."""

    outcomes: dict[str, str]  # ``passed``, ``failed`` or ``skipped``, by test
    reasons: dict[str, str]  # what pytest says about each that failed
    received: int  # tasks that the worker was to limit, each once a retry
    throttled: int
    seconds: float

    def those(self, outcome: str) -> list[str]:
        return [test for test, became in self.outcomes.items() if became == outcome]


class Run:
    """A run that has begun; its log is in ``log``."""

    def __init__(self, name: str) -> None:
        self.log, self.record = CACHE / f"{name}.log", CACHE / f"{name}.json"
        self.record.unlink(missing_ok=True)
        self.process: subprocess.Popen[bytes]

    def running(self) -> bool:
        return self.process.poll() is None

    def result(self) -> Result:
        """Wait for its end. RuntimeError if pytest itself broke down."""
        self.process.wait()
        if not self.record.exists():
            raise RuntimeError(f"pytest has left no record, see {self.log}")
        return Result(**json.loads(self.record.read_text()))


@contextlib.contextmanager
def started(name: str, tests: Sequence[str], *, limited: bool) -> Iterator[Run]:
    """Begin a run of ``tests``, with our task class if ``limited``. At the end of the block nothing of it is left."""
    suite, packages = fetch()
    run = Run(name)
    plugins = ["no:cacheprovider", "no:celery", "celery.contrib.pytest", "tests.outside.recording"]
    if limited:
        plugins.append("tests.outside.limiting")
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-ra"]
    command += [argument for plugin in plugins for argument in ("-p", plugin)]
    with embedded_server() as server, run.log.open("wb") as output:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(PROJECT), str(packages)]),
            "TEST_BROKER": server.url,
            "TEST_BACKEND": server.url,
            "REDIS_HOST": "127.0.0.1",
            "REDIS_PORT": str(server.port),
            "WORKER_LOGLEVEL": "INFO",
            RECORD: str(run.record),
        }
        run.process = subprocess.Popen(
            [*command, *tests],
            cwd=suite,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield run
        finally:
            processes.stop([run.process])
