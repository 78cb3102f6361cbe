"""Random traces: the Lua answers what the exact model answers, field by field.

Calls of several processes interleave at random, as they would in the store: a script runs alone.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.examples import examples

from .random_traces import Step, odd_demands, steps
from .world import World


@given(trace=steps(back=False))
@examples(400)
def test_lua_matches_the_model(world: World, trace: list[Step]) -> None:
    follow(world, trace)


@pytest.mark.slow
@given(trace=steps(back=True))
@examples(300)
def test_clock_steps_back_match_the_model(world: World, trace: list[Step]) -> None:
    follow(world, trace)


def follow(world: World, trace: list[Step]) -> None:
    world.begin()
    wait = 0
    for number, step in enumerate(trace):
        world.set(world.model.now + (wait if step.after is None else step.after))
        if step.verb == "forget":
            world.forget(step.demands, step.id)
            continue
        if step.verb == "peek":
            lua, model = world.peek(step.demands, step.process)
        else:
            lua, model = world.acquire(step.demands, step.id, step.horizon, step.claim, step.process)
        assert lua == model, f"step {number}: {step}"
        wait = lua.wait


@given(wanted=odd_demands(), pauses=st.lists(st.integers(0, 10**13) | st.just(None), max_size=6), data=st.data())
@examples(200)
def test_largest_exact_numbers_match_the_model(
    world: World, wanted: LimitRequest, pauses: list[int | None], data: st.DataObject
) -> None:
    world.begin()
    wait = 0
    for pause in [0, *pauses]:
        world.set(world.model.now + (wait if pause is None else pause))
        lua, model = world.acquire([wanted], data.draw(st.sampled_from(["", "a", "b"])), 0, 10**15)
        assert lua == model
        wait = lua.wait
