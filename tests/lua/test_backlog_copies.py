"""Of several copies of a task one may run, wherever a worker dies."""

from __future__ import annotations

import pytest
import redis

from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.backlog.tuning import REDELIVERY_LATE
from tests.conftest import START, Clock

from .backlog_steps import API, BUCKET, let_out, park, publish, take_due
from .frozen import expiries, us


def test_redelivery_of_an_unacknowledged_parked_message_is_stale(parking: Backlog) -> None:
    park(parking, "a")
    # Still parked: the message that comes once more is of no use.
    assert parking.copies.arrive(BUCKET, {"a": 0}) == {"a"}
    assert [each.id for each in let_out(parking, API)] == ["a"]
    publish(parking, ("a", 1))
    # It has left meanwhile: only what came from the lot may run.
    assert parking.copies.arrive(BUCKET, {"a": 1}) == set()
    assert parking.copies.arrive(BUCKET, {"a": 0}) == {"a"}
    assert parking.copies.arrive(BUCKET, {"a": 1}) == set(), "and it may run once more if it is delivered once more"


def test_redelivery_after_the_acknowledgement_may_run(parking: Backlog, store: redis.Redis) -> None:
    park(parking, "a")
    parking.untold.note_acknowledged(BUCKET, "a", "t1")
    let_out(parking, API)
    publish(parking, ("a", 1))
    assert parking.copies.arrive(BUCKET, {"a": 1, "b": 0}) == set()
    assert not store.keys("ratelimit:*:valid_copy@fleet")


def test_acknowledgement_may_be_reported_after_the_return(parking: Backlog, store: redis.Redis) -> None:
    park(parking, "a")
    let_out(parking, API)
    assert store.keys("ratelimit:*:valid_copy@fleet")
    parking.untold.note_acknowledged(BUCKET, "a", "t1")
    publish(parking, ("a", 1))
    assert not store.keys("ratelimit:*:valid_copy@fleet")


@pytest.mark.parametrize("was_published", [False, True], ids=["not published", "published, and not reported"])
def test_unconfirmed_return_is_published_again_and_runs_once(
    parking: Backlog, clock: Clock, was_published: bool
) -> None:
    park(parking, "a")
    parking.untold.note_acknowledged(BUCKET, "a", "t1")
    assert [(each.id, each.copy) for each in let_out(parking, API)] == [("a", 1)]
    # Here the worker dies. Another looks after the lot.
    clock.set(START + 9_000_000)
    assert let_out(parking, API) == []
    clock.set(START + 10_000_000)
    assert [(each.id, each.copy) for each in let_out(parking, API)] == [("a", 2)]
    publish(parking, ("a", 2))
    if was_published:
        assert parking.copies.arrive(BUCKET, {"a": 1}) == set()
        assert parking.copies.arrive(BUCKET, {"a": 2}) == {"a"}
        assert parking.copies.arrive(BUCKET, {"a": 1}) == set()
    else:
        assert parking.copies.arrive(BUCKET, {"a": 2}) == set()


def test_arrival_confirms_the_publish(parking: Backlog, clock: Clock) -> None:
    park(parking, "a")
    parking.untold.note_acknowledged(BUCKET, "a", "t1")
    let_out(parking, API)  # published, and the worker dies before it says so
    assert parking.copies.arrive(BUCKET, {"a": 1}) == set()
    clock.set(START + 60_000_000)
    assert let_out(parking, API) == []


def test_older_copy_is_stale_after_the_task_is_parked_again(parking: Backlog) -> None:
    """It came back, its limit was paused, it is parked again as copy 2; copy 1 is delivered once more."""
    park(parking, "a")
    parking.untold.note_acknowledged(BUCKET, "a", "t1")
    let_out(parking, API)
    publish(parking, ("a", 1))
    assert parking.copies.arrive(BUCKET, {"a": 1}) == set()
    park(parking, "a", copy=2, since=START)
    assert parking.copies.arrive(BUCKET, {"a": 1}) == {"a"}
    assert [(each.id, each.copy) for each in let_out(parking, API)] == [("a", 2)]
    publish(parking, ("a", 2))
    assert parking.copies.arrive(BUCKET, {"a": 1}) == {"a"}
    assert parking.copies.arrive(BUCKET, {"a": 2}) == set()


def test_valid_copy_parked_again_gets_a_new_number(parking: Backlog, clock: Clock) -> None:
    """Let out and not reported, so there are two; the first to come finds its limit closed and is parked once more."""
    park(parking, "a")
    let_out(parking, API)
    clock.set(START + 10_000_000)
    assert [(each.id, each.copy) for each in let_out(parking, API)] == [("a", 2)]
    publish(parking, ("a", 2))
    assert parking.copies.arrive(BUCKET, {"a": 0}) == set(), "the user's own message, delivered once more"
    park(parking, "a", copy=1, token="redelivered")
    parking.untold.note_acknowledged(BUCKET, "a", "redelivered")
    assert parking.copies.arrive(BUCKET, {"a": 1}) == {"a"}
    assert parking.copies.arrive(BUCKET, {"a": 2}) == {"a"}
    clock.set(START + 11_000_000)
    assert [(each.id, each.copy) for each in let_out(parking, API)] == [("a", 3)]
    publish(parking, ("a", 3))
    assert parking.copies.arrive(BUCKET, {"a": 0}) == {"a"}
    assert parking.copies.arrive(BUCKET, {"a": 2}) == {"a"}
    assert parking.copies.arrive(BUCKET, {"a": 3}) == set()


def test_late_confirmation_leaves_the_task_parked_again(parking: Backlog, clock: Clock) -> None:
    """It comes back, and is parked once more, before the worker that published it has said so."""
    park(parking, "a")
    parking.untold.note_acknowledged(BUCKET, "a", "t1")
    let_out(parking, API)
    assert parking.copies.arrive(BUCKET, {"a": 1}) == set()
    park(parking, "a", copy=2, since=START)
    publish(parking, ("a", 1))
    assert parking.copies.arrive(BUCKET, {"a": 1}) == {"a"}
    clock.set(START + 1_000_000)
    assert [(each.id, each.copy) for each in let_out(parking, API)] == [("a", 2)]


def test_tasks_stay_and_memory_of_copies_expires(parking: Backlog, store: redis.Redis) -> None:
    park(parking, "a", "b", expires=START / 1e6 + 3600)
    take_due(parking)
    assert {key.rpartition(":")[2] for key in store.keys("ratelimit:*@fleet")} == {
        f"{kind}@fleet" for kind in ("payloads", "in_flight", "valid_copy", "due", "code")
    }
    (remembered,) = [key for key in store.keys("ratelimit:*@fleet") if "valid_copy" in key]
    assert expiries(store).get(remembered) == START + 7_200_000_000 + us(REDELIVERY_LATE)
    publish(parking, ("a", 1), ("b", 1))


@pytest.mark.parametrize("told", ["before", "after", "never"])
def test_task_parked_in_a_second_backlog_leaves_it(parking: Backlog, clock: Clock, told: str) -> None:
    park(parking, "a")
    parking.untold.note_acknowledged(BUCKET, "a", "t1")
    assert [(each.id, each.copy) for each in let_out(parking)] == [("a", 1)]
    if told == "before":
        publish(parking, ("a", 1))
    assert parking.copies.arrive(BUCKET, {"a": 2}) == set()
    park(parking, "a", copy=3, since=START)
    parking.untold.note_acknowledged(BUCKET, "a", "t3")
    if told == "after":
        publish(parking, ("a", 1))
    clock.set(START + 60_000_000)
    assert [(each.id, each.copy) for each in let_out(parking)] == [("a", 3)]
    assert parking.copies.arrive(BUCKET, {"a": 3}) == set()


def test_task_may_run_before_its_acknowledgement_is_reported(parking: Backlog) -> None:
    park(parking, "a")
    assert [(each.id, each.copy) for each in let_out(parking)] == [("a", 1)]
    publish(parking, ("a", 1))
    assert parking.copies.arrive(BUCKET, {"a": 2}) == set()
    assert parking.copies.arrive(BUCKET, {"a": 0}) == {"a"}, "the user's own, delivered once more"
    assert parking.copies.arrive(BUCKET, {"a": 1}) == {"a"}


def test_returned_copy_does_not_replace_a_parked_one(parking: Backlog) -> None:
    """The message that was parked may be sent to be parked once more, after it has left: the answer was lost."""
    park(parking, "a")
    let_out(parking)
    park(parking, "a")
    assert let_out(parking) == []


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
