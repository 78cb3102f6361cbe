"""``watch``: names of limits that it knows, and an error for a name that it does not know."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.events.receiver import EventReceiver

from celery_ratelimit.app.app_store import limiter_of
from tests.shop import Run, park


@pytest.fixture(autouse=True)
def _ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Ctrl-C is pressed once it waits."""

    def capture(self: EventReceiver, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EventReceiver, "capture", capture)


@pytest.mark.parametrize("names", [["strpe"], ["stripe", "strpe"]])
@pytest.mark.parametrize("options", [[], ["--json"], ["--enable"]])
def test_unknown_name_is_an_error_as_in_status(run: Run, names: list[str], options: list[str]) -> None:
    found, other = run("watch", *names, *options), run("status", *names)
    assert (found.exit_code, found.output) == (other.exit_code, other.output)
    assert found.exit_code == 2
    assert found.output == "Error: No limit is called 'strpe'. Did you mean 'stripe'? (--force accepts any name)\n"


def test_known_names_are_watched(run: Run, app: Celery) -> None:
    app.conf.ratelimit_quotas = {**app.conf.ratelimit_quotas, "unused": "1/s"}
    limiter_of(app).set_rate("stored", "5/s", force=True)
    park(app, "of another program", 1)
    for names in ([], ["stripe"], ["e\nmails", "tenant"], ["unused"], ["stored"], ["of another program"]):
        found = run("watch", *names)
        assert (found.exit_code, found.stderr.partition(", from ")[0]) == (
            0,
            f"Waiting for throttled tasks of {', '.join(names) or 'all limits'}".replace("\n", "\\n"),
        )
    assert run("watch", "strpe", "--force").exit_code == 0


def test_watch_asks_no_store_for_limits_of_the_app(run: Run, app: Celery) -> None:
    app.conf.ratelimit_url = "redis://127.0.0.1:1/0"
    assert run("watch", "stripe", "gpu").exit_code == 0
    found = run("watch", "strpe")
    assert (found.exit_code, "does not answer" in found.output, len(found.output.splitlines())) == (1, True, 1)
