"""A backlog is ordered by priority, then by the time of the first throttle."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import Limiter
from celery_ratelimit.backlog.backlog import Backlog, ParkResult, ToPark
from tests.conftest import START, Clock
from tests.examples import examples
from tests.parks import packed

from .backlog_steps import BUCKET, let_out
from .backlog_steps import park_all as park
from .frozen import demand

API = demand("1000/s")
#: What Redis brokers know, and RabbitMQ's: the default is the first, or the last.
ORDERS = [0, 3, 6, 9, -1, -9, -255]


def message_of(id: str) -> str:
    """As a worker has it."""
    return json.dumps({"id": id.partition("@")[0], "headers": {"id": id}, "properties": {"order": 7}})


def to_park(id: str, order: int = 0, *, cost: int = 1, copy: int = 1, since: int = 0) -> ToPark:
    return packed(id, cost, message_of(id), copy, since, order=order)


def leave(parking: Backlog, absent: Collection[str] = ()) -> list[str]:
    """All tasks that leave, in order."""
    return [each.id for each in let_out(parking, API, absent)]


def test_backlog_is_due_when_a_higher_priority_arrives(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    frozen.pause("api", 60, force=True)
    park(parking, to_park("a", 3))
    assert leave(parking) == []
    assert parking.due(["api"]) == []
    park(parking, to_park("behind", 6))
    assert parking.due(["api"]) == [], "it waits for longer than the other one"
    park(parking, to_park("before"))
    assert parking.due(["api"]) == [BUCKET]


def test_park_returns_the_cost_ahead(parking: Backlog) -> None:
    assert park(parking, to_park("a", 3), to_park("b", 3), to_park("c", 9)) == [0, 1, 2]
    assert park(parking, to_park("d"), to_park("e"), to_park("f", 6)) == [0, 1, 4]
    assert park(parking, to_park("g"), most=2) == [ParkResult("full", 2)]
    assert park(parking, to_park("h", 0), most=3) == [2]


def test_cost_ahead_uses_the_average_of_mixed_costs(parking: Backlog) -> None:
    park(parking, to_park("a", 3, cost=5), to_park("b", 9, cost=1))
    assert park(parking, to_park("c", 6)) == [3], "one of the two is before it"


@pytest.mark.parametrize("order", [-255, -3, 3, 9])
def test_suspended_task_keeps_its_priority(parking: Backlog, order: int) -> None:
    park(parking, to_park("x@absent"), to_park("y@absent", order), to_park("z@here"), to_park("w@here", order))
    away = frozenset({"absent"})
    first = ["w@here", "z@here"] if order < 0 else ["z@here", "w@here"]
    assert leave(parking, away) == first
    back = frozenset()
    assert leave(parking, back) == (["y@absent", "x@absent"] if order < 0 else ["x@absent", "y@absent"])


@pytest.mark.parametrize("order", [-255, 0, 9])
def test_oldest_task_is_found_in_any_priority(parking: Backlog, clock: Clock, order: int) -> None:
    park(parking, to_park("first", order))
    assert parking.contents.lot(BUCKET, 0, -1).oldest == START / 1e6
    park(parking, to_park("suspended@absent", 9))
    second = parking.contents.lot(BUCKET, 0, -1).tasks[-1].since
    clock.advance(10)
    park(parking, *[to_park(f"{other}", other) for other in (-255, 0, 3)])
    assert parking.contents.lot(BUCKET, 0, -1).oldest == START / 1e6
    leave(parking, frozenset({"absent"}))
    assert parking.contents.lot(BUCKET, 0, -1).oldest == second / 1e6, "it is aside"


def test_long_waiting_task_overtakes_higher_priorities(parking: Backlog, clock: Clock) -> None:
    park(parking, to_park("old", 1))
    clock.advance(52 * 86400)
    park(parking, to_park("new", 0))
    (old,) = [each for each in parking.contents.lot(BUCKET, 0, -1).tasks if each.id == "old"]
    assert old.since == START
    assert leave(parking) == ["old", "new"]


@pytest.mark.parametrize("purge", [True, False])
def test_remove_all_takes_every_priority(parking: Backlog, clock: Clock, purge: bool) -> None:
    tasks = [to_park(f"{number}", ORDERS[number % len(ORDERS)]) for number in range(300)]
    park(parking, *tasks)
    clock.advance(1)
    steps = parking.contents.remove_all(BUCKET, purge=purge)
    taken, picked = next(steps)
    clock.advance(1)
    park(parking, *[to_park(f"late {order}", order) for order in ORDERS if order >= 0])
    for more, some in steps:
        taken, picked = taken + more, [*picked, *some]
    assert taken == 300
    assert len({each.id for each in picked}) == (0 if purge else 300)
    assert {each.id for each in parking.contents.lot(BUCKET, 0, -1).tasks} == {"late 0", "late 3", "late 6", "late 9"}


def test_drain_takes_every_priority(parking: Backlog, clock: Clock) -> None:
    park(parking, *[to_park(f"{number}@absent", ORDERS[number % len(ORDERS)]) for number in range(100)])
    park(parking, *[to_park(f"{number}@here", ORDERS[number % len(ORDERS)]) for number in range(100)])
    frozen_out = frozenset({"absent", "here"})
    assert leave(parking, frozen_out) == []
    clock.advance(1)
    handed: list[str] = []
    until, leaving = 0, True
    while leaving:
        until, some = parking.contents.take_for_original_queues(BUCKET, (), until)
        parking.published({BUCKET: some})
        handed += [each.id for each in some]
        leaving = bool(some)
    assert len(set(handed)) == len(handed) == 200


@given(
    acts=st.lists(
        st.one_of(
            st.tuples(st.just("park"), st.sampled_from(ORDERS), st.integers(0, 2_000_000)),
            st.tuples(st.just("again"), st.integers(0, 50), st.integers(0, 2_000_000)),
            st.tuples(st.just("leave"), st.integers(1, 5), st.integers(0, 2_000_000)),
        ),
        max_size=40,
    )
)
@examples(60)
def test_random_tasks_leave_as_in_the_model(
    store_and_limiter: tuple[redis.Redis, Limiter], acts: Sequence[tuple[str, int, int]]
) -> None:
    store, limiter = store_and_limiter
    for key in store.scan_iter("ratelimit:*"):
        store.delete(key)
    parking, now = Backlog(limiter, "fleet", 3600), START
    inside: dict[str, tuple[int, int, int]] = {}  # id: order, since, copy
    outside: list[tuple[str, int, int, int]] = []
    for number, (act, which, pause) in enumerate(acts):
        now += pause
        store.set("test:clock", now)
        if act == "park":
            since = max([now, *[at + 1 for order, at, _ in inside.values() if order == which]])
            park(parking, to_park(f"{number}", which))
            inside[f"{number}"] = which, since, 1
        elif act == "again" and outside:
            id, order, since, copy = outside.pop(which % len(outside))
            park(parking, to_park(id, order, copy=copy + 1, since=since))
            inside[id] = order, since, copy + 1
        elif act == "leave":
            in_order = sorted(inside, key=lambda id: (*inside[id][:2], id))
            assert [each.id for each in parking.contents.lot(BUCKET, 0, -1).tasks] == in_order
            taken = in_order[:which]
            _, picked, _ = parking.contents.remove(BUCKET, taken, purge=False)
            assert [(each.id, each.since) for each in picked] == [(id, inside[id][1]) for id in taken]
            parking.published({BUCKET: picked})
            outside += [(id, *inside.pop(id)) for id in taken]
    assert leave(parking) == sorted(inside, key=lambda id: (*inside[id][:2], id))
