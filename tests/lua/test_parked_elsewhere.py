"""What has left comes back with a newer number: workers of other keys, or another store, have parked it meanwhile."""

from __future__ import annotations

import pytest

from celery_ratelimit.backlog.backlog import Backlog
from tests.conftest import START, Clock

from .test_parking import BUCKET, let_out, park, publish


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
