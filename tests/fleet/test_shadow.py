"""Limits in shadow on real workers: with every throttle, without a store, and with settled costs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from celery_ratelimit import Limit, Limiter
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.conftest import PATIENT
from tests.fleet_of import NewFleet, assert_never_over, assert_over, errors, until

NAME = "tests.apps.fleet"


def limiter_on(server: EmbeddedServer, task: str, **options: Any) -> Limiter:
    name = f"{NAME}.{task}"
    return Limiter.from_url(server.url + PATIENT, quotas={name: Limit("1/h", **{"name": name, **options})})


def reckoned(limiter: Limiter, name: str, number: int) -> Any:
    until(lambda: limiter.shadow_report(name).requests >= number, 15, f"{number} requests of {name}")
    return limiter.shadow_report(name)


def test_limits_put_into_shadow_before_workers_start_throttle_no_task_and_count_settled_costs(
    new_fleet: NewFleet, server: EmbeddedServer
) -> None:
    tasks = ("retry", "drop", "fail", "impatient")
    with new_fleet(rate="1/h") as fleet, ExitStack() as limiters:
        of_task = {task: limiters.enter_context(limiter_on(server, task)) for task in tasks}
        settled = limiters.enter_context(limiter_on(server, "settled", burst=100, cost="estimate"))
        settled.set_shadow(f"{NAME}.settled", True)
        for task, limiter in of_task.items():
            limiter.set_shadow(f"{NAME}.{task}", True)
            fleet.send_each(task, range(20))
        fleet.start(number=2)
        fleet.wait_for(20 * len(tasks), 30)
        for task, limiter in of_task.items():
            report = reckoned(limiter, f"{NAME}.{task}", 20)
            assert (report.requests, report.delayed) == (20, 19)
        assert not fleet.signals()
        assert fleet.sent_back() == 0

        assert fleet.send("settled", 0, 100, 1000).get(timeout=20) == [True, False]
        assert fleet.send("settled", 1, 10, 10).get(timeout=20) == [True, False]
        report = reckoned(settled, f"{NAME}.settled", 2)
        assert report.longest > 60, "1,000 permits, not 100, were before it"


@pytest.mark.parametrize("choice", ["raise", pytest.param("defer", marks=pytest.mark.slow)])
def test_lost_store_delays_no_task_of_a_shadowed_limit(new_fleet: NewFleet, choice: str) -> None:
    quotas = {"tried": {"rate": "1/h", "shadow": True}}
    conf = {"ratelimit_quotas": quotas, "ratelimit_tasks": {f"{NAME}.plain": ["tried"]}}
    with (
        embedded_server() as limits_store,
        new_fleet(ratelimit_url=limits_store.url, install=True, ratelimit_on_store_error=choice, **conf) as fleet,
    ):
        fleet.start()
        assert fleet.send("plain", 0).get(timeout=20) == 0
        limits_store.kill()
        results = fleet.send_each("plain", range(1, 21))
        assert [result.get(timeout=20) for result in results] == list(range(1, 21))
        assert not errors(fleet.log())


def test_shadowed_limit_does_not_disturb_an_enforced_one(new_fleet: NewFleet, server: EmbeddedServer) -> None:
    """The enforced limit decides alone: never over, no task lost."""
    tasks = ("retry", "wait")
    quotas = {"tried": {"rate": "1/h", "shadow": True}}
    conf = {"ratelimit_quotas": quotas, "ratelimit_tasks": {f"{NAME}.*": ["tried"]}}

    def started(limiter: Limiter, task: str) -> int:
        (stats,) = limiter.stats(f"{NAME}.{task}", force=True).values()
        return stats.started

    with (
        new_fleet(rate="40/s", install=True, **conf) as fleet,
        Limiter.from_url(server.url + PATIENT, quotas=quotas) as limiter,
    ):
        fleet.start(number=2)
        fleet.send_in_turn(tasks, 120)
        fleet.wait_for_each(range(120), 40)
        for task in (0, 1):
            permits = [permit for permit in fleet.permits() if permit.index % 2 == task]
            assert_never_over(permits, 40)
            assert_over(permits, 40 / 3)
        report = reckoned(limiter, "tried", 120)
        assert (report.requests, report.delayed, report.pending) == (120, 119, 0)
        until(lambda: limiter.stats("tried")["tried"].results["shadow"] == 120, 10, "the counts")
        for name in tasks:
            until(lambda name=name: started(limiter, name) == 60, 10, f"the counts of {name}")
