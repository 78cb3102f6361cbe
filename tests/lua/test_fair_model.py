"""Law 13: what the scripts do is what start-time fair queueing does, and its bound holds; also with very many tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import Limiter
from celery_ratelimit.backlog.backlog import Backlog
from tests.conftest import START, Clock
from tests.examples import examples

from .test_fair_shares import BUCKET, SHARES, TURNS, ids, leave, limit, park, to_park

TENANTS = "abcd"


@dataclass
class Model:
    """Start-time fair queueing: each share has its tasks in their order, and the tag of the next one."""

    weights: dict[str, float]
    waiting: dict[str, list[tuple[int, int, str, int]]] = field(default_factory=dict)
    tags: dict[str, float] = field(default_factory=dict)
    clock: float = 1.0

    def come(self, share: str, order: int, number: int, id: str, cost: int) -> None:
        self.waiting.setdefault(share, []).append((order, number, id, cost))
        self.waiting[share].sort()
        self.tags[share] = max(self.clock, self.tags.get(share, 0.0))

    def first(self) -> str:
        """The share whose turn is next. A share without tasks stays until it would be next."""
        while self.tags:
            share = min(self.tags, key=lambda share: (self.tags[share], share))
            if self.waiting[share]:
                return share
            self.clock = max(self.clock, self.tags.pop(share))
        self.clock = 1.0
        return ""

    def next(self) -> tuple[str, str, int]:
        share = self.first()
        self.clock = max(self.clock, self.tags[share])
        _, _, id, cost = self.waiting[share].pop(0)
        self.tags[share] = self.clock + cost / self.weights.get(share, 1.0)
        return share, id, cost


#: Some come of one tenant: how many, what each costs, of which importance. Or time passes, and some leave.
ACT = st.one_of(
    st.tuples(
        st.sampled_from(TENANTS), st.integers(1, 12), st.sampled_from([1, 1, 2, 5, 20]), st.sampled_from([0, 0, 3])
    ),
    st.tuples(st.just(""), st.integers(1, 60), st.just(0), st.just(0)),
)


@given(
    acts=st.lists(ACT, min_size=1, max_size=25),
    weights=st.dictionaries(st.sampled_from(TENANTS), st.sampled_from([0.5, 1.0, 2.0, 4.0, 8.0]), max_size=4),
)
@examples(100)
def test_tasks_leave_as_by_the_model_and_the_bound_holds(
    store_and_limiter: tuple[redis.Redis, Limiter], acts: Sequence[tuple[str, int, int, int]], weights: dict[str, float]
) -> None:
    store, limiter = store_and_limiter
    for key in store.scan_iter("*"):
        store.delete(key)
    parking, now, number = Backlog(limiter, "fleet", 3600), START, 0
    store.set("test:clock", now)
    model, asked = Model(weights), limit("100/s", burst=40, weights=weights)
    served: list[tuple[str, int]] = []
    waits: list[set[str]] = []  # the shares with tasks waiting before and after each of these
    for tenant, some, cost, order in [*acts, *[("", 200, 0, 0)] * 20]:
        if tenant:
            come = range(number, number := number + some)
            park(parking, *[to_park(tenant, f"{each}", cost=cost, order=order) for each in come])
            for each in come:
                model.come(tenant, order, each, f"{each}", cost)
            continue
        now += some * 10_000
        store.set("test:clock", now)
        left = leave(parking, asked, horizon=0)
        for each in left:
            before = {share for share, tasks in model.waiting.items() if tasks}
            share, id, paid = model.next()
            assert each.id == id
            served.append((share, paid))
            waits.append(before & {share for share, tasks in model.waiting.items() if tasks})
        parking.published({BUCKET: left})
        model.first()
        if not any(model.waiting.values()):
            assert not store.exists(TURNS, SHARES)
    assert sum(map(len, model.waiting.values())) == 0
    dearest = max([cost for _, cost in served], default=0)
    for one, other in combinations(TENANTS, 2):
        bound = dearest / weights.get(one, 1.0) + dearest / weights.get(other, 1.0)
        assert furthest(served, waits, one, other, weights) <= bound + 1e-9


def furthest(
    served: Sequence[tuple[str, int]], waits: Sequence[set[str]], one: str, other: str, weights: dict[str, float]
) -> float:
    """By how much two were served differently, over any interval in which both had tasks waiting."""
    most, reached, lowest, highest = 0.0, 0.0, 0.0, 0.0
    for (share, cost), waiting in zip(served, waits, strict=True):
        if not {one, other} <= waiting:
            reached = lowest = highest = 0.0
            continue
        reached += cost / weights.get(share, 1.0) * ((share == one) - (share == other))
        lowest, highest = min(lowest, reached), max(highest, reached)
        most = max(most, reached - lowest, highest - reached)
    return most


MANY = 100_000
FAST = limit("1000000/s", burst=10_000)


def fill(parking: Backlog, shares: int) -> None:
    for first in range(0, MANY, 100):
        park(parking, *[to_park(f"t{number % shares:06}", f"{number}@q") for number in range(first, first + 100)])


def drained(parking: Backlog, clock: Clock) -> list[str]:
    order: list[str] = []
    while left := leave(parking, FAST, horizon=0):
        parking.published({BUCKET: left})
        order += ids(left)
        clock.advance(1)
    return order


@pytest.mark.slow
def test_many_shares_of_one_task_each(parking: Backlog, store: redis.Redis, clock: Clock) -> None:
    fill(parking, MANY)
    park(parking, to_park("t000000", "second@q"))
    assert drained(parking, clock) == [f"{number}@q" for number in range(MANY)] + ["second@q"]
    assert not store.exists(SHARES, TURNS)


@pytest.mark.slow
def test_large_share_beside_a_small_one(parking: Backlog, store: redis.Redis, clock: Clock) -> None:
    fill(parking, 1)
    park(parking, to_park("small", "small@q"))
    order = drained(parking, clock)
    assert order.index("small@q") <= 1
    assert [id for id in order if id != "small@q"] == [f"{number}@q" for number in range(MANY)]
    assert not store.exists(SHARES, TURNS)
