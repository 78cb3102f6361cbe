"""Fair limits together with deduplication and priority reserve."""

from __future__ import annotations

import json

import redis

from celery_ratelimit import Limit, Limiter
from celery_ratelimit.backlog.backlog import Backlog, ParkResult, ToPark
from celery_ratelimit.limiter.limit_request import LimitRequest, with_priority
from celery_ratelimit.store.keys import escape
from tests.conftest import START, Clock
from tests.parks import packed

from .test_fair_shares import BUCKET, SHARES, leave, park


def to_park(share: str, id: str, *, alone: str = "", leaves: int = 0, copy: int = 1, since: int = 0) -> ToPark:
    message = json.dumps({"id": id, "headers": {"id": id}})
    return packed(id, 1, message, copy, since, unique=alone, leaves=leaves or None, share=escape(share))


def test_surviving_duplicate_keeps_the_earlier_place(parking: Backlog, store: redis.Redis, clock: Clock) -> None:
    clock.advance(10)
    assert park(parking, to_park("a", "second", since=START + 5), to_park("a", "stays", alone="n1")) == [0, 1]
    assert park(parking, to_park("a", "returns", alone="n1", copy=2, since=START + 1)) == [
        ParkResult("replaced", survivor="stays")
    ]
    assert len(store.zrange(SHARES, 0, -1)) == 2
    assert [each.id for each in leave(parking)] == ["stays", "second"]


def test_replaced_task_costs_its_share_nothing(parking: Backlog) -> None:
    park(parking, to_park("a", "old", alone="n1"), to_park("a", "other"), to_park("b", "another"))
    park(parking, to_park("b", "new", alone="n1"))
    left = [each.id for each in leave(parking)]
    assert left[0] == "old", "it has ended"
    assert sorted(left[1:]) == ["another", "new", "other"]
    assert left[1:].index("new") < left[1:].index("another"), "it has the place of the one that it replaces"


def test_share_uses_what_a_replaced_task_leaves(frozen: Limiter, parking: Backlog) -> None:
    """The slot is the one that the message's own priority gives."""
    limit = Limit("10/s", burst=10, name="api", fair="{tenant}", priority_reserve={0: 0.5})
    low, high = [
        with_priority((LimitRequest(limit, "api", share="a"),), priority, lowest_first=True)[0] for priority in (5, 0)
    ]
    for _ in range(5):
        assert frozen._asker.ask((low,)).allowed
    assert not frozen._asker.ask((low,)).allowed
    parking.park({BUCKET: [to_park("a", "low", leaves=low.leaves_in_record or 0)]})
    (looked,) = parking.take_due([low])
    assert [(each.id, each.wait) for each in looked.leaving] == [("low", 0.1)]
    assert frozen._asker.ask((high,)).allowed


def test_requests_that_differ_in_share_only_keep_their_share() -> None:
    limit = Limit("10/s", burst=10, name="api", fair="{tenant}", priority_reserve={0: 0.5})
    one, other = [LimitRequest(limit, "api", share=share) for share in ("a", "b")]
    assert [with_priority((each,), 5, lowest_first=True)[0].share for each in (one, other)] == ["a", "b"]
