"""Without the gate the base class acquires in ``before_start``: never over the rate, one permit per task."""

from __future__ import annotations

import re

import redis

from celery_ratelimit.testing import embedded_server
from tests.fleet_of import NewFleet, assert_never_over, until


def test_worker_without_the_gate_holds_the_limit(new_fleet: NewFleet) -> None:
    with new_fleet(rate="20/s", app="tests.apps.no_gate") as fleet:
        fleet.start(number=2)
        results = fleet.send_each("retry", range(60))
        assert [result.get(timeout=30) for result in results] == list(range(60))
        assert len(fleet.permits()) == fleet.started() == 60
        assert_never_over(fleet.permits(), 20)
        assert "Traceback" not in fleet.log(0) + fleet.log(1)


def test_worker_without_the_gate_defers_tasks_while_the_store_is_down(new_fleet: NewFleet, store: redis.Redis) -> None:
    with (
        embedded_server() as limits,
        new_fleet(rate="50/s", app="tests.apps.no_gate", ratelimit_url=limits.url) as fleet,
    ):
        fleet.start()
        assert fleet.send("retry", 0).get(timeout=20) == 0
        limits.kill()
        results = fleet.send_each("retry", range(1, 21))
        until(lambda: len(set(re.findall(r"\[([0-9a-f-]{36})\] received", fleet.log()))) == 21, 20, "every task")
        assert fleet.started() == 1
        limits.start()
        assert [result.get(timeout=60) for result in results] == list(range(1, 21))
        assert fleet.started() == 21, "each has run once"
        assert_never_over(fleet.permits(), 50)
        assert "Traceback" not in fleet.log()
        assert 1 <= fleet.log().count("the limiter's store did not serve a request") <= 2, "once in each process"
