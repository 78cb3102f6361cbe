"""Shares of a limit have their turns by weight, whatever waits before them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

import pytest
import redis

from celery_ratelimit import Concurrency, Limit, Limiter
from celery_ratelimit.backlog.backlog import Backlog, ParkResult, ToPark
from celery_ratelimit.backlog.messages import Parked
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.store.keys import escape
from tests.conftest import Clock
from tests.parks import packed

from .backlog_steps import BUCKET, let_out
from .backlog_steps import park_all as park

SHARES, TURNS = "ratelimit:v1:{api}::shares@fleet", "ratelimit:v1:{api}::turns@fleet"


def limit(rate: str = "1000/s", burst: int = 1, weights: Mapping[str, float] | None = None) -> LimitRequest:
    return LimitRequest(Limit(rate, burst=burst, name="api", fair="{tenant}", weights=weights or {}), "api")


FAIR = limit()


def to_park(
    share: str | None,
    id: str,
    *,
    cost: int = 1,
    copy: int = 1,
    since: int = 0,
    order: int = 0,
    weight: float = 1.0,
    expires: float = 0.0,
) -> ToPark:
    """As a worker has it; a limit that is not fair has no shares."""
    message = json.dumps({"id": id.partition("@")[0], "headers": {"id": id}, "properties": {"share": "x"}})
    share = None if share is None else escape(share)
    return packed(id, cost, message, copy, since, expires=expires, order=order, share=share, weight=weight)


def leave(
    parking: Backlog, asked: LimitRequest = FAIR, absent: Collection[str] = (), horizon: float = 1.0
) -> list[Parked]:
    """All tasks that leave, in order."""
    return let_out(parking, asked, absent, horizon)


def ids(parked: Sequence[Parked]) -> list[str]:
    return [each.id for each in parked]


def test_newcomer_overtakes_tasks_that_have_not_left(parking: Backlog) -> None:
    park(parking, *[to_park("big", f"b{number}") for number in range(200)])
    assert len(leave(parking, limit("100/s"))) == 76, "the tasks of three quarters of a second"
    park(parking, to_park("small", "s0"))
    assert leave(parking, limit("100/s")) == []


def test_tasks_without_a_share_alternate_with_shares(parking: Backlog) -> None:
    """By a version before this one, or before the limit was fair: together they are one share."""
    park(parking, *[to_park(None, f"old{number}") for number in range(100)])
    park(parking, *[to_park("a", f"a{number}") for number in range(10)])
    left = ids(leave(parking))
    assert sorted(left) == sorted([f"old{number}" for number in range(100)] + [f"a{number}" for number in range(10)])
    assert [id for id in left if id[0] == "o"] == [f"old{number}" for number in range(100)]
    assert left.index("a9") <= 20


def test_tasks_parked_by_an_older_version_behind_weight_0_leave(parking: Backlog) -> None:
    park(parking, *[to_park("held", f"h{number}") for number in range(50)])
    park(parking, *[to_park(None, f"old{number}") for number in range(5)])
    assert ids(leave(parking, limit(weights={"held": 0}))) == [f"old{number}" for number in range(5)]
    assert parking.contents.lot(BUCKET, 0, -1).parked == 50
    assert len(leave(parking)) == 50, "the weight is another one"


def test_tasks_returned_by_an_older_version_are_skipped(parking: Backlog, store: redis.Redis) -> None:
    park(parking, *[to_park("a", f"a{number}") for number in range(30)], *[to_park("b", "b0"), to_park("b", "b1")])
    for number in range(20):
        store.zrem("ratelimit:v1:{api}::parked@fleet", f"a{number}")
    assert ids(leave(parking)) == ["a20", "b0", "a21", "b1", *[f"a{number}" for number in range(22, 30)]]


def test_task_in_flight_at_an_older_worker_does_not_leave_twice(parking: Backlog, store: redis.Redis) -> None:
    park(parking, *[to_park(share, f"{share}{number}") for number in range(3) for share in "ab"])
    older = LimitRequest(Limit("100/s", burst=2, name="api"), "api")
    (looked,) = parking.take_due([older], horizon=0)
    assert ids(looked.leaving) == ["a0", "b0"]
    assert ids(leave(parking, limit("100/s", burst=6), horizon=1)) == ["a1", "b1", "a2", "b2"]
    assert store.zcard(SHARES) == 0


def test_park_returns_the_cost_ahead_by_shares(parking: Backlog) -> None:
    assert park(parking, *[to_park("a", f"a{number}", cost=2) for number in range(10)])[-1] == 18
    assert park(parking, to_park("b", "b0", cost=2), to_park("b", "b1", cost=2)) == [0, 4]
    assert park(parking, *[to_park("c", f"c{number}", cost=2, weight=4.0) for number in range(5)])[1:] == [3, 6, 9, 12]
    assert park(parking, to_park("b", "b3", cost=2), most=24) == [ParkResult("full", 24)], (
        "two of its own, and a sixth is its part"
    )
    assert park(parking, to_park("b", "b3", cost=2), most=25) == [24]


def test_cost_ahead_uses_current_weights(frozen: Limiter, parking: Backlog) -> None:
    """Stored weights count from the next poll on; shares without tasks no longer count."""
    code = limit("1/s", weights={"gold": 8})
    for share, weight in (("gold", 8.0), ("a", 1.0), ("b", 1.0)):
        park(parking, *[to_park(share, f"{share}{number}", weight=weight) for number in range(20)])
    assert park(parking, to_park("c", "c0"), to_park("c", "c1")) == [0, 11]
    frozen.set_weight(code.limit, "gold", 2)
    leave(parking, code)
    assert park(parking, to_park("c", "c2")) == [10], "two of its own, and a fifth is its part"
    frozen.set_weight(code.limit, "gold", None)
    leave(parking, code)
    assert park(parking, to_park("c", "c3")) == [33]
    parking.contents.remove(BUCKET, [f"{share}{number}" for share in "ab" for number in range(20)], purge=True)
    parking.take_due([limit(weights={"gold": 8})])
    assert park(parking, to_park("d", "d0"), to_park("d", "d1"))[1] <= 10


def test_task_parked_again_pays_once(parking: Backlog, store: redis.Redis, clock: Clock) -> None:
    park(
        parking,
        *[to_park("a", f"a{number}") for number in range(4)],
        *[to_park("b", f"b{number}") for number in range(4)],
    )
    slow = limit("1/s", burst=2)
    first = leave(parking, slow, horizon=0)
    assert ids(first) == ["a0", "b0"]
    parking.published({BUCKET: first})
    park(parking, to_park("a", "a0", copy=2, since=first[0].since))
    assert store.zscore(TURNS, "a") == 1
    assert store.zscore(TURNS, "b") == 2


def test_removed_tasks_leave_the_index(parking: Backlog, store: redis.Redis) -> None:
    park(parking, *[to_park("a", f"{number}@x", order=number % 3 - 1) for number in range(12)])
    parking.contents.remove(BUCKET, ["0@x", "1@x"], purge=True)
    parking.contents.remove(BUCKET, ["2@x"], purge=False)
    assert store.zcard(SHARES) == 9
    parking.contents.take_for_original_queues(BUCKET)
    assert store.zcard(SHARES) == 0


def test_index_left_by_an_older_worker_expires(parking: Backlog, store: redis.Redis, clock: Clock) -> None:
    """It ends the lot, and knows of no index. As long as a lot is looked at its index stays."""

    def days() -> set[int]:
        ends = [int(store.hget("test:expires", key) or 0) for key in (SHARES, TURNS)]
        return {round((at - int(store.get("test:clock") or 0)) / 86_400e6) for at in ends}

    park(parking, *[to_park("a", f"a{number}") for number in range(300)])
    assert days() == {60}
    for _ in range(3):  # seldom
        clock.advance(29 * 86_400)
        (looked,) = parking.take_due([limit("1/90d")])
        assert looked.again is not None
        assert looked.again <= 30 * 86_400
        assert days() == {60}
    clock.advance(29 * 86_400)
    for _ in range(150):  # often
        clock.advance(5)
        parking.take_due([limit("1/5s")])
    assert days() == {60}
    assert store.exists(SHARES, TURNS) == 2


def test_tasks_of_absent_queues_are_skipped_until_consumed(parking: Backlog) -> None:
    park(parking, *[to_park("a", f"a{number}@absent") for number in range(40)])
    park(parking, *[to_park("b", f"b{number}@here") for number in range(3)])
    park(parking, to_park(None, "old@absent"))
    away = frozenset({"absent"})
    assert ids(leave(parking, absent=away)) == ["b0@here", "b1@here", "b2@here"]
    park(parking, *[to_park("c", f"c{number}@here") for number in range(2)])
    back = frozenset()
    left = ids(leave(parking, absent=back))
    assert len(left) == 43
    assert {"c0@here", "c1@here", "old@absent"} <= set(left[:8])


@pytest.mark.parametrize(
    "share", ["", "a b", "a\0b", "50%", "é" * 200, "x" * 200, "\n", '"}', "日本" * 50, "}}", "[", "\ud800"]
)
def test_share_names_may_be_any_text(parking: Backlog, store: redis.Redis, share: str) -> None:
    park(parking, *[to_park("big", f"b{number}") for number in range(10)])
    park(parking, *[to_park(share, f"s{number}", order=-number) for number in range(3)])
    park(parking, to_park(share, "held"), to_park("big", "b10"))
    assert parking.contents.remove(BUCKET, ["held"], purge=True)[0] == 1
    assert store.zcard(SHARES) == 14
    left = ids(leave(parking, limit(weights={share: 2})))
    assert {"b0", "s0", "s1", "s2"} < set(left[:5]), "at the same virtual time any of them may be first"


def test_weight_0_holds_a_share_back_until_others_come(parking: Backlog) -> None:
    held = limit(weights={"a": 0})
    park(parking, *[to_park("a", f"a{number}", weight=0.0) for number in range(5)])
    assert leave(parking, held) == []
    (looked,) = parking.take_due([held])
    assert looked.again is not None
    assert looked.again > 1000
    assert parking.due(["api"]) == []
    park(parking, to_park("b", "b0"))
    assert parking.due(["api"]) == [BUCKET]
    assert ids(leave(parking, held)) == ["b0"]


def test_changed_weight_in_the_code_counts_as_another_limit(parking: Backlog) -> None:
    park(parking, to_park("a", "a0"))
    (looked,) = parking.take_due([limit("1/s", weights={"a": 0})])
    assert not looked.another
    (looked,) = parking.take_due([limit("1/s", weights={"a": 0})])
    assert not looked.another
    (looked,) = parking.take_due([limit("1/s", weights={"a": 2})])
    assert looked.another


def test_concurrency_permits_are_shared_fairly(parking: Backlog) -> None:
    places = LimitRequest(Concurrency(6, name="api", fair="{tenant}", weights={"b": 2}), "api")
    park(
        parking,
        *[to_park("a", f"a{number}") for number in range(9)],
        *[to_park("b", f"b{number}") for number in range(9)],
    )
    left = ids(leave(parking, places))
    assert sum(id[0] == "b" for id in left[:9]) == 6


def test_tasks_without_a_share_do_not_wait_for_all_shares(parking: Backlog, clock: Clock) -> None:
    park(parking, *[to_park("big", f"b{number}") for number in range(200)])
    park(parking, *[to_park(None, f"old{number}") for number in range(5)])
    left: list[str] = []
    for _ in range(18):
        leaving = leave(parking, limit("10/s"))
        parking.published({BUCKET: leaving})
        left += ids(leaving)
        clock.advance(1)
    assert {f"old{number}" for number in range(5)} < set(left), "once the cursor has come to them"
    assert len(left) < 200
