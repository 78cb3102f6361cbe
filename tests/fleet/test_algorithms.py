"""Every algorithm on a real fleet: tasks with windows, logs, estimates and rates by key."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis

from benchmarks.measures import worst_second
from celery_ratelimit import ImpossibleRequest, Limit, Limiter, Throttled
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT
from tests.fleet_of import AGAIN, NewFleet, assert_never_over, assert_over, until


def test_full_leaky_bucket_refuses_tasks_at_once(new_fleet: NewFleet, server: EmbeddedServer) -> None:
    with new_fleet() as fleet:
        name = "tests.apps.fleet.leaky"
        leaky = Limit("10/s", algorithm="leaky_bucket", capacity=5, name=name)
        limiter = Limiter.from_url(server.url + PATIENT, quotas={name: leaky})
        limiter.set_rate(name, replace(leaky, rate="1/h"))
        results = fleet.send_each("leaky", range(30))
        fleet.start()
        until(lambda: sum(result.ready() for result in results) == 25, 20, "one having run, and 24 being refused")
        limiter.unset_rate(name)
        outcomes = [result.get(timeout=40, propagate=False) for result in results]
        assert sum(isinstance(outcome, Throttled) for outcome in outcomes) == 24
        assert sorted(outcome for outcome in outcomes if isinstance(outcome, int)) == list(range(6))
        assert_never_over(fleet.permits(), 10)


def test_limits_of_every_algorithm_hold_on_a_fleet(new_fleet: NewFleet) -> None:
    """``mixed``: a bucket, a log and places together."""
    most = {"sliding_log": 20, "fixed_window": 40, "sliding_window": 40, "warming": 21, "mixed": 20}
    with new_fleet(rate="20/s") as fleet:
        for index in range(60 * len(most)):
            fleet.send(list(most)[index % len(most)], index)
        fleet.start(number=2)
        fleet.wait_for_each(range(60 * len(most)), 30)
        for number, (task, bound) in enumerate(most.items()):
            permits = [permit for permit in fleet.permits() if permit.index % len(most) == number]
            assert worst_second(permits) <= bound, task
        assert fleet.sent_back() <= 60 * len(most) * AGAIN


def test_costs_are_settled_once_and_by_names_and_one_that_a_stored_limit_never_grants_fails(
    new_fleet: NewFleet, limiter: Limiter
) -> None:
    limit, weighed = Limit("10/s", burst=100, name="tests.apps.fleet.settled"), "tests.apps.fleet.weighed"
    with new_fleet() as fleet:
        fleet.start()
        assert fleet.send("settled", 0, 50, 10).get(timeout=10) == [True, False]
        assert limiter.peek(limit).remaining >= 89
        assert fleet.send("settled", 1, 10, 60).get(timeout=10) == [True, False]
        assert limiter.peek(limit).remaining <= 60
        wrong, neither, right = fleet.send("settled_by_name", 0, 50, 90).get(timeout=10)
        assert "no limit 'tokes'" in wrong
        assert "(limits: tokens, calls)" in wrong
        assert "task 'tests.apps.fleet.settled_by_name': settle takes either permits" in neither
        assert right is True
        tokens = limiter.peek(Limit("10/s", burst=100, name="tokens"))
        assert tokens.reset_after > 5.5, "more than the 50 that were charged"

        assert fleet.send("weighed", 0, 10).get(timeout=10) == 0
        limiter.set_rate(weighed, Limit("100/s", burst=5), force=True)
        with pytest.raises(ImpossibleRequest, match="holds 5 at most"):
            fleet.send("weighed", 1, 10).get(timeout=10)
        assert fleet.send("weighed", 2, 5).get(timeout=10) == 2
        limiter.unset_rate(weighed, force=True)


def test_keys_have_rates_from_settings_or_a_callable_and_missing_ones_are_exempt_or_shared(
    new_fleet: NewFleet, store: redis.Redis
) -> None:
    """Keys of ``plain`` are its indexes, 1000 and 1001; tenants of ``by_plan`` differ by its index.

    A callable that raises leaves the limit's own rate.
    """
    limit = {"rate": "1/s", "key": "{index}", "rates": {"1000": "20/s", "1001": "5/s"}, "name": "models"}
    with new_fleet(install=True, ratelimit_tasks={"*.plain": limit}) as fleet:
        for index in range(60):
            fleet.send("by_plan", index, ("paid", "lost", "none")[index % 3])
        for _ in range(20):
            fleet.send_each("plain", (1000, 1001, 1000, 1000, 1000))
        fleet.start(number=2)
        fleet.wait_for(160, 40)
        permits = fleet.permits()

        fleet.send_each("exempt", range(2000, 2005))
        fleet.wait_for(165, 20)
        assert not list(store.scan_iter("ratelimit:*{tests.apps.fleet.exempt}*:state"))
        without = fleet.send_each("without_key", range(2005, 2011))
        fleet.send("without_key", 2011, "ann").get(timeout=20)
        until(lambda: sorted(each.state for each in without) == ["REVOKED"] * 3 + ["SUCCESS"] * 3, 20, "one bucket")
    by_plan = [permit for permit in permits if permit.index < 1000]
    assert sorted(permit.index for permit in by_plan) == list(range(60))
    for number, rate in enumerate((20, 5, 5)):
        assert_never_over([permit for permit in by_plan if permit.index % 3 == number], rate)
    assert_over([permit for permit in by_plan if permit.index % 3 == 0], 5)
    for index, rate in ((1000, 20), (1001, 5)):
        assert_never_over([permit for permit in permits if permit.index == index], rate)
        assert_over([permit for permit in permits if permit.index == index], rate / 2)
