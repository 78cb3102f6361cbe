"""The line of slots: who was refused comes back at a time of its own, before newcomers, and nothing is wasted."""

from __future__ import annotations

from math import ceil

import pytest
import redis

from celery_ratelimit import Decision, Limiter
from celery_ratelimit.limiter.blocking_acquire import is_beyond
from celery_ratelimit.operations.bucket_status import bucket_statuses
from tests.conftest import START, Clock

from .frozen import answer, demand, us

SECOND = 1_000_000
SLOT_ONLY = -1e6
SLOTS = "ratelimit:v1:{api}::slots"


class Line:
    """One limit of 1/s, burst 1 unless said otherwise, whose permit was taken at START."""

    def __init__(self, limiter: Limiter, clock: Clock, rate: str = "1/s", burst: int = 1) -> None:
        self.limiter, self.clock = limiter, clock
        self.wanted = [demand(rate, burst=burst)]
        assert limiter._asker.ask([demand(rate, burst=burst, cost=burst)]).allowed

    def ask(self, id: str = "", at: float = 0.0, claim: float = 1e6, horizon: float = 0.0) -> Decision:
        self.clock.set(START + us(at))
        return self.limiter._asker.ask(self.wanted, id=id, claim=claim, horizon=horizon)

    def asks(self, id: str = "", at: float = 0.0, claim: float = 1e6, horizon: float = 0.0) -> tuple[bool, float]:
        decision = self.ask(id, at, claim, horizon)
        return decision.allowed, decision.retry_after


@pytest.fixture
def line(frozen: Limiter, clock: Clock) -> Line:
    return Line(frozen, clock)


def test_slots_are_one_interval_apart_in_the_order_of_asking(line: Line) -> None:
    assert [line.asks(id) for id in "abcd"] == [(False, 1.0), (False, 2.0), (False, 3.0), (False, 4.0)]


def test_the_same_id_keeps_its_slot(line: Line) -> None:
    for id in "abc":
        line.ask(id)
    assert line.asks("b", at=0.5) == (False, 1.5)
    assert line.asks("b", at=0.75) == (False, 1.25)
    assert line.asks("d", at=0.75) == (False, 3.25)


def test_newcomers_go_behind_those_who_wait(line: Line) -> None:
    line.ask("a")
    # The permit of 1.0 is there, and it is the slot of `a`.
    assert line.asks("", at=1.0) == (False, 1.0)
    assert line.asks("b", at=1.0) == (False, 1.0)
    assert line.asks("a", at=1.0) == (True, 0.0)
    assert line.asks("", at=1.0) == (False, 2.0)


def test_a_newcomer_may_not_take_ahead_what_others_wait_for(line: Line) -> None:
    line.ask("a")
    assert line.asks("", horizon=10.0) == (False, 2.0)
    assert line.asks("a", horizon=10.0) == (True, 1.0)


@pytest.mark.parametrize("rate", ["3/s", "7/m", "100/s", "70000/s", "99999/s"])
@pytest.mark.parametrize("burst", [1, 3])
def test_everyone_who_returns_at_its_slot_is_let_in_at_once(
    frozen: Limiter, clock: Clock, rate: str, burst: int
) -> None:
    line = Line(frozen, clock, rate, burst)
    slots = {f"id{n}": line.ask(f"id{n}").retry_after for n in range(40)}
    step = ceil(line.wanted[0].limit.parsed.interval * SECOND)
    for n, (id, slot) in enumerate(slots.items(), start=1):
        assert us(slot) <= n * step, "slots are whole microseconds: nobody stands more than that too far away"
        assert line.asks(id, at=slot) == (True, 0.0)


def test_a_slot_allows_for_the_fraction_that_the_one_before_it_leaves(frozen: Limiter, clock: Clock) -> None:
    line = Line(frozen, clock, "3/s", burst=4)
    line.wanted = [demand("3/s", burst=4, cost=4)]
    line.ask("a")
    assert line.asks("b", at=1.333334) == (False, 1.333334)
    assert line.asks("b", at=1.333335) == (True, 0.0), "before its slot, for a has not come"
    first, second = line.ask("b", at=1.333335).retry_after, line.ask("c", at=1.333335).retry_after
    line.limiter._asker.forget(line.wanted, id="a")
    assert line.asks("b", at=1.333335 + first) == (True, 0.0)
    assert line.asks("c", at=1.333335 + second) == (True, 0.0)


def test_a_refused_peek_of_a_newcomer_tells_the_end_of_the_line(line: Line) -> None:
    line.ask("a")
    line.ask("b")
    assert answer(line.limiter.peek(line.wanted[0].limit)) == (False, 3 * SECOND)


@pytest.mark.parametrize(("before", "after"), [("10/s", "4/s"), ("4/s", "10/s"), ("1/h", "100/s"), ("3/s", "7/m")])
def test_a_look_at_a_line_under_another_rate_tells_what_a_newcomer_is_told(
    frozen: Limiter, clock: Clock, store: redis.Redis, before: str, after: str
) -> None:
    """The slots stay where they are, and are read as the other rate moves them."""
    old, new = [demand(before)], [demand(after)]
    frozen._asker.ask([*old, demand("1/h", name="slow")])
    for id in "abc":
        frozen._asker.ask(old, id=id, claim=1e6)
    frozen._asker.ask([*old, demand("1/h", name="slow")], id="gap", claim=1e6)
    clock.advance(0.03)
    slots = store.zrange(SLOTS, 0, -1, withscores=True)
    told = frozen.peek(new[0].limit)
    (status,) = frozen._asker.drive(bucket_statuses(frozen._asker.core, new, [None]))
    assert store.zrange(SLOTS, 0, -1, withscores=True) == slots
    assert answer(told) == answer(frozen._asker.ask(new, id="new", claim=0.0))
    assert us(status.retry_after) == us(told.retry_after)


@pytest.mark.parametrize("claim", [0.009, 0.0099995, 0.01, 0.0100004, 0.01000051, 0.011])
def test_a_slot_is_kept_where_a_waiting_call_waits_for_it(
    frozen: Limiter, clock: Clock, store: redis.Redis, claim: float
) -> None:
    wanted = [demand("100/s")]
    frozen._asker.ask(wanted)
    refused = frozen._asker.ask(wanted, id="a", claim=claim)
    assert (store.zscore(SLOTS, "a") is None) == is_beyond(refused, claim)


def test_an_overdue_slot_may_be_taken_so_that_nothing_is_wasted(line: Line) -> None:
    for id in "abcde":
        line.ask(id)
    assert line.asks("", at=2.0) == (False, 4.0), "a is one second late to the microsecond: its slot is kept for it"
    assert line.asks("", at=2.000001) == (True, 0.0)
    assert line.asks("", at=2.000001, horizon=2.0) == (False, 3.999999), "one slot is taken once"
    assert line.asks("a", at=3.0) == (False, 3.0), "a comes after its slot was taken: it goes to the end"


def test_a_dead_worker_costs_its_slot_for_a_second_at_most(frozen: Limiter, clock: Clock) -> None:
    line = Line(frozen, clock, "100/s")
    for n in range(500):
        line.ask(f"dead{n}")
    # Nobody of the 500 ever comes back. A newcomer that asks every interval gets in from the second second on.
    granted = [at for at in range(1, 400) if line.ask("", at=at / 100).allowed]
    assert granted == list(range(102, 400)), "first slot at 10 ms, overdue after 1.01 s"


def test_those_who_left_after_being_served_are_no_line(frozen: Limiter, clock: Clock) -> None:
    line = Line(frozen, clock, burst=5)
    assert line.asks("a") == (False, 1.0)
    assert line.asks("a", at=1.0) == (True, 0.0)
    # Three permits have come back since, and nobody waits.
    assert [line.asks("", at=4.0) for _ in range(4)] == [(True, 0.0), (True, 0.0), (True, 0.0), (False, 1.0)]


def test_a_refusal_never_says_to_wait_no_time(frozen: Limiter, clock: Clock) -> None:
    line = Line(frozen, clock, burst=2)
    line.ask("a")
    # `a` is due since 1.0 and has not come yet. A second permit is there for whoever asks, but `a` goes first: for
    # as long as its slot is not overdue.
    assert line.asks("", at=2.0) == (False, 0.000001)
    assert answer(line.limiter.peek(line.wanted[0].limit)) == (False, 1)
    assert line.asks("", at=2.000001) == (True, 0.0)
    assert line.asks("a", at=2.000001) == (True, 0.0)


def test_a_slot_further_away_than_the_claim_is_not_kept(line: Line) -> None:
    assert line.asks("a", claim=0.999999) == (False, 1.0)
    assert line.asks("b", claim=1.0) == (False, 1.0), "a kept none"
    assert line.asks("c", claim=1.0) == (False, 2.0)
    assert line.asks("d", claim=2.0) == (False, 2.0), "c kept none"


def test_without_an_id_no_slot_is_kept(line: Line, store: redis.Redis) -> None:
    assert [line.asks("") for _ in range(3)] == [(False, 1.0)] * 3
    assert not store.exists(SLOTS)


def test_a_horizon_takes_permits_ahead(frozen: Limiter, clock: Clock) -> None:
    line = Line(frozen, clock, "10/s")
    assert line.asks(horizon=0.25) == (True, 0.1)
    assert line.asks(horizon=0.25) == (True, 0.2)
    assert line.asks(horizon=0.25) == (False, 0.3)
    assert line.asks(horizon=0.25, at=0.05) == (True, 0.25)
    assert line.asks(at=0.3) == (False, 0.1), "0.3 was taken ahead"


def test_slot_only_reserves_and_never_grants(line: Line) -> None:
    assert line.asks("a", horizon=SLOT_ONLY) == (False, 1.0)
    assert line.asks("a", at=1.0, horizon=SLOT_ONLY)[0] is False


def test_slot_only_needs_no_slot_where_a_permit_can_be_had(line: Line, store: redis.Redis) -> None:
    refused = line.ask("a", at=5.0, horizon=SLOT_ONLY)
    assert (refused.allowed, refused.retry_after, refused.limited_by) == (False, 0.0, None)
    assert not store.exists(SLOTS)
    assert line.asks("", at=5.0) == (True, 0.0)
    assert line.asks("a", at=5.0, horizon=SLOT_ONLY) == (False, 1.0)


def test_slot_only_writes_nothing_to_buckets_never_seen_before(frozen: Limiter, store: redis.Redis) -> None:
    wanted = [demand("100/s", name="one"), demand("5/s", burst=3, name="two")]
    assert answer(frozen._asker.ask(wanted, id="a", horizon=SLOT_ONLY, claim=1e9)) == (False, 0)
    assert not list(store.scan_iter("ratelimit:*"))


def test_forget_leaves_the_line(line: Line, store: redis.Redis) -> None:
    line.ask("a")
    line.limiter._asker.forget(line.wanted, id="a")
    line.limiter._asker.forget(line.wanted, id="a")
    line.limiter._asker.forget(line.wanted, id="never seen")
    assert not store.exists(SLOTS)
    assert line.asks("", at=1.0) == (True, 0.0), "nobody waits: the permit is for whoever asks"


def test_a_forgotten_slot_between_others_is_free_for_newcomers(line: Line) -> None:
    for id in "abc":
        line.ask(id)
    line.limiter._asker.forget(line.wanted, id="a")
    assert line.asks("", at=1.0) == (True, 0.0), "the slot of a is nobody's"
    assert line.asks("b", at=2.0) == (True, 0.0)
    assert line.asks("c", at=3.0) == (True, 0.0)


def test_a_gap_too_narrow_by_a_part_of_a_microsecond_is_none(frozen: Limiter, clock: Clock) -> None:
    line = Line(frozen, clock, "3/s")
    line.ask("a")
    assert line.asks("b") == (False, 0.666668)
    line.limiter._asker.forget(line.wanted, id="a")
    # After a permit at 0.333336 the next is due at 0.666669 1/3, too late for the slot of b.
    assert line.ask("", at=0.333336).allowed is False
    assert line.ask("", at=0.333335).allowed is True


def test_an_id_that_was_let_in_gives_its_slot_back(line: Line, store: redis.Redis) -> None:
    line.ask("a")
    line.ask("b")
    assert line.ask("a", at=1.0).allowed
    assert store.zrange(SLOTS, 0, -1) == ["b"]
    assert line.asks("a", at=1.0) == (False, 2.0), "asked anew it is a newcomer"


def test_when_every_slot_has_passed_there_is_no_line(line: Line, store: redis.Redis) -> None:
    line.ask("a")
    line.ask("b")
    assert line.asks("", at=3.0) == (True, 0.0)
    assert not store.exists(SLOTS)


def test_a_clock_that_steps_back_voids_the_slots_and_keeps_the_permits(line: Line) -> None:
    for id in "abc":
        line.ask(id, at=0.5)
    # Half a second was left to wait when the clock was seen last.
    assert line.asks("c", at=-100.0) == (False, 0.5)
    assert line.asks("a", at=-100.0) == (False, 1.5)
    assert line.asks("c", at=-99.5) == (True, 0.0)


def test_a_clock_that_steps_back_a_little_keeps_the_slots(line: Line) -> None:
    for id in "abc":
        line.ask(id, at=0.5)
    assert line.asks("c", at=0.4) == (False, 2.6)
    assert line.asks("a", at=0.4) == (False, 0.6)
    assert line.asks("", at=0.999999) == (False, 3.000001)
    assert line.asks("a", at=1.0) == (True, 0.0)


def test_a_step_back_frees_limits_that_did_not_decide_too(frozen: Limiter, clock: Clock) -> None:
    short, long = demand("1/s", name="short"), demand("1/m", name="long")
    assert frozen._asker.ask([short, long]).allowed
    clock.set(START - 3600 * SECOND)
    assert answer(frozen._asker.ask([short, long])) == (False, 60 * SECOND)
    clock.set(clock.us + SECOND)
    assert answer(frozen._asker.ask([short])) == (True, 0)
