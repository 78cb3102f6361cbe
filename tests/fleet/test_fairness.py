"""A small tenant beside a big one: they share a limit by weight, not by order of arrival."""

from __future__ import annotations

from celery_ratelimit import Limiter
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, NewFleet, assert_never_over, errors, until

BIG, SMALL = 300, 10


def test_small_tenant_is_not_behind_the_backlog_of_a_big_one(new_fleet: NewFleet, server: EmbeddedServer) -> None:
    """Those that have left the lot have slots within a second; then every second one is of the small tenant."""
    with new_fleet(rate="20/s") as fleet:
        fleet.send_each("shared", range(BIG), "big")
        fleet.start(number=2)
        until(lambda: parked(fleet) >= BIG / 2, 20, "the backlog being parked")
        before = {start.index for start in fleet.starts()}
        for index in range(SMALL):
            fleet.send("shared", BIG + index, "small / é")
        until(lambda: len({start.index for start in fleet.starts()} & set(range(BIG, BIG + SMALL))) == SMALL, 30)
        permits = sorted(fleet.permits(), key=lambda permit: permit.at)
        order = [permit.index for permit in permits if permit.index not in before]
        passed_by = max(order.index(BIG + index) for index in range(SMALL)) - SMALL
        assert passed_by < BIG / 2, "in the order of arrival, or behind it, all of them"
        Limiter.from_url(server.url).set_rate("tenants", "1000/s", force=True)
        fleet.wait_for_each(range(BIG + SMALL), 60)
        assert_never_over(permits, 20)
        assert not errors(fleet.log())


def test_changed_weight_applies_to_waiting_tasks(new_fleet: NewFleet, server: EmbeddedServer) -> None:
    """One tenant is held back, and goes on when it has a weight again."""
    with new_fleet(rate="50/s") as fleet:
        limiter = Limiter.from_url(server.url)
        limiter.set_weight("tenants", "held", 0, force=True)
        for index in range(100):
            fleet.send("shared", index, ("free", "held")[index % 2])
        fleet.start(number=2)
        until(lambda: len({each.index for each in fleet.starts() if each.index % 2 == 0}) == 50, 30)
        until(lambda: parked(fleet) > 0, 10)
        held = parked(fleet)
        assert held >= 30, "all but the tasks that came before the first was parked"
        limiter.set_weight("tenants", "held", None, force=True)
        fleet.wait_for(100, 60)
        assert_never_over(fleet.permits(), 50)


def parked(fleet: Fleet) -> int:
    return sum(lot.parked for lot in fleet.parking_lots().lots())
