"""``watch``: names of the app's limits, and a warning for any other name."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.events.receiver import EventReceiver

from tests.shop import Run


@pytest.fixture(autouse=True)
def _ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Ctrl-C is pressed once it waits."""

    def capture(self: EventReceiver, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EventReceiver, "capture", capture)


def waits_for(names: list[str]) -> str:
    return f"Waiting for throttled tasks of {', '.join(names) or 'all limits'}".replace("\n", "\\n")


def test_limits_of_the_app_are_watched_without_a_store(run: Run, app: Celery) -> None:
    app.conf.ratelimit_url = "redis://127.0.0.1:1/0"
    app.conf.ratelimit_quotas = {**app.conf.ratelimit_quotas, "unused": "1/s"}
    for names in ([], ["stripe"], ["e\nmails", "tenant"], ["unused"], ["gpu"]):
        found = run("watch", *names)
        assert (found.exit_code, found.stderr.partition(", from ")[0]) == (0, waits_for(names))


@pytest.mark.parametrize("options", [[], ["--json"], ["--enable"]])
@pytest.mark.parametrize(
    ("name", "hint"),
    [("strpe", "did you mean 'stripe'?"), ("other\nteam", "workers with other code may have it.")],
)
def test_other_names_are_watched_with_a_warning(run: Run, name: str, hint: str, options: list[str]) -> None:
    found = run("watch", "stripe", name, *options)
    warning, waiting = found.stderr.splitlines()
    assert found.exit_code == 0
    assert warning == f"Warning: this app has no limit {name!r}: {hint}"
    assert waiting.startswith(waits_for(["stripe", name]))
