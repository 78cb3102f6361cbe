"""Random traces of token buckets: from slow to fast rates, deep buckets, and the largest numbers that are exact."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import assume
from hypothesis import strategies as st

from celery_ratelimit.limiter.limit_request import LimitRequest

from .counted import STEP
from .frozen import demand
from .mixed_world import Act

#: From one a day to 100,000 a second; most intervals are not whole microseconds.
RATES = (
    *("1/d", "7/d", "11/h", "7/m", "1 per 2 minutes", "0.5/s", "1/s", "3/s", "7/10s", "10/s", "100/s", "101/s"),
    *("999/s", "30000/s", "70000/s", "99999/s", "100000/s"),
)


@st.composite
def bucket_acts(draw: st.DrawFn, back: bool) -> list[Act]:
    """A trace over one to three limits."""
    limits = [
        demand(draw(st.sampled_from(RATES)), burst=draw(st.integers(1, 5) | st.sampled_from([60, 1000])), name=name)
        for name in "xyz"[: draw(st.integers(1, 3))]
    ]
    interval = int(1e6 * draw(st.sampled_from(limits)).limit.parsed.interval)
    some = st.integers(0, 3 * interval)
    pause = st.none() | st.sampled_from([0, 1, interval, interval + 1]) | some | st.integers(0, 3_000_000)
    if back:
        pause |= some.map(lambda us: -us) | st.integers(-STEP, 0) | st.sampled_from([-1, -STEP, -STEP - 1])
        pause |= st.integers(-3_000_000, 0)

    @st.composite
    def act(draw: st.DrawFn) -> Act:
        asked = draw(st.lists(st.sampled_from(limits), min_size=1, unique=True))
        return Act(
            verb=draw(st.sampled_from(["acquire"] * 6 + ["peek", "forget"])),
            after=draw(pause),
            demands=tuple(
                LimitRequest(each.limit, each.name, "", draw(st.integers(1, min(each.limit.burst, 3)) | st.just(1)))
                for each in asked
            ),
            id=draw(st.sampled_from(["", "a", "b", "c", "d", "e"])),
            horizon=draw(st.just(0) | some | st.just(-(10**12))),
            claim=draw(st.just(10**15) | some),
            which=0,
            share=4,
        )

    return draw(st.lists(act(), min_size=1, max_size=25))


@st.composite
def odd_demands(draw: st.DrawFn) -> LimitRequest:
    """A limit with as many digits as a rate may have, and a burst as deep as stays exact."""
    count = draw(st.integers(1, 10**9 - 1) | st.sampled_from([1, 10**6, 999_999_937]))
    span = draw(st.integers(1, 10**8) | st.sampled_from([86_400, 10**8]))
    rate = f"{count}/{span}s"
    assume(count <= span * 10**6)
    interval_us = Fraction(span * 10**6, count)
    deepest = min(2**53 // (8 * count), int(2**49 / interval_us))
    assume(deepest >= 1)
    burst = draw(st.integers(1, deepest) | st.just(deepest))
    limit = demand(rate, burst=burst)
    return LimitRequest(limit.limit, "api", "", draw(st.integers(1, burst) | st.just(burst)))
