"""The part of a burst that is reserved for high priorities: promises, and traces against the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import ImpossibleRequest, Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest, with_priority
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import START, Clock
from tests.examples import examples

from .frozen import FROZEN_STORE, us
from .mixed_world import Act, MixedWorld, Play

SECOND = 1_000_000
#: A burst of ten, of which two are for priority 0 alone and three more for priority 3 and before.
LIMIT = Limit("10/s", burst=10, name="api", priority_reserve={0: 0.2, 3: 0.3})

LIMITS = [
    LIMIT,
    Limit("3/s", burst=4, name="api", priority_reserve={0: 0.5}),
    Limit("100/s", burst=7, name="api", priority_reserve={1: 0.15, 5: 0.3}),
    Limit("1000/s", burst=50, name="api", priority_reserve={2: 0.9}),
    Limit("7/10s", burst=3, name="api", priority_reserve={0: 0.34}),
]
VERBS = ("acquire",) * 6 + ("peek", "forget", "reserve", "settle", "cancel")
STORED = ["5/s", "20/s", "11/10s", "1000/s"]


def of(priority: int, cost: int = 1, limit: Limit = LIMIT) -> tuple[LimitRequest, ...]:
    """What a call of that priority asks, at a broker where 0 is the highest."""
    return with_priority((LimitRequest(limit, limit.name or "", "", cost),), priority, lowest_first=True)


# -- Against the model -------------------------------------------------------------------------------------------------


@st.composite
def acts(draw: st.DrawFn, *, back: bool = False, several: bool = False, verbs: Sequence[str] = VERBS) -> list[Act]:
    limit = draw(st.sampled_from(LIMITS))
    others = [Limit("20/s", burst=5, name="other"), Limit("5/s", name="other"), replace(limit, name="other")]
    other = draw(st.sampled_from(others))
    interval = int(1e6 * limit.interval)
    pause = st.none() | st.sampled_from([0, 0, 0, 1, interval, interval + 1]) | st.integers(0, 3 * interval)
    if back:
        pause |= st.integers(-2 * SECOND, 0)

    @st.composite
    def act(draw: st.DrawFn) -> Act:
        priority, cost = draw(st.sampled_from([0, 1, 2, 3, 5, 9])), draw(st.sampled_from([1, 1, 1, 2, limit.burst]))
        verb = draw(st.sampled_from(verbs))
        demands: tuple[LimitRequest, ...] = (LimitRequest(limit, "api", "", cost),)
        if several and draw(st.booleans()):
            demands = (*demands, LimitRequest(other, "other"))
        horizons = st.sampled_from([0, 0, 0, interval, -(10**12)])
        return Act(
            verb=verb,
            after=draw(pause),
            demands=with_priority(demands, priority, lowest_first=True),
            id=draw(st.sampled_from("rst" if verb == "reserve" else ["", *"abcdef"])),
            horizon=draw(horizons),
            claim=draw(st.sampled_from([0, 10**15, 10**15, interval])),
            which=draw(st.integers(0, 3)),
            share=draw(st.integers(0, 6)),
        )

    return draw(st.lists(act(), min_size=1, max_size=40))


def follow(world: MixedWorld, trace: list[Act], change: Callable[[Limit], None] = lambda limit: None) -> None:
    """``change``: what happens to the limit before each call."""
    play = Play(world)
    for number, act in enumerate(trace):
        change(act.demands[0].limit)  # type: ignore[arg-type]
        lua, model = play.do(act)
        assert lua == model, f"step {number}: {act}: {lua} is not {model}"


@given(trace=acts(several=True))
@examples(150)
def test_beside_another_limit_matches_the_model(world: MixedWorld, trace: list[Act]) -> None:
    follow(world, trace)


@given(trace=acts(back=True))
@examples(100)
def test_clock_steps_back_match_the_model(world: MixedWorld, trace: list[Act]) -> None:
    follow(world, trace)


@given(trace=acts(several=True, verbs=(*["acquire"] * 8, "peek", "forget", "reserve")), data=st.data())
@examples(150)
def test_changing_rates_match_the_model(world: MixedWorld, trace: list[Act], data: st.DataObject) -> None:
    def change(limit: Limit) -> None:
        what = data.draw(st.sampled_from([""] * 6 + ["rate", "unset", "pause"]))
        if what == "rate":
            size = data.draw(st.sampled_from([limit.burst, limit.burst + 3, 60]))
            world.store_limit(Limit(data.draw(st.sampled_from(STORED)), burst=size, name="api"), "api")
        elif what == "unset":
            world.store_limit(None, "api")
        elif what == "pause":
            world.pause("api", data.draw(st.integers(0, SECOND)))

    follow(world, trace, change)


# -- What it promises --------------------------------------------------------------------------------------------------


class Calls:
    """Calls on a clock that stands still between them."""

    def __init__(self, limiter: Limiter, clock: Clock, limit: Limit = LIMIT) -> None:
        self.limiter, self.clock, self.limit = limiter, clock, limit
        self.granted: list[tuple[int, int]] = []

    def ask(self, priority: int, cost: int = 1, id: str = "", claim: float = 0.0) -> tuple[bool, int]:
        decision = self.limiter._asker.ask(of(priority, cost, self.limit), id=id, claim=claim)
        if decision.allowed:
            self.granted.append((decision._granted_at, cost))
        return decision.allowed, us(decision.retry_after)

    def assert_law_1(self) -> None:
        """No more than the burst and the rate in any interval."""
        interval = self.limit.parsed.period_us / Fraction(self.limit.parsed.count)
        full = Fraction(0)
        for at, cost in sorted(self.granted):
            full = max(full, Fraction(at)) + cost * interval
            assert full - self.limit.burst * interval <= at


@pytest.fixture
def calls(server: EmbeddedServer, clock: Clock) -> Iterator[Calls]:
    with redis.Redis.from_url(server.url) as client:
        yield Calls(Limiter(client, lowest_first=True, replace_includes={"now": FROZEN_STORE}), clock)


@pytest.mark.parametrize(("priority", "most"), [(0, 10), (1, 8), (3, 8), (4, 5), (9, 5)])
def test_call_leaves_the_reserve_to_higher_priorities(calls: Calls, priority: int, most: int) -> None:
    assert [calls.ask(priority)[0] for _ in range(12)] == [True] * most + [False] * (12 - most)
    assert [calls.ask(0)[0] for _ in range(12 - most)] == [True] * (10 - most) + [False] * 2
    calls.assert_law_1()


@pytest.mark.rows(2)
@pytest.mark.parametrize("priority", [0, 3, 9])
def test_single_priority_uses_the_whole_rate(calls: Calls, clock: Clock, priority: int) -> None:
    """Over a long run, asking when it was told to."""
    while clock.us < START + 200 * SECOND:
        allowed, wait = calls.ask(priority, id="waits", claim=1e6)
        if not allowed:
            clock.set(clock.us + wait)
    assert len(calls.granted) >= 10 * 200
    calls.assert_law_1()


def test_low_priority_slots_do_not_pile_up(calls: Calls, clock: Clock) -> None:
    """As many are told to come within a second as go in it, what the important take included; each asks a few times."""
    while calls.ask(9)[0]:
        pass
    waiting: dict[str, int] = {}
    asked: dict[str, int] = {}
    done: list[str] = []
    for step in range(500):
        if step % 10 == 0:
            assert calls.ask(0)[0], "half of the rate"
        for id in sorted([id for id, at in waiting.items() if at <= clock.us], key=lambda id: (waiting[id], int(id))):
            asked[id] += 1
            allowed, wait = calls.ask(9, id=id, claim=1e6)
            waiting[id] = clock.us + wait
            if allowed:
                del waiting[id]
                done.append(id)
        while True:
            id = str(len(asked))
            allowed, wait = calls.ask(9, id=id, claim=1.0)
            if allowed or wait > SECOND:
                break
            asked[id], waiting[id] = 0, clock.us + wait
        assert len(waiting) <= 11
        clock.set(clock.us + SECOND // 50)
    assert len(done) >= 10 * 5 - 11
    assert done == sorted(done, key=int), "first come, first served"
    assert max(asked.values()) <= 8
    calls.assert_law_1()


def test_reserve_applies_to_a_stored_rate(calls: Calls, store: redis.Redis) -> None:
    calls.limiter.set_rate("api", Limit("10/s", burst=20), force=True)
    assert [calls.ask(9)[0] for _ in range(11)] == [True] * 10 + [False]
    assert [calls.ask(0)[0] for _ in range(11)] == [True] * 10 + [False]
    calls.limiter.set_rate("api", Limit("10/s", burst=1), force=True)
    calls.limiter.reset(LIMIT, force=True)
    assert calls.ask(9)[0], "none is impossible"
    with pytest.raises(ImpossibleRequest):
        calls.ask(9, cost=2)
    calls.limiter.set_rate("api", Limit("10/s", algorithm="sliding_window"), force=True)
    calls.limiter.reset(LIMIT, force=True)
    assert calls.ask(0)[0], "sets nothing aside"


def test_changed_or_removed_reserve_keeps_the_bucket(calls: Calls, store: redis.Redis) -> None:
    while calls.ask(0)[0]:
        pass
    for i in range(3):
        calls.ask(0, id=f"now-{i}", claim=1e6)
    state = store.get("ratelimit:v1:{api}::state")
    assert " 0=" in state
    plain = replace(LIMIT, priority_reserve=None)
    assert not calls.limiter._asker.ask(of(0, 1, plain), id="old", claim=1e6).allowed
    assert " 0=" not in store.get("ratelimit:v1:{api}::state")
    halved = replace(LIMIT, priority_reserve={0: 0.5})
    assert not calls.ask(0)[0]
    assert not calls.limiter._asker.ask(of(0, 1, halved)).allowed


@given(trace=acts())
@examples(60)
def test_law_1_holds_and_the_reserve_is_available(world: MixedWorld, trace: list[Act]) -> None:
    """Whatever others ask, an important call that comes anew finds what they have to leave."""
    limit = trace[0].demands[0].limit
    assert isinstance(limit, Limit)
    plain = [act for act in trace if act.verb not in ("settle", "cancel") and act.horizon <= 0]
    follow(world, [replace(act, demands=of(9, act.demands[0].cost, limit)) for act in plain])
    left = limit.priority_reserve.most * limit.burst // 10**6
    dear = max([act.demands[0].cost for act in trace])
    for _ in range(min(left, limit.burst - dear)):
        assert world.acquire(of(0, 1, limit))[0].allowed
