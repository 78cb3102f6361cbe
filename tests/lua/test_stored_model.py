"""Random traces in which rates, algorithms and pauses change: the Lua answers what the exact model answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import ImpossibleRequest
from tests.examples import examples

from .mixed_world import KINDS, VERBS, Act, MixedWorld, Play, acts, limits

#: Without cancel and settle: no law says what a permit is worth once the rate is another.
CHANGING = ("acquire",) * 6 + ("peek", "reserve")


def follow(
    world: MixedWorld, trace: list[Act], data: st.DataObject, kinds: tuple[str, ...], pauses: bool = True
) -> None:
    """Before a call the limits may be changed or paused."""
    play = Play(world)
    names = sorted({demand.name for act in trace for demand in act.demands})
    changes = ["", "", "", "rate", "rate", "unset"] if kinds else [""]
    changes += ["pause"] if pauses else []
    for number, act in enumerate(trace):
        name = data.draw(st.sampled_from(names))
        what = data.draw(st.sampled_from(changes))
        if what == "rate":
            world.store_limit(data.draw(limits(name, kinds)), name)
        elif what == "unset":
            world.store_limit(None, name)
        elif what == "pause":
            world.pause(name, data.draw(st.integers(0, 5_000_000) | st.just(0)))
        try:
            lua, model = play.do(act)
        except ImpossibleRequest as error:
            impossible = error
            break
        assert lua == model, f"step {number}: {act}: {lua} is not {model}"
    else:
        return
    assert impossible.cost > impossible.capacity == world.model.stored[impossible.limit].most


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@examples(60)
def test_changed_rates_match_the_model(world: MixedWorld, kind: str, data: st.DataObject) -> None:
    follow(world, data.draw(acts(only=[kind], verbs=CHANGING)), data, (kind,))


@given(data=st.data())
@examples(300)
def test_changed_algorithms_match_the_model(world: MixedWorld, data: st.DataObject) -> None:
    follow(world, data.draw(acts(verbs=CHANGING)), data, KINDS)


@given(data=st.data())
@examples(100)
def test_changed_algorithms_and_clock_steps_back_match_the_model(world: MixedWorld, data: st.DataObject) -> None:
    follow(world, data.draw(acts(verbs=CHANGING, back=True)), data, KINDS, pauses=False)


@given(data=st.data())
@examples(150)
def test_pauses_match_the_model(world: MixedWorld, data: st.DataObject) -> None:
    follow(world, data.draw(acts(verbs=VERBS)), data, ())
