"""Several limits in one step: all or none (law 6), committed at the joint time."""

from __future__ import annotations

import redis

from celery_ratelimit import Limiter
from celery_ratelimit.limiter.limit_request import each_bucket_once
from tests.conftest import START, Clock

from .frozen import answer, demand


def test_all_or_none_and_binding_names_who_said_no(frozen: Limiter, clock: Clock) -> None:
    tight, loose = demand("10/s", name="tight"), demand("10/s", burst=5, name="loose")
    rows = [
        # time in us, what is asked, allowed, wait in us, binding, permits left in each
        (0, (tight, loose), True, 0, None, (0, 4)),
        (0, (tight, loose), False, 100_000, "tight", (0, 4)),
        (0, (loose, tight), False, 100_000, "tight", (4, 0)),
        (0, (loose,), True, 0, None, (3,)),
        (0, (loose,), True, 0, None, (2,)),
        (0, (loose,), True, 0, None, (1,)),
        (0, (loose,), True, 0, None, (0,)),
        (50_000, (tight, loose), False, 50_000, "tight", (0, 0)),  # both say no, the first of the two decides
        (50_000, (loose, tight), False, 50_000, "loose", (0, 0)),
        (100_000, (loose,), True, 0, None, (0,)),
        (100_000, (tight, loose), False, 100_000, "loose", (1, 0)),
        (100_000, (tight,), True, 0, None, (0,)),
        (200_000, (tight, loose), True, 0, None, (0, 0)),
    ]
    for number, (at, asked, allowed, wait, binding, left) in enumerate(rows):
        clock.set(START + at)
        got = frozen._asker.ask(asked)
        seen = (*answer(got), got.limited_by, tuple(state.remaining for state in got.states))
        assert seen == (allowed, wait, binding, left), f"row {number}"
        assert [state.name for state in got.states] == [each.name for each in asked]


def test_the_limit_with_the_longest_wait_binds(frozen: Limiter) -> None:
    limits = [demand("10/s", name="short"), demand("1/m", name="long"), demand("1/s", name="middle")]
    assert frozen._asker.ask(limits).allowed
    refused = frozen._asker.ask(limits)
    assert (refused.limited_by, refused.retry_after, refused.reset_after) == ("long", 60.0, 60.0)


def test_a_refusal_leaves_no_trace_in_any_limit(frozen: Limiter, store: redis.Redis) -> None:
    closed, first, last = demand("1/s", name="closed"), demand("1/s", name="first"), demand("1/s", name="last")
    frozen._asker.ask([closed])
    before = {key: store.get(key) for key in store.scan_iter("ratelimit:*")}
    for _ in range(5):
        assert not frozen._asker.ask([first, closed, last]).allowed
    assert {key: store.get(key) for key in store.scan_iter("ratelimit:*")} == before
    assert frozen._asker.ask([first, last]).allowed


def test_only_the_limit_that_said_no_keeps_a_slot(frozen: Limiter, store: redis.Redis) -> None:
    closed, open_ = demand("1/s", name="closed"), demand("1/s", name="open")
    frozen._asker.ask([closed])
    assert not frozen._asker.ask([open_, closed], id="waiting", claim=10).allowed
    assert store.zrange("ratelimit:v1:{closed}::slots", 0, -1) == ["waiting"]
    assert frozen._asker.ask([open_]).allowed, "a line where nothing is in the way"


def test_every_limit_is_committed_at_the_joint_time(frozen: Limiter, clock: Clock) -> None:
    slow, fast = demand("1/s", name="slow"), demand("10/s", name="fast")
    frozen._asker.ask([slow])
    clock.set(START + 400_000)
    ahead = frozen._asker.ask([slow, fast], horizon=1.0)
    assert answer(ahead) == (True, 600_000)
    # The permit of the fast limit is for START + 1.0 s too: the next one is 0.1 s after it, not after now.
    assert answer(frozen._asker.ask([fast])) == (False, 700_000)
    clock.set(START + 1_100_000)
    assert frozen._asker.ask([fast]).allowed


def test_each_key_of_a_limit_has_a_bucket_of_its_own(frozen: Limiter) -> None:
    ann, ben = demand("1/s", key="ann"), demand("1/s", key="ben")
    assert frozen._asker.ask([ann]).allowed
    assert frozen._asker.ask([ben]).allowed
    refused = frozen._asker.ask([ann])
    assert (refused.limited_by, refused.states[0].key) == ("api", "ann")


def test_costs_may_differ_by_limit(frozen: Limiter) -> None:
    calls, tokens = demand("10/s", burst=2, name="calls"), demand("100/s", burst=100, cost=70, name="tokens")
    assert [state.remaining for state in frozen._asker.ask([calls, tokens]).states] == [1, 30]
    refused = frozen._asker.ask([calls, tokens])
    assert (refused.limited_by, refused.retry_after) == ("tokens", 0.4)
    assert [state.remaining for state in refused.states] == [1, 30]


def test_a_bucket_named_twice_is_not_paid_less_than_its_dearest_demand(frozen: Limiter) -> None:
    """Over any window no more than the law allows, whoever asks and however."""
    dear, cheap = demand("1/s", burst=4, cost=3), demand("1/s", burst=4, cost=1)
    for both in ([dear, cheap], [cheap, dear]):
        assert frozen._asker.ask(each_bucket_once(both)).allowed
        assert frozen.peek(cheap.limit).remaining <= 1
        frozen.reset(cheap.limit)
