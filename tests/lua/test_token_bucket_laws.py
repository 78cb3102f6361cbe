"""The laws of the token bucket on random and on long traces."""

from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import given

from celery_ratelimit import Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.conftest import START, Clock
from tests.examples import examples

from .frozen import demand, us
from .mixed_world import Act, MixedWorld, Play
from .random_traces import bucket_acts
from .windows import Start, check_every_window


@given(trace=bucket_acts(back=True))
@examples(200)
def test_law_1_holds_when_the_clock_steps_back(world: MixedWorld, trace: list[Act]) -> None:
    play = Play(world)
    for act in trace:
        play.do(act)
    for limit in {each.name: each for act in trace for each in act.demands}.values():
        check_every_window(play.taken(limit.name), limit)


@pytest.mark.rows(5)
@pytest.mark.parametrize(
    ("rate", "burst", "seconds"),
    [
        ("1/d", 1, 86_400 * 300),
        ("7/m", 1, 10_000),
        ("0.5/s", 3, 3_000),
        ("3/s", 1, 500),
        ("100/s", 1, 10),
        ("999/s", 1, 1),
        ("70000/s", 2, 0.02),
        ("99999/s", 2, 0.01),
        ("100000/s", 1, 0.01),
        ("100000/s", 50, 0.01),
    ],
)
def test_law_2_greedy_caller_uses_the_rate(
    frozen: Limiter, clock: Clock, rate: str, burst: int, seconds: float
) -> None:
    wanted = [demand(rate, burst=burst)]
    granted = run_greedily(frozen, clock, wanted, us(seconds))
    full = wanted[0].limit.parsed.per_second * seconds
    assert 0.99 * full <= granted <= burst + full


def run_greedily(limiter: Limiter, clock: Clock, wanted: list[LimitRequest], duration: int) -> int:
    """Permits of a caller that asks again exactly when told to, for ``duration`` microseconds."""
    granted, end = 0, clock.us + duration
    while clock.us <= end:
        decision = limiter._asker.ask(wanted)
        granted += decision.allowed
        clock.set(clock.us + us(decision.retry_after))
    return granted


@pytest.mark.parametrize("rate", ["100/s", "3/s", "700/s"])
def test_laws_2_and_3_late_callers_waste_nothing_and_ask_about_once(frozen: Limiter, clock: Clock, rate: str) -> None:
    """A backlog asks at once; each caller returns a timer's jitter after its slot, and may be held two intervals."""
    wanted = [demand(rate)]
    interval = us(wanted[0].limit.parsed.interval)
    jitter = random.Random(7)
    backlog, calls, starts = 400, 0, []
    events = [(clock.us, number) for number in range(backlog)]
    heapq.heapify(events)
    while events:
        at, number = heapq.heappop(events)
        clock.set(max(at, clock.us))
        calls += 1
        decision = frozen._asker.ask(wanted, id=str(number), horizon=2 * interval / 1e6, claim=1e9)
        back = clock.us + us(decision.retry_after)
        if decision.allowed:
            starts.append(Start(back, 1))
        else:
            heapq.heappush(events, (back + jitter.randrange(0, interval // 2), number))
    check_every_window(starts, wanted[0])
    took = max(starts).at - START
    assert backlog * interval / took >= 0.99
    assert calls <= 2.05 * backlog
