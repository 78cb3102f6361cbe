"""Random traces over limits of all algorithms: the Lua answers what the exact model answers, field by field."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from celery_ratelimit import ConfigurationError, Limit
from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.examples import examples

from .mixed_world import KINDS, MixedWorld, acts, follow


@pytest.mark.parametrize("back", [False, True], ids=["", "the clock steps back"])
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@examples(100)
def test_lua_matches_the_model(world: MixedWorld, kind: str, back: bool, data: st.DataObject) -> None:
    follow(world, data.draw(acts(only=[kind], back=back)))


@pytest.mark.parametrize("back", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "the clock steps back"])
@given(data=st.data())
@examples(400)
def test_several_algorithms_match_the_model(world: MixedWorld, back: bool, data: st.DataObject) -> None:
    follow(world, data.draw(acts(back=back)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@examples(80)
def test_permits_taken_far_ahead_match_the_model(world: MixedWorld, kind: str, data: st.DataObject) -> None:
    follow(world, data.draw(acts(only=[kind, kind, "token_bucket"], ahead=True)))


@st.composite
def odd_demands(draw: st.DrawFn) -> LimitRequest:
    """A limit with as many digits as a window may have."""
    count = draw(st.integers(1, 10**9 - 1) | st.sampled_from([1, 10**6, 999_999_937]))
    span = draw(st.integers(1, 10**8) | st.sampled_from([1, 86_400, 10**8]))
    options = draw(
        st.sampled_from(
            [
                {"algorithm": "fixed_window"},
                {"algorithm": "fixed_window", "align": "first"},
                {"algorithm": "sliding_window", "sub_windows": 1},
                {"algorithm": "sliding_window", "sub_windows": 7},
                {"algorithm": "sliding_window", "sub_windows": 60},
                {"algorithm": "sliding_log"},
                {"refill": "interval", "burst": count},
                {"burst": max(1, count // 2), "debt": count - count // 2},
            ]
        )
    )
    assume(Fraction(count, span * 10**6) <= 1)
    try:
        limit = Limit(f"{count}/{span}s", name="api", **options)
    except ConfigurationError:
        assume(False)
    return LimitRequest(limit, "api", "", draw(st.integers(1, limit.most) | st.just(limit.most)))


@given(
    wanted=odd_demands(), pauses=st.lists(st.integers(0, 10**14) | st.none() | st.just(1), max_size=8), data=st.data()
)
@examples(200)
def test_largest_exact_numbers_match_the_model(
    world: MixedWorld, wanted: LimitRequest, pauses: list[int | None], data: st.DataObject
) -> None:
    world.begin()
    wait = 0
    for pause in [0, *pauses]:
        world.set(world.model.now + (wait if pause is None else pause))
        asked = LimitRequest(wanted.limit, "api", "", data.draw(st.sampled_from([1, wanted.cost])))
        lua, model = world.acquire([asked], data.draw(st.sampled_from(["", "a", "b"])), 0, 10**15)
        assert lua == model
        wait = lua.wait
