"""While the upstream of its tasks fails, a limit with a breaker lets single tasks try; the rest waits."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from celery_ratelimit import Limiter
from tests.fleet_of import NewFleet, until

from .test_upstream import calls, upstream_fleet

TASKS, DOWN = 60, 5.0


def test_failing_upstream_is_tried_once_per_interval_and_all_tasks_run_afterwards(
    new_fleet: NewFleet, limiter: Limiter, tmp_path: Path
) -> None:
    with upstream_fleet(new_fleet) as fleet:
        (tmp_path / "down").touch()
        fleet.start(number=2)
        results = [fleet.send("fragile", index) for index in range(TASKS)]
        until(lambda: limiter.config("fragile", force=True).by == "breaker", 20, "the breaker opening")
        opened, before = time.time(), len(calls(fleet))
        time.sleep(DOWN)
        tries = [call for call in calls(fleet)[before:] if call.at > opened + 1]
        (tmp_path / "down").unlink()
        assert before <= 5 + 4 + 5, "in a row, in the processes, and with permits that were taken ahead"
        assert 1 <= len(tries) <= DOWN
        assert limiter.config("fragile", force=True).reason.startswith("upstream fails: ConnectionError(")
        assert [result.get(timeout=60) for result in results] == list(range(TASKS))
        assert Counter(start.index for start in fleet.starts()) == Counter(range(TASKS))
        assert limiter.config("fragile", force=True).stored is None
