"""Without the gate the base class acquires in ``before_start``: never over the rate, one permit per task."""

from __future__ import annotations

import re

import redis

from celery_ratelimit import Limiter
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.conftest import PATIENT
from tests.fleet_of import NewFleet, assert_never_over, until


def test_worker_without_the_gate_holds_a_limit_but_for_one_in_shadow(
    new_fleet: NewFleet, server: EmbeddedServer
) -> None:
    name = "tests.apps.fleet.wait"
    with (
        Limiter.from_url(server.url + PATIENT, quotas={name: "20/s"}) as limiter,
        new_fleet(rate="20/s", app="tests.apps.no_gate") as fleet,
    ):
        limiter.set_rate(name, "1/h")
        limiter.set_shadow(name, True)
        fleet.start(number=2)
        results = fleet.send_each("retry", range(60))
        shadowed = fleet.send_each("wait", range(60, 80))
        assert [result.get(timeout=30) for result in results + shadowed] == list(range(80))
        permits = [permit for permit in fleet.permits() if permit.index < 60]
        assert (len(permits), fleet.started()) == (60, 80)
        assert_never_over(permits, 20)
        fleet.assert_no_errors()


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
