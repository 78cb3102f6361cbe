"""Random traces: the Lua answers what the exact model answers, field by field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.examples import examples

from .mixed_world import Act, MixedWorld, Play
from .random_traces import bucket_acts, odd_demands


def follow(world: MixedWorld, trace: list[Act]) -> None:
    play = Play(world)
    for number, act in enumerate(trace):
        lua, model = play.do(act)
        assert lua == model, f"step {number}: {act}"


@given(trace=bucket_acts(back=False))
@examples(400)
def test_lua_matches_the_model(world: MixedWorld, trace: list[Act]) -> None:
    follow(world, trace)


@pytest.mark.slow
@given(trace=bucket_acts(back=True))
@examples(300)
def test_clock_steps_back_match_the_model(world: MixedWorld, trace: list[Act]) -> None:
    follow(world, trace)


@given(wanted=odd_demands(), pauses=st.lists(st.integers(0, 10**13) | st.just(None), max_size=6), data=st.data())
@examples(200)
def test_largest_exact_numbers_match_the_model(
    world: MixedWorld, wanted: LimitRequest, pauses: list[int | None], data: st.DataObject
) -> None:
    world.begin()
    wait = 0
    for pause in [0, *pauses]:
        world.set(world.model.now + (wait if pause is None else pause))
        lua, model = world.acquire([wanted], data.draw(st.sampled_from(["", "a", "b"])), 0, 10**15)
        assert lua == model
        wait = lua.wait
