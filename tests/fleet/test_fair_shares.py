"""Law 13 on real fleets: a shared limit serves each key by weight, and no key waits for another's backlog.

Where all tasks are parked before the limit opens, the order of turns is known. The tests judge the order of permits:
tasks in flight together may pass each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from random import Random

import pytest
import redis

from celery_ratelimit import Limiter
from tests.conftest import PATIENT
from tests.fleet_of import Fleet, NewFleet, assert_never_over, errors, until
from tests.weighed import DEAREST, WEIGHTS

#: Seconds of the rate that have left the lot, and tasks that two workers of two processes hold beside these.
LEFT, HELD = 1.0, 16


def parked(fleet: Fleet) -> int:
    return sum(lot.parked for lot in fleet.parking_lots().lots())


@contextmanager
def all_parked(
    new_fleet: NewFleet, rate: int, calls: Sequence[tuple[object, ...]]
) -> Iterator[tuple[Fleet, list[int]]]:
    """Two workers and all calls parked; yields the fleet and the order of the backlog. The limit is open then."""
    with new_fleet(rate=f"{rate}/s", app="tests.apps.weighed") as fleet:
        limiter = Limiter.from_url(fleet.server.url + PATIENT)
        limiter.pause("weighed", 3600, force=True)
        for index, call in enumerate(calls):
            fleet.send("tests.apps.weighed.weighed", index, *call)
        fleet.start(number=2)
        until(lambda: parked(fleet) == len(calls), 60, "all being parked")
        tasks = fleet.parking_lots().tasks("weighed", number=len(calls), force=True)
        limiter.resume("weighed", force=True)
        yield fleet, [int(re.findall(r"\d+", task.args)[0]) for task in tasks]
        assert not errors(fleet.log(0) + fleet.log(1))


def order_of(fleet: Fleet) -> list[int]:
    return [permit.index for permit in sorted(fleet.permits(), key=lambda permit: permit.at)]


@pytest.mark.slow
def test_fifty_tenants_are_served_by_weight_over_every_interval(new_fleet: NewFleet) -> None:
    """Tasks of 1 to 20 permits, sent tenant by tenant, and enough of each that all are backlogged to the end."""
    random, rate = Random(13), 1000
    calls = [(tenant, random.randint(1, DEAREST)) for tenant, weight in WEIGHTS.items() for _ in range(5 * weight)]
    with all_parked(new_fleet, rate, calls) as (fleet, came):
        turns, backlogged = by_turns(calls, came)
        assert_law(calls, turns[:backlogged])
        fleet.wait_for(len(calls), 60)
        permits = sorted(fleet.permits(), key=lambda permit: permit.at)
        order = order_of(fleet)
        assert sorted(order) == list(range(len(calls)))
        at = {index: position for position, index in enumerate(turns)}
        late = set[int]()  # calls with an earlier turn than one that has started
        reached, most = 0, 0
        for index in order:
            late |= set(turns[reached : max(reached, at[index])])
            reached = max(reached, at[index] + 1)
            late -= {index}
            most = max(most, sum(calls[each][1] for each in late))
        assert most <= LEFT * rate + HELD * DEAREST, "they were in flight"
        assert_never_over([permit for permit in permits for _ in range(calls[permit.index][1])], rate, burst=DEAREST)


def by_turns(calls: Sequence[tuple[str, int]], came: Sequence[int]) -> tuple[list[int], int]:
    """Start-time fair queueing: the order of turns, and how many have theirs while all tenants wait."""
    queues: dict[str, list[int]] = {}
    for index in came:
        queues.setdefault(calls[index][0], []).append(index)
    tags, turns, backlogged = dict.fromkeys(queues, 1.0), list[int](), 0
    while tags:
        tenant = min(tags, key=lambda tenant: (tags[tenant], tenant))
        turns.append(queues[tenant].pop(0))
        tags[tenant] += calls[turns[-1]][1] / WEIGHTS[tenant]
        if not queues[tenant]:
            tags.pop(tenant)
            backlogged = backlogged or len(turns) - 1
    return turns, backlogged


def assert_law(calls: Sequence[tuple[str, int]], order: Sequence[int]) -> None:
    """Over every interval, for every two of them."""
    for one, other in combinations(WEIGHTS, 2):
        bound = DEAREST / WEIGHTS[one] + DEAREST / WEIGHTS[other]
        reached = lowest = highest = 0.0
        for index in order:
            tenant, cost = calls[index]
            reached += cost / WEIGHTS[tenant] * ((tenant == one) - (tenant == other))
            lowest, highest = min(lowest, reached), max(highest, reached)
            assert highest - lowest <= bound + 1e-9, (one, other)


@pytest.mark.slow
def test_operator_actions_on_a_fair_backlog_lose_no_task(
    new_fleet: NewFleet, limiter: Limiter, store: redis.Redis
) -> None:
    """Tasks are revoked, released and thrown away, tenants are held back and let go, and weights change."""
    random = Random(7)
    calls = [(tenant, random.randint(1, DEAREST)) for tenant in WEIGHTS for _ in range(8)]
    with all_parked(new_fleet, 500, calls) as (fleet, _):
        limiter, lots, names = limiter, fleet.parking_lots(), list(WEIGHTS)
        for tenant in names[:10]:
            limiter.set_weight("weighed", tenant, 0, force=True)
        tasks = lots.tasks("weighed", number=len(calls), force=True)
        of = {task.id: int(re.findall(r"\d+", task.args)[0]) for task in tasks}
        held = [id for id, index in of.items() if calls[index][0] in names[:10]]
        revoked, purged, released = held[:15], held[15:25], held[25:40]
        fleet.sender.control.revoke(revoked)
        assert lots.purge("weighed", ids=purged, force=True) == len(purged)
        assert lots.release("weighed", ids=released, force=True) == len(released)
        for round in range(20):
            limiter.set_weight("weighed", names[10 + round % 5], (0, 0.001, 1e6, 3, None)[round % 5], force=True)
        gone = {of[id] for id in [*revoked, *purged]}
        free = {index for index, (tenant, _) in enumerate(calls) if tenant not in names[:15]}
        until(lambda: free <= {start.index for start in fleet.starts()}, 60, "all that are not held back")
        for tenant in names[:15]:
            limiter.set_weight("weighed", tenant, None, force=True)
        fleet.wait_for(len(calls) - len(gone), 60)
        assert sorted(start.index for start in fleet.starts()) == sorted(set(range(len(calls))) - gone)
        until(lambda: not list(store.scan_iter("*{weighed}*:turns@*")), 20, "the lot having ended")


BIG, SMALL = 300, 10


def test_small_tenant_is_not_behind_the_backlog_of_a_big_one(new_fleet: NewFleet, limiter: Limiter) -> None:
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
        limiter.set_rate("tenants", "1000/s", force=True)
        fleet.wait_for_each(range(BIG + SMALL), 60)
        assert_never_over(permits, 20)
        assert not errors(fleet.log())


def test_changed_weight_applies_to_waiting_tasks(new_fleet: NewFleet, limiter: Limiter) -> None:
    """One tenant is held back, and goes on when it has a weight again."""
    with new_fleet(rate="50/s") as fleet:
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
