"""A backlog is due when its next task may leave, and when its limit changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_ratelimit import Concurrency, Limit, Limiter
from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.backlog.tuning import READ_AT_ONCE, SCANNED_AT_ONCE
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limits.key_rates import limit_of_key
from tests.conftest import START, Clock
from tests.parks import packed

from .backlog_steps import BUCKET, message_of, park, take_due
from .frozen import demand, us


def wake(parking: Backlog, asked: LimitRequest, since: int = 0) -> int:
    """Tells the lots that their limit has changed; how many steps that took."""
    steps, more = 0, True
    while more:
        _, more = parking.wake(asked, since)
        steps += 1
    return steps


def closed(frozen: Limiter, parking: Backlog, asked: LimitRequest, id: str = "a") -> None:
    """Use up the limit and park a task, whose slot is far away."""
    while frozen._asker.ask((asked,)).allowed:
        pass
    park(parking, id, asked=asked)
    assert take_due(parking, asked) == []


def test_new_backlog_is_due_at_the_workers_time(parking: Backlog, clock: Clock) -> None:
    some = [packed(id, 1, message_of(id), 1) for id in "abc"]
    parking.park({BUCKET: some[:1]}, later={BUCKET: 0.15})
    assert parking.due(["api"]) == []
    clock.set(START + 100_000)
    parking.park({BUCKET: some[1:2]}, later={BUCKET: 0.15})
    clock.set(START + 150_000)
    assert parking.due(["api"]) == [BUCKET], "a second task does not delay the first"
    assert [id for id, _ in take_due(parking)] == ["a", "b"]
    parking.park({BUCKET: some[2:]}, later={BUCKET: 0.0})
    assert parking.due(["api"]) == [BUCKET]


def test_task_parked_before_the_first_makes_the_backlog_due(parking: Backlog, clock: Clock) -> None:
    for id, since in (("a", START - 1_000_000), ("b", START - 2_000_000)):
        assert parking.due(["api"]) in (None, [])
        parking.park({BUCKET: [packed(id, 1, message_of(id), 1, since)]}, later={BUCKET: 0.15})
    assert parking.due(["api"]) == [BUCKET]


@pytest.mark.parametrize(
    "limit",
    [
        Limit("1/h", name="api"),
        Limit("1/h", name="api", algorithm="sliding_log"),
        Limit("1/h", name="api", algorithm="fixed_window"),
        Limit("1/h", name="api", algorithm="sliding_window"),
        Limit("1/h", name="api", refill="interval"),
    ],
    ids=lambda limit: str(limit.method),
)
def test_backlog_is_due_a_second_before_its_next_slot(
    frozen: Limiter, parking: Backlog, clock: Clock, limit: Limit
) -> None:
    asked = LimitRequest(limit, "api")
    closed(frozen, parking, asked)
    turn = us(frozen.peek(limit).retry_after)
    assert turn >= 3_600_000_000
    clock.set(START + turn - 1_000_001)
    assert parking.due(["api"]) == []
    clock.set(START + turn - 1_000_000)
    assert parking.due(["api"]) == [BUCKET]
    assert [id for id, _ in take_due(parking, asked)] == ["a"]


def test_paused_backlog_is_due_a_second_before_the_pause_ends(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    frozen.pause("api", 60, force=True)
    park(parking, "a")
    assert take_due(parking) == []
    clock.set(START + 58_999_999)
    assert parking.due(["api"]) == []
    clock.set(START + 59_000_000)
    assert parking.due(["api"]) == [BUCKET]
    assert take_due(parking) == [("a", 1_000_000)]


@pytest.mark.parametrize("how", ["settle", "cancel", "forget", "reset", "rate of the key", "end of the key's rate"])
def test_returned_permits_make_every_fleets_backlog_due_once(
    frozen: Limiter, parking: Backlog, clock: Clock, how: str
) -> None:
    limit = Limit("10/h", burst=10, name="api", key="{tenant}")
    asked, bucket = LimitRequest(limit, "api", "t"), ("api", "t")
    other = Backlog(frozen, "other", redelivery=3600)
    if how == "end of the key's rate":
        frozen.set_rate(limit, "1/d", key="t", for_=60, force=True)
    if how == "cancel":
        assert frozen.reserve(limit, id="r", key="t", cost=10, horizon=0).allowed
    else:
        decision = frozen.acquire(limit, key="t", cost=10)
    if how == "forget":
        frozen._asker.ask((asked,), id="waits", claim=1e6)
    for each in (parking, other):
        park(each, "a", asked=asked)
        each.due(["api"])
        assert take_due(each, asked) == []
        assert each.due(["api"]) == []
    clock.advance(1)
    if how == "settle":
        assert frozen.settle(decision, 1)
    elif how == "cancel":
        assert frozen.cancel(limit, id="r", key="t", cost=10)
    elif how == "forget":
        frozen._asker.forget((asked,), id="waits")
    elif how == "reset":
        frozen.reset(limit, key="t")
    elif how == "rate of the key":
        frozen.set_rate(limit, "100/s", key="t", force=True)
    else:
        clock.advance(58)
        assert parking.due(["api"]) == []
        clock.advance(1)
    for each in (parking, other):
        assert each.due(["api"]) == [bucket]
        take_due(each, asked)
        if how != "end of the key's rate":
            clock.advance(0.1)
            assert each.due(["api"]) == [], "once by each fleet"


def test_released_lease_makes_the_backlog_due(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    asked = LimitRequest(Concurrency(1, name="api", lease=60), "api")
    held = frozen._asker.ask((asked,), id="holder")
    clock.advance(30)
    park(parking, "a", asked=asked)
    assert take_due(parking, asked) == [], "held for half a minute by now, so for another one"
    clock.advance(20)
    assert parking.due(["api"]) == []
    assert frozen.release(held)
    assert parking.due(["api"]) == [BUCKET]
    assert take_due(parking, asked) == [("a", 0)]


def test_backlog_is_due_when_the_lease_of_a_dead_holder_ends(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    asked = LimitRequest(Concurrency(1, name="api", lease=60), "api")
    frozen._asker.ask((asked,), id="holder")
    clock.advance(50)
    park(parking, "a", asked=asked)
    assert take_due(parking, asked) == []
    clock.advance(10)
    assert parking.due(["api"]) == [BUCKET]
    assert take_due(parking, asked) == [("a", 0)]


def test_changed_limit_makes_its_backlogs_due_at_a_bounded_rate(
    frozen: Limiter, parking: Backlog, clock: Clock
) -> None:
    limit = Limit("1/h", name="api", key="{tenant}")

    def demands(number: int) -> list[LimitRequest]:
        return [LimitRequest(limit, "api", f"t{index}") for index in range(number)]

    def looked(number: int) -> None:
        waiting = demands(number)
        while waiting:
            waiting = waiting[len(parking.take_due(waiting)) :]

    for asked in demands(200):
        frozen._asker.ask((asked,))
        park(parking, "a", asked=asked)
    looked(200)
    assert wake(parking, demands(1)[0]) == 1
    assert parking.due(["api"]) == [], "nothing has changed"
    clock.advance(1)
    frozen.set_rate("api", "2/h", force=True)
    assert wake(parking, demands(1)[0]) == 1
    assert len(parking.due(["api"])) == READ_AT_ONCE, "all of them, so many at a time"
    looked(200)
    assert parking.due(["api"]) == []
    for asked in demands(1200)[200:]:
        frozen._asker.ask((asked,))
        park(parking, "a", asked=asked)
    looked(1200)
    since, _ = parking.wake(demands(1)[0], clock.us)
    clock.advance(1)
    frozen.set_rate("api", "3/h", force=True)
    assert wake(parking, demands(1)[0], since) == -(-1200 // SCANNED_AT_ONCE), "so many a script"
    assert wake(parking, demands(1)[0], since) == 1, "by whichever worker"
    assert len(parking.due(["api"])) <= 1
    seen = set()
    for _ in range(24):
        clock.advance(0.1)
        due = parking.due(["api"])
        assert 45 <= len(due) <= 55, "500 a second"
        seen.update(due)
        while due:
            due = due[len(parking.take_due([LimitRequest(limit, *bucket) for bucket in due], due=True)) :]
    assert len(seen) == 1200


def test_changed_code_makes_the_backlog_due(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    """A worker of the next deploy has another rate, and one of the deploy before is still about."""
    old, new = demand("1/h"), demand("1/m")
    closed(frozen, parking, old)
    clock.advance(1)
    assert wake(parking, old) == 1
    assert parking.due(["api"]) == []
    assert wake(parking, new) == 1
    assert parking.due(["api"]) == [BUCKET]
    (looked,) = parking.take_due([old])  # by the old one, which sees it far away
    assert looked.another
    (looked,) = parking.take_due([new])
    assert looked.another
    (looked,) = parking.take_due([new])
    assert not looked.another


TOKENS = Limit("1/h", name="tokens", key="{model}", rates={"a": "2/h", "b": "3/h"})


@pytest.mark.parametrize(
    "limit", [TOKENS, replace(TOKENS, fair="{tenant}"), replace(TOKENS, fair="{t}", weights={"x": 2})]
)
def test_keys_whose_rates_differ_in_the_code_are_one_code(frozen: Limiter, parking: Backlog, limit: Limit) -> None:
    demands = [LimitRequest(limit_of_key(limit, key), "tokens", key, share=limit.fair and "x") for key in "abc"]
    for asked in demands:
        frozen._asker.ask([asked])
        if limit.fair is None:
            park(parking, "id", asked=asked)

    def another() -> list[bool]:
        return [parking.take_due([asked])[0].another for asked in demands]

    another()
    assert another() == [False] * 3
    for _ in range(2):
        parking.wake(LimitRequest(limit, "tokens"), 0)
        assert another() == [False] * 3
    demands[0] = LimitRequest(limit_of_key(replace(limit, rates={"a": "5/h"}), "a"), "tokens", "a")
    assert another()[0], "the code has changed"


def test_backlog_is_due_when_a_cheaper_task_becomes_first(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    limit = Limit("10/h", burst=10, name="api")
    frozen._asker.ask((LimitRequest(limit, "api", "", 10),))
    park(parking, "dear", asked=LimitRequest(limit, "api", "", 10))
    park(parking, "cheap", asked=LimitRequest(limit, "api", "", 1))
    assert take_due(parking, LimitRequest(limit, "api")) == []
    clock.set(START + 360_000_000)
    assert parking.due(["api"]) == []
    parking.contents.remove(BUCKET, ["dear"], purge=True)
    assert parking.due(["api"]) == [BUCKET]
    assert take_due(parking, LimitRequest(limit, "api")) == [("cheap", 0)]
