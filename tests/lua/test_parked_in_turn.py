"""A task is parked several times in turn, and it is told late which of its older messages the broker has forgotten."""

from __future__ import annotations

import pytest
import redis

from celery_ratelimit.backlog.backlog import Backlog

from .test_parking import BUCKET, START, let_out, park, publish


def go_round(parking: Backlog, copy: int) -> None:
    """It is parked, let out, and comes back."""
    park(parking, "a", copy=copy, since=0 if copy == 1 else START)
    assert [(each.id, each.copy) for each in let_out(parking)] == [("a", copy)]
    publish(parking, ("a", copy))
    assert parking.copies.arrive(BUCKET, {"a": copy}) == set()


def tell_one(parking: Backlog) -> None:
    parking.acknowledged(BUCKET, "a")
    parking.published()


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("told_after", [1, 2])
def test_one_of_two_older_messages_is_still_at_the_broker(parking: Backlog, left: int, told_after: int) -> None:
    """A worker is stopped before it has heard that it was parked, and gives the message back; that the other message
    is acknowledged is told for it, before the task is parked again, or when it has left once more.
    """
    go_round(parking, 1)
    park(parking, "a", copy=2, since=START)
    if told_after == 1:
        tell_one(parking)
    assert [(each.id, each.copy) for each in let_out(parking)] == [("a", 2)]
    publish(parking, ("a", 2))
    if told_after == 2:
        tell_one(parking)
    assert parking.copies.arrive(BUCKET, {"a": left}) == {"a"}
    assert parking.copies.arrive(BUCKET, {"a": 2}) == set()
    assert parking.copies.arrive(BUCKET, {"a": left}) == {"a"}


@pytest.mark.parametrize("times", [2, 3, 9])
def test_of_several_older_messages_the_last_is_waited_for(parking: Backlog, store: redis.Redis, times: int) -> None:
    for copy in range(1, times + 1):
        go_round(parking, copy)
    for _ in range(times - 1):
        tell_one(parking)
    assert parking.copies.arrive(BUCKET, {"a": 0}) == {"a"}
    tell_one(parking)
    assert not store.keys("ratelimit:*:twice@fleet")


def test_more_than_are_counted_are_remembered_for_a_while(parking: Backlog, store: redis.Redis) -> None:
    for copy in range(1, 12):
        go_round(parking, copy)
    for _ in range(11):
        tell_one(parking)
    assert parking.copies.arrive(BUCKET, {"a": 0}) == {"a"}
    (twice,) = store.keys("ratelimit:*:twice@fleet")
    assert store.pttl(twice) > 0
