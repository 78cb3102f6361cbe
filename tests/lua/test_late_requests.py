"""Waiting requests that find no permit at their slots: because of a pause, or as others used more than they took."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import Limiter
from tests.asking import settle_demands
from tests.conftest import START, Clock
from tests.examples import examples

from .frozen import demand, us
from .mixed_world import MixedWorld


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
