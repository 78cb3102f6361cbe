"""The line of slots: a refused request returns at its own time, before newcomers, and nothing is wasted."""

from __future__ import annotations

from itertools import pairwise

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import Decision, Limiter
from celery_ratelimit.limiter.blocking_acquire import is_beyond
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.operations.bucket_status import bucket_statuses
from tests.asking import settle_demands
from tests.conftest import START, Clock
from tests.examples import examples

from .frozen import answer, demand, us
from .mixed_world import MixedWorld

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


def test_waiting_requests_keep_their_slots_and_go_before_newcomers(line: Line) -> None:
    assert [line.asks(id) for id in "abc"] == [(False, 1.0), (False, 2.0), (False, 3.0)]
    assert line.asks("", horizon=10.0) == (False, 4.0), "nor can a newcomer take ahead"
    assert line.asks("b", at=0.5) == (False, 1.5), "it keeps its slot"
    assert line.asks("", at=1.0) == (False, 3.0), "the permit that is there is of the slot of a"
    assert line.asks("d", at=1.0) == (False, 3.0)
    assert line.asks("a", at=1.0) == (True, 0.0)
    assert line.asks("b", at=1.0, horizon=10.0) == (True, 1.0)


@pytest.mark.parametrize(("before", "after"), [("10/s", "4/s"), ("4/s", "10/s"), ("1/h", "100/s"), ("3/s", "7/m")])
def test_peek_with_changed_code_answers_like_an_acquire(
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


@pytest.mark.parametrize("others", [[], [demand("1/s", burst=9, name="open")]], ids=["one limit", "two"])
@pytest.mark.parametrize("claim", [0.009, 0.0099995, 0.01, 0.0100004, 0.01000051, 0.011])
def test_slot_is_kept_exactly_when_the_caller_waits(
    frozen: Limiter, store: redis.Redis, claim: float, others: list[LimitRequest]
) -> None:
    wanted = [demand("100/s"), *others]
    frozen._asker.ask(wanted)
    refused = frozen._asker.ask(wanted, id="a", claim=claim)
    assert (store.zscore(SLOTS, "a") is None) == is_beyond(refused, claim)


def test_overdue_slot_is_given_to_a_newcomer(line: Line) -> None:
    for id in "abcde":
        line.ask(id)
    assert line.asks("", at=2.0) == (False, 4.0), "a is one second late to the microsecond: its slot is kept for it"
    assert line.asks("", at=2.000001) == (True, 0.0)
    assert line.asks("", at=2.000001, horizon=2.0) == (False, 3.999999), "one slot is taken once"
    assert line.asks("a", at=3.0) == (False, 3.0), "a comes after its slot was taken: it goes to the end"


def test_slots_of_dead_requests_are_lost_for_a_second_at_most(frozen: Limiter, clock: Clock) -> None:
    line = Line(frozen, clock, "100/s")
    for n in range(500):
        line.ask(f"dead{n}")
    # None of the 500 ever comes back. A newcomer that asks every interval gets in from the second second on.
    granted = [at for at in range(1, 400) if line.ask("", at=at / 100).allowed]
    assert granted == list(range(102, 400)), "first slot at 10 ms, overdue after 1.01 s"


def test_slot_only_request_writes_nothing_to_unused_buckets(frozen: Limiter, store: redis.Redis) -> None:
    wanted = [demand("100/s", name="one"), demand("5/s", burst=3, name="two")]
    assert answer(frozen._asker.ask(wanted, id="a", horizon=SLOT_ONLY, claim=1e9)) == (False, 0)
    assert not list(store.scan_iter("ratelimit:*"))


def test_withdrawn_request_leaves_no_slot(line: Line, store: redis.Redis) -> None:
    line.ask("a")
    line.limiter._asker.forget(line.wanted, id="a")
    line.limiter._asker.forget(line.wanted, id="a")
    line.limiter._asker.forget(line.wanted, id="never seen")
    assert not store.exists(SLOTS)
    assert line.asks("", at=1.0) == (True, 0.0), "no request waits: the permit is for any newcomer"


def test_gap_narrower_than_a_permit_by_a_fraction_is_not_used(frozen: Limiter, clock: Clock) -> None:
    line = Line(frozen, clock, "3/s")
    line.ask("a")
    assert line.asks("b") == (False, 0.666668)
    line.limiter._asker.forget(line.wanted, id="a")
    # After a permit at 0.333336 the next is due at 0.666669 1/3, too late for the slot of b.
    assert line.ask("", at=0.333336).allowed is False
    assert line.ask("", at=0.333335).allowed is True


@pytest.mark.parametrize(
    ("rate", "burst", "taken", "slow", "joint", "free"),
    [
        ("1/s", 1, 1, "1/2s", 2.0, 1.0),
        ("3/s", 2, 2, "1/s", 1.0, 0.333334),  # the gap begins after two thirds of a second
        ("3/s", 1, 1, "1/0.666667s", 0.666667, 1.000001),  # a third of a microsecond is missing
    ],
)
def test_gap_is_used_if_a_permit_fits(
    frozen: Limiter, rate: str, burst: int, taken: int, slow: str, joint: float, free: float
) -> None:
    both, alone = [demand(rate, burst=burst), demand(slow, name="slow")], [demand(rate, burst=burst)]
    assert frozen._asker.ask([demand(rate, burst=burst, cost=taken), both[1]]).allowed
    assert answer(frozen._asker.ask(both, id="joint", claim=1e6)) == (False, us(joint))
    assert answer(frozen._asker.ask(alone, id="a", claim=1e6)) == (False, us(free))


@pytest.mark.parametrize(("cost", "free"), [(2, 3.0), (3, 7.0)])
def test_gap_is_used_if_the_cost_fits(frozen: Limiter, cost: int, free: float) -> None:
    both = [demand("1/s", burst=3), demand("1/3s", name="slow")]
    assert frozen._asker.ask([demand("1/s", burst=3, cost=3), both[1]]).allowed
    assert [answer(frozen._asker.ask(both, id=id, claim=1e6)) for id in "ab"] == [(False, us(3.0)), (False, us(6.0))]
    wanted = [demand("1/s", burst=3, cost=cost)]
    assert answer(frozen._asker.ask(wanted, id="c", claim=1e6)) == (False, us(free)), "the gap lasts from 4 to 6"


def test_no_gap_is_noted_where_none_is(line: Line, store: redis.Redis) -> None:
    same = [*line.wanted, demand("1/s", name="same")]
    assert line.limiter._asker.ask(same, id="a", claim=1e6).retry_after == 1.0
    assert store.zrange(SLOTS, 0, -1) == ["a"]


def test_late_request_notes_no_gap_over_the_slots_of_others(line: Line) -> None:
    slow = demand("1/10s", name="slow")
    assert line.limiter._asker.ask([slow]).allowed
    assert [line.asks(id) for id in "abc"] == [(False, 1.0), (False, 2.0), (False, 3.0)]
    alone, line.wanted = line.wanted, [*line.wanted, slow]
    assert line.asks("a", at=1.5) == (False, 9.0)
    line.wanted = alone
    assert line.asks("d", at=1.5) == (False, 10.0), "a permit now would make b wait"
    assert [line.asks("b", at=2.0), line.asks("c", at=3.0)] == [(True, 0.0), (True, 0.0)]


@pytest.mark.parametrize("order", [1, -1])
def test_newcomer_of_two_limits_asks_again_when_the_line_is_over(frozen: Limiter, clock: Clock, order: int) -> None:
    line = Line(frozen, clock, "10/s", burst=5)
    assert line.asks("a") == (False, 0.1)
    line.wanted = [*line.wanted, demand("1/s", burst=9, name="open")][::order]
    assert line.asks("", at=0.25) == (False, 0.35), "permits are there, and the first of them is for a"
    assert line.asks("", at=0.6) == (True, 0.0)


def test_line_that_has_passed_is_deleted_once(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
    line = Line(frozen, clock, "3/s")
    line.ask("a")
    assert line.ask("", at=0.7).allowed
    store.config_resetstat()
    assert line.ask("", at=1.1).allowed
    assert "cmdstat_del" not in store.info("commandstats")


def test_slot_to_come_stays_where_another_limit_is_asked_as_well(line: Line) -> None:
    """A parked task keeps the slot of one limit, and asks for all of its limits a moment before it."""
    assert [line.asks(id) for id in "ab"] == [(False, 1.0), (False, 2.0)]
    assert settle_demands(line.limiter, line.wanted, [2], id="used", granted_at=START), "one more than it took"
    line.wanted = [*line.wanted, demand("1/s", burst=9, name="open")]
    assert line.asks("b", at=1.9) == (False, 0.1)
    assert line.asks("b", at=2.0) == (True, 0.0), "the permit that a has missed"


def test_slot_of_now_is_given_up_where_another_request_is_due_first_in_another_limit(
    frozen: Limiter, clock: Clock
) -> None:
    """Else it is told to ask again a microsecond later, and is late then."""
    mine, other = demand("10/s", name="mine"), demand("10/s", name="other", burst=2)
    for wanted, ids in ((mine, ["first", "x", "a"]), (other, ["first", "second", "y"])):
        for id in ids:
            frozen._asker.ask([wanted], id=id, claim=1e6)
    clock.set(START + us(0.2))  # the slot of a
    refused = frozen._asker.ask([mine, other], id="a", claim=1e6)
    assert (refused.allowed, refused.retry_after) == (False, 0.1)


# -- Requests that find no permit at their slots: because of a pause, or as others used more than they took ------------


@given(
    rate=st.sampled_from(["1/s", "7/s", "10/s", "3 per 0.1 s", "1000/s"]),
    burst=st.integers(1, 3),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["come", "come", "come", "join", "pause", "use"]),
            st.integers(0, 9),
            st.sampled_from([0, 0, 0, 1, 5, 40, 150]),
        ),
        min_size=5,
        max_size=40,
    ),
)
@examples(300)
def test_late_requests_match_the_model(
    world: MixedWorld, rate: str, burst: int, steps: list[tuple[str, int, int]]
) -> None:
    world.begin()
    wanted = [demand(rate, burst=burst)]
    told: dict[str, int] = {}
    last = START
    for number, (verb, which, late) in enumerate(steps):
        lua: object = None
        model: object = None
        if verb in ("come", "join"):
            waiting = sorted(told, key=lambda id: told[id])
            id = waiting[which % len(waiting)] if waiting and verb == "come" else f"r{number}"
            if verb == "come" and waiting:
                world.set(max(world.model.now, told[id] + late * 10_000))
            lua, model = answer, _ = world.acquire(wanted, id, horizon=50_000 * (which % 2), claim=10**7)
            told.pop(id, None)
            if answer.allowed:
                last = answer.granted_at
            else:
                told[id] = world.model.now + answer.wait
        elif verb == "pause":
            world.pause("api", (late + 1) * 10_000)
        else:
            lua, model = world.settle(wanted, [1 + which], f"used{number}", last)
        assert lua == model, f"step {number}: {verb} {which} {late}"


@pytest.mark.parametrize("cause", ["pause", "use"])
def test_late_requests_keep_their_order(frozen: Limiter, clock: Clock, cause: str) -> None:
    """Nothing is wasted either: the permits lie one interval apart, from the first moment on."""
    wanted = [demand("10/s")]
    ask = frozen._asker.ask
    assert ask(wanted, id="first").allowed
    times = {id: START + us(ask(wanted, id=id, claim=60).retry_after) for id in "abcdef"}
    if cause == "pause":
        frozen.pause("api", 0.35, force=True)
    else:
        settle_demands(frozen, wanted, [4], id="first", granted_at=START)
    granted: dict[str, int] = {}
    while times:
        id = min(times, key=times.__getitem__)
        clock.set(times[id])
        decision = ask(wanted, id=id, claim=60)
        if decision.allowed:
            granted[id] = times.pop(id)
        else:
            times[id] += us(decision.retry_after)
    assert sorted(granted, key=granted.__getitem__) == list("abcdef")
    at = sorted(granted.values())
    assert {after - before for before, after in pairwise(at)} == {us(0.1)}
    assert at[0] == START + us(0.35 if cause == "pause" else 0.4)
