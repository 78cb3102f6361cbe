"""What asks to park comes late: the message was sent anew meanwhile, and may have been said to be free to run."""

from __future__ import annotations

import redis

from celery_ratelimit.backlog.backlog import OVERTAKEN, Backlog
from celery_ratelimit.backlog.tuning import REDELIVERY_LATE
from tests.conftest import Clock
from tests.parks import park_one

from .test_parking import API, BUCKET, let_out, message_of, park, publish


def park_in_doubt(parking: Backlog, id: str, *, copy: int = 1, doubts: int = 0, only_behind: bool = False) -> int:
    return park_one(
        parking,
        API,
        id,
        message_of(id),
        copy=copy,
        since=0,
        expires=0.0,
        only_behind=only_behind,
        most=None,
        doubts=doubts,
    )


def test_what_comes_late_meets_the_mark_of_what_was_sent_anew(parking: Backlog) -> None:
    park(parking, "other")
    assert parking.copies.arrive(BUCKET, {"a": 0}, 1) == set(), "it is not parked: it may run"
    assert park_in_doubt(parking, "a", only_behind=True) == OVERTAKEN
    assert park_in_doubt(parking, "a") == OVERTAKEN
    assert [each.id for each in parking.contents.lot(BUCKET, 0, -1).tasks] == ["other"]


def test_what_was_sent_anew_may_be_parked_itself(parking: Backlog, clock: Clock) -> None:
    assert parking.copies.arrive(BUCKET, {"a": 0}, 1) == set()
    assert park_in_doubt(parking, "a", doubts=1) == 0
    assert park_in_doubt(parking, "a") == 1, "what comes late now is of no consequence"
    parking.acknowledged(BUCKET, "a")
    assert [each.id for each in let_out(parking)] == ["a"]
    parking.published({BUCKET: parking.contents.lot(BUCKET, 0, -1).tasks})
    publish(parking, ("a", 1))
    assert park_in_doubt(parking, "a") == OVERTAKEN, "nor when it has left"
    assert parking.copies.arrive(BUCKET, {"a": 1}) == set()
    assert park_in_doubt(parking, "a", copy=2, doubts=1) == 0, "it comes back, and its limit is closed again"


def test_the_answer_may_be_lost_more_than_once(parking: Backlog) -> None:
    assert parking.copies.arrive(BUCKET, {"a": 0}, 2) == set()
    assert park_in_doubt(parking, "a", doubts=1) == OVERTAKEN
    assert parking.copies.arrive(BUCKET, {"a": 0}, 1) == {"a"}, "delivered once more, or sent twice: the newer may run"
    assert parking.copies.arrive(BUCKET, {"a": 0}, 2) == set()
    assert park_in_doubt(parking, "a", doubts=2) == 0


def test_it_was_parked_after_all(parking: Backlog, store: redis.Redis) -> None:
    assert park_in_doubt(parking, "a") == 0
    assert parking.copies.arrive(BUCKET, {"a": 0}, 1) == {"a"}
    assert [each.id for each in let_out(parking)] == ["a"]
    assert parking.copies.arrive(BUCKET, {"a": 0}, 1) == {"a"}
    assert parking.copies.arrive(BUCKET, {"a": 1}) == set()
    assert park_in_doubt(parking, "b") == 0


def test_a_mark_is_kept_for_as_long_as_anything_may_be_late(parking: Backlog, store: redis.Redis) -> None:
    parking.copies.arrive(BUCKET, {"a": 0}, 1)
    (mark,) = store.keys("ratelimit:*:twice@fleet")
    most = 7_200_000 + 1000 * REDELIVERY_LATE
    assert most - 10_000 < store.pttl(mark) <= most
