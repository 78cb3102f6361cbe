"""Several limits in one step: all or none (law 6), committed at the joint time."""

from __future__ import annotations

from celery_ratelimit import Limiter
from celery_ratelimit.limiter.limit_request import each_bucket_once
from tests.conftest import START, Clock

from .frozen import answer, demand


def test_law_6_all_or_none_and_limited_by_names_the_refusing_limit(frozen: Limiter, clock: Clock) -> None:
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


def test_each_key_has_its_own_bucket(frozen: Limiter) -> None:
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


def test_bucket_requested_twice_pays_the_larger_cost(frozen: Limiter) -> None:
    """In any window no more is granted than the law allows."""
    dear, cheap = demand("1/s", burst=4, cost=3), demand("1/s", burst=4, cost=1)
    for both in ([dear, cheap], [cheap, dear]):
        assert frozen._asker.ask(each_bucket_once(both)).allowed
        assert frozen.peek(cheap.limit).remaining <= 1
        frozen.reset(cheap.limit)
