"""What has left comes back with a newer number: workers of other keys, or another store, have parked it meanwhile."""

from __future__ import annotations

import pytest

from celery_ratelimit.backlog.backlog import Backlog
from tests.conftest import START, Clock

from .test_parking import BUCKET, let_out, park, publish


@pytest.mark.parametrize("told", ["before", "after", "never"])
def test_it_is_parked_once_more_and_leaves_once_more(parking: Backlog, clock: Clock, told: str) -> None:
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


def test_it_may_run_before_it_is_told_that_the_first_message_is_acknowledged(parking: Backlog) -> None:
    park(parking, "a")
    assert [(each.id, each.copy) for each in let_out(parking)] == [("a", 1)]
    publish(parking, ("a", 1))
    assert parking.copies.arrive(BUCKET, {"a": 2}) == set()
    assert parking.copies.arrive(BUCKET, {"a": 0}) == {"a"}, "the user's own, delivered once more"
    assert parking.copies.arrive(BUCKET, {"a": 1}) == {"a"}


def test_what_was_let_out_here_does_not_replace_what_is_parked(parking: Backlog) -> None:
    """The message that was parked may be sent to be parked once more, after it has left: the answer was lost."""
    park(parking, "a")
    let_out(parking)
    park(parking, "a")
    assert let_out(parking) == []
