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


def acknowledge(parking: Backlog, copy: int) -> None:
    """The message that was parked as this copy is acknowledged."""
    parking.untold.note_acknowledged(BUCKET, "a", f"t{copy}")
    parking.published()


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("told_after", [1, 2])
def test_one_of_two_older_messages_is_unacknowledged(parking: Backlog, left: int, told_after: int) -> None:
    """A worker is stopped before it has heard that it was parked, and gives the message back; that the other message
    is acknowledged is told before the task is parked again, or when it has left once more.
    """
    go_round(parking, 1)
    park(parking, "a", copy=2, since=START)
    if told_after == 1:
        acknowledge(parking, 2 - left)
    assert [(each.id, each.copy) for each in let_out(parking)] == [("a", 2)]
    publish(parking, ("a", 2))
    if told_after == 2:
        acknowledge(parking, 2 - left)
    assert parking.copies.arrive(BUCKET, {"a": left}) == {"a"}
    assert parking.copies.arrive(BUCKET, {"a": 2}) == set()
    assert parking.copies.arrive(BUCKET, {"a": left}) == {"a"}


@pytest.mark.parametrize("times", [2, 3, 12])
def test_last_of_several_older_messages_is_awaited(parking: Backlog, store: redis.Redis, times: int) -> None:
    for copy in range(1, times + 1):
        go_round(parking, copy)
    for copy in range(times, 1, -1):
        acknowledge(parking, copy)
    assert parking.copies.arrive(BUCKET, {"a": 0}) == {"a"}
    acknowledge(parking, 1)
    assert not store.keys("ratelimit:*:valid_copy@fleet")


def test_unacknowledged_message_is_remembered_for_a_while(parking: Backlog, store: redis.Redis) -> None:
    go_round(parking, 1)
    acknowledge(parking, 2)
    assert parking.copies.arrive(BUCKET, {"a": 0}) == {"a"}
    (twice,) = store.keys("ratelimit:*:valid_copy@fleet")
    assert store.pttl(twice) > 0
