"""Law 13 on real fleets: a shared limit serves each key by weight, and no key waits for another's backlog.

All tasks are parked before the limit opens, so the order of turns is known. The tests judge the order of permits:
tasks in flight together may pass each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from random import Random

import pytest
import redis

from celery_ratelimit import Limiter
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, NewFleet, assert_never_over, errors, until
from tests.weighed import DEAREST, WEIGHTS

#: Seconds of the rate that have left the lot, and tasks that two workers of two processes hold beside these.
LEFT, HELD = 1.0, 16

pytestmark = pytest.mark.slow


@contextmanager
def parked(
    server: EmbeddedServer, directory: Path, rate: int, task: str, limit: str, calls: Sequence[tuple[object, ...]]
) -> Iterator[tuple[Fleet, list[int]]]:
    """Two workers and all calls parked; yields the fleet and the order of the backlog. The limit is open then."""
    with Fleet(server, directory, rate=f"{rate}/s", app="tests.apps.weighed") as fleet:
        limiter = Limiter.from_url(server.url)
        limiter.pause(limit, 3600, force=True)
        for index, call in enumerate(calls):
            fleet.sender.send_task(task, args=[index, *call])
        fleet.start(number=2)
        until(lambda: sum(lot.parked for lot in fleet.parking_lots().lots()) == len(calls), 60, "all being parked")
        tasks = fleet.parking_lots().tasks(limit, number=len(calls), force=True)
        limiter.resume(limit, force=True)
        yield fleet, [int(re.findall(r"\d+", task.args)[0]) for task in tasks]
        assert not errors(fleet.log(0) + fleet.log(1))


def order_of(fleet: Fleet) -> list[int]:
    return [permit.index for permit in sorted(fleet.permits(), key=lambda permit: permit.at)]


def test_fifty_tenants_are_served_by_weight_over_every_interval(new_fleet: NewFleet) -> None:
    """Tasks of 1 to 20 permits, sent tenant by tenant, and enough of each that all are backlogged to the end."""
    random, rate = Random(13), 1000
    calls = [(tenant, random.randint(1, DEAREST)) for tenant, weight in WEIGHTS.items() for _ in range(5 * weight)]
    with parked(new_fleet, rate, "tests.apps.weighed.weighed", "weighed", calls) as (fleet, came):
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


def test_three_to_one_over_a_thousand_starts(new_fleet: NewFleet) -> None:
    calls = [(tenant,) for tenant, number in (("other", 400), ("gold", 900)) for _ in range(number)]
    with parked(new_fleet, 200, "tests.apps.fleet.shared", "tenants", calls) as (fleet, _):
        until(lambda: len(fleet.permits()) >= 1000, 60)
        gold = sum(calls[index] == ("gold",) for index in order_of(fleet)[:1000])
        assert abs(gold - 750) <= 20


def test_ten_tasks_behind_ten_thousand_alternate_with_them(new_fleet: NewFleet) -> None:
    calls = [("big",)] * 10_000 + [("small",)] * 10
    with parked(new_fleet, 100, "tests.apps.fleet.shared", "tenants", calls) as (fleet, _):
        small = set(range(10_000, 10_010))
        until(lambda: small <= {permit.index for permit in fleet.permits()}, 60)
        order = order_of(fleet)
        assert max(map(order.index, small)) < 20 + LEFT * 100 + HELD


def test_operator_actions_on_a_fair_backlog_lose_no_task(
    new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis
) -> None:
    """Tasks are revoked, released and thrown away, tenants are held back and let go, and weights change."""
    random = Random(7)
    calls = [(tenant, random.randint(1, DEAREST)) for tenant in WEIGHTS for _ in range(8)]
    with parked(new_fleet, 500, "tests.apps.weighed.weighed", "weighed", calls) as (fleet, _):
        limiter, lots, names = Limiter.from_url(server.url), fleet.parking_lots(), list(WEIGHTS)
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
