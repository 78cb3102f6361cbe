"""A park call whose reply is lost is repeated, and finds out what the first attempt did."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import Limiter
from celery_ratelimit.backlog import tuning
from celery_ratelimit.backlog.backlog import Backlog, ParkResult
from tests.conftest import START
from tests.examples import examples
from tests.parks import EMPTY, park_one

from .backlog_steps import API, BUCKET, let_out, message_of, publish
from .frozen import expiries, us


def park(parking: Backlog, token: str, attempt: int = 0, *, copy: int = 1, **options: Any) -> int:
    """An attempt of the delivery ``token`` to park task ``a``."""
    return park_one(parking, API, "a", message_of("a"), copy=copy, token=token, attempt=attempt, **options)


def parked(parking: Backlog) -> list[tuple[str, int]]:
    return [(each.id, each.copy) for each in parking.contents.lot(BUCKET, 0, -1).tasks]


def run(parking: Backlog, copy: int = 1) -> None:
    """The task leaves, is published, and runs."""
    assert [(each.id, each.copy) for each in let_out(parking)] == [("a", copy)]
    publish(parking, ("a", copy))
    assert parking.copies.arrive(BUCKET, {"a": copy}) == set()


def acknowledge(parking: Backlog, token: str) -> None:
    parking.untold.note_acknowledged(BUCKET, "a", token)
    parking.published()


def test_repeated_park_of_a_purged_task_parks_nothing(parking: Backlog) -> None:
    park(parking, "t")
    parking.contents.remove(BUCKET, ["a"], purge=True)
    assert park(parking, "t", 1) >= 0
    assert parked(parking) == []


@pytest.mark.parametrize(("options", "said"), [({"only_behind": True}, EMPTY), ({"most": 0}, ParkResult("full"))])
def test_late_call_after_a_refused_repetition_parks_nothing(
    parking: Backlog, options: dict[str, Any], said: ParkResult
) -> None:
    """The worker was told so, and has started the task, or given it up."""
    assert park(parking, "t", 1, **options) == said
    park_one(parking, API, "other", message_of("other"))
    assert park(parking, "t") == EMPTY
    assert parked(parking) == [("other", 1)]
    assert park(parking, "t", 1) >= 0, "it is to be parked after all"
    assert park(parking, "t", 2) >= 0
    assert park(parking, "t", 1) == EMPTY
    assert parked(parking) == [("other", 1), ("a", 1)]


def test_another_message_of_the_same_id_is_parked(parking: Backlog) -> None:
    """On RabbitMQ a task that is sent again, with the same id and arguments, is known by the same id."""
    park(parking, "t")
    run(parking)
    assert park(parking, "u", 1) == 0
    assert parked(parking) == [("a", 2)], "though the older message is not acknowledged yet"
    acknowledge(parking, "u")
    acknowledge(parking, "t")
    run(parking, copy=2)
    assert park(parking, "v", 1) == 0
    assert parked(parking) == [("a", 1)]


def test_second_delivery_finds_the_task_gone(parking: Backlog) -> None:
    """A message was delivered twice, both are to be parked, and the replies to both are lost."""
    assert park(parking, "t") == 0
    assert park(parking, "u") == 1
    run(parking)
    assert park(parking, "u", 1) >= 0
    assert park(parking, "t", 1) >= 0
    assert parked(parking) == []
    acknowledge(parking, "u")
    assert parking.copies.arrive(BUCKET, {"a": 0}) == {"a"}, "the other message is at the broker still"
    acknowledge(parking, "t")
    assert parking.copies.arrive(BUCKET, {"a": 0}) == set()


def test_only_repeated_attempts_are_remembered_while_calls_may_be_late(parking: Backlog, store: redis.Redis) -> None:
    park(parking, "t")
    acknowledge(parking, "t")
    run(parking)
    assert not store.keys("ratelimit:*:valid_copy@fleet")
    assert not store.keys("ratelimit:*:ack_unconfirmed@fleet")
    park(parking, "u", 1)
    (twice,) = store.keys("ratelimit:*:valid_copy@fleet")
    assert expiries(store)[twice] == START + us(7200 + tuning.REDELIVERY_LATE)


# -- At random ---------------------------------------------------------------------------------------------------------

REPLIES = st.sampled_from(["heard", "lost", "late"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 3), REPLIES, st.booleans()),
        st.tuples(st.just("execute"), st.integers(0, 3)),
        st.tuples(st.just("leave"), st.sampled_from(["published", "not reported", "killed"])),
        st.tuples(st.just("arrive"), st.integers(0, 3)),
        st.tuples(st.just("other")),
        st.tuples(st.just("wait"), st.sampled_from([1, 10])),
    ),
    max_size=30,
)


class Delivery:
    """A message in a worker, which asks until it has a reply."""

    def __init__(self, token: str, copy: int) -> None:
        self.token, self.copy, self.attempt, self.is_over = token, copy, 0, False


class Task:
    """One task: its messages, and the calls that are to be executed late."""

    def __init__(self, parking: Backlog, store: redis.Redis) -> None:
        self.parking, self.store, self.now = parking, store, START
        self.ran = self.number = 0
        self.deliveries = [Delivery("d0", 0)]
        self.on_the_way: list[int] = []  # copies
        self.late: list[Callable[[], object]] = []

    def ask(self, which: int, reply: str, only_behind: bool) -> None:
        waiting = [each for each in self.deliveries if not each.is_over]
        if not waiting:
            return
        one = waiting[which % len(waiting)]
        call = partial(park, self.parking, one.token, one.attempt, copy=one.copy + 1, only_behind=only_behind)
        if reply == "late":
            self.late.append(call)
        else:
            said = call()
        if reply != "heard":
            one.attempt += 1
            return
        one.is_over = True
        if said == EMPTY:  # it acquires a permit
            self.ran += 1
        else:
            self.parking.untold.note_acknowledged(BUCKET, "a", one.token)

    def execute(self, which: int) -> None:
        if self.late:
            self.late.pop(which % len(self.late))()

    def leave(self, how: str) -> None:
        (looked,) = self.parking.take_due([API])
        for each in [each for each in looked.leaving if each.id == "a"]:
            if how != "killed":
                self.on_the_way.append(each.copy)
            if how == "published":
                self.parking.published({BUCKET: [each]})

    def arrive(self, which: int) -> None:
        if self.on_the_way:
            copy = self.on_the_way.pop(which % len(self.on_the_way))
            if not self.parking.copies.arrive(BUCKET, {"a": copy}):
                self.deliveries.append(Delivery(f"d{len(self.deliveries)}", copy))

    def other(self) -> None:
        self.number += 1
        park_one(self.parking, API, f"o{self.number}", message_of("o"))

    def wait(self, seconds: int) -> None:
        self.now += 1_000_000 * seconds
        self.store.set("test:clock", self.now)


@given(steps=STEPS)
@examples(300)
def test_random_lost_and_late_calls_run_the_task_once(
    store_and_limiter: tuple[redis.Redis, Limiter], steps: list[Any]
) -> None:
    store, limiter = store_and_limiter
    store.flushall()
    store.set("test:clock", START)
    task = Task(Backlog(limiter, "fleet", 3600), store)
    for verb, *arguments in steps:
        getattr(task, verb)(*arguments)
    for _ in range(20):
        task.execute(0)
        task.ask(0, "heard", True)
        task.wait(11)
        task.leave("published")
        task.arrive(0)
    assert all(each.is_over for each in task.deliveries)
    assert task.ran == 1
