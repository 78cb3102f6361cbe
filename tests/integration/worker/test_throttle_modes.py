"""Throttled tasks in each mode, and what users see of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import redis
from celery import Celery
from celery.exceptions import TaskRevokedError

from celery_ratelimit import ImpossibleRequest, RateLimitedTask
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, assert_never_over, outcome, until


def test_wait_holds_the_task_in_the_worker(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    with Fleet(server, tmp_path, rate="4/s") as fleet:
        fleet.start()
        for index in range(8):
            fleet.send("wait", index)
        starts = fleet.wait_for(8, 20)
        assert [start.index for start in starts] == list(range(8))
        assert fleet.sent_back() == 0
        assert "throttled by limit 'tests.apps.fleet.wait' (4/s): waits in this worker, its turn is in" in fleet.log()
        assert_never_over(fleet.permits(), 4)


def test_max_wait_counts_tasks_that_are_parked(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    with Fleet(server, tmp_path, rate="10/s") as fleet:
        results = [fleet.send("impatient", index) for index in range(40)]
        fleet.start()
        states = Counter(map(outcome, results))
        # Half a second from when each has come; a task that is late for its slot on a busy machine keeps its place.
        assert 2 <= states["done"] <= 30, "all of them would take four seconds"
        assert states["throttled"] == 40 - states["done"]


def test_cost_function_that_fails_takes_no_permit(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    with Fleet(server, tmp_path) as fleet:
        fleet.start()
        with pytest.raises(ImpossibleRequest, match="holds 10 at most"):
            fleet.send("weighed", 0, 11).get(timeout=60)
        with pytest.raises(TypeError):
            fleet.send("weighed", 0).get(timeout=60)
        assert not [key for key in store.keys("ratelimit:*") if "{fleet}" not in key], "a bucket"
        assert fleet.send("weighed", 1, 10).get(timeout=60) == 1
        until(lambda: store.hlen("unacked") == 0, 5)


def test_revoked_task_gives_its_slot_back(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    with Fleet(server, tmp_path, rate="2/s") as fleet:
        fleet.start()
        results = [fleet.send("retry", index) for index in range(3)]
        slots = "ratelimit:v1:{tests.apps.fleet.retry}::slots"
        until(lambda: store.zcard(slots) == 2, 10)  # at 0.5 and 1.0 s
        results[2].revoke()
        with pytest.raises(TaskRevokedError):
            results[2].get(timeout=60)
        until(lambda: results[2].id not in "".join(store.zrange(slots, 0, -1)), 5, "the return of the slot")
        assert results[1].get(timeout=60) == 1


def test_direct_calls_and_eager_mode_are_not_throttled() -> None:
    app = Celery("eager", broker="redis://127.0.0.1:1/0", set_as_current=False)  # no store is there: none is asked

    @app.task(base=RateLimitedTask, limits="1/h", shared=False)
    def retry(index: int) -> int:
        return index

    assert [retry(index) for index in range(200)] == list(range(200))
    assert [retry.apply((index,)).get() for index in range(200)] == list(range(200))
