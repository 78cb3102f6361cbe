"""The law of a change on random traces: every algorithm into every other, with all that corrects a grant."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import ImpossibleRequest, Limit
from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.examples import examples

from .change import judge
from .counted import Numbers
from .frozen import expiries
from .mixed_world import KINDS, Act, MixedWorld, Play, limits
from .windows import Start

VERBS = ("acquire",) * 6 + ("peek", "reserve", "reserve", "cancel", "cancel", "settle", "settle", "pause")
#: Asked together with the limit that changes: permits lie ahead for its sake.
SLOW = Limit("1/s", name="slow")
STATE = "ratelimit:v1:{x}::state"


@st.composite
def calls(draw: st.DrawFn, limit: Limit, to: Limit) -> list[Act]:
    """Calls that both rules could grant, alone or together with another limit."""
    period, interval = Numbers.of(LimitRequest(limit, "x")).period, Numbers.of(LimitRequest(to, "x")).period
    pauses = st.none() | st.sampled_from([0, 0, 1, period // 2, period, interval]) | st.integers(0, 2 * period)
    most = min(limit.most, to.most, 6)

    @st.composite
    def act(draw: st.DrawFn) -> Act:
        verb = draw(st.sampled_from(VERBS))
        cost = draw(st.just(1) | st.integers(1, most) | st.just(most))
        asked = [LimitRequest(limit, "x", "", cost)]
        if draw(st.integers(0, 3)) == 0:
            asked.append(LimitRequest(SLOW, "slow", "", 1))
        return Act(
            verb=verb,
            after=draw(pauses),
            demands=tuple(asked),
            id=draw(st.sampled_from(["r", "s", "t"] if verb == "reserve" else ["", "a", "b", "c"])),
            horizon=draw(st.just(0) | st.just(0) | st.integers(0, 2 * period) | st.just(10**7)),
            claim=draw(st.just(10**15) | st.just(0)),
            which=draw(st.integers(0, 5)),
            share=draw(st.integers(0, 4)),
        )

    return draw(st.lists(act(), min_size=1, max_size=10))


def do(play: Play, act: Act) -> None:
    if act.verb == "pause":
        play.world.pause("x", act.horizon)  # type: ignore[attr-defined]
        return
    lua, model = play.do(act)
    assert lua == model, f"{act}: {lua} is not {model}"


#: Each into the one after it; the default suite leaves out the others.
USUAL = (*zip(KINDS, (*KINDS[1:], KINDS[0]), strict=True), ("sliding_log", "sliding_log"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(before, after, marks=() if (before, after) in USUAL else pytest.mark.slow)
        for before in KINDS
        for after in KINDS
    ],
)
@given(data=st.data())
@examples(12)
def test_law_1_holds_from_a_change_on(world: MixedWorld, before: str, after: str, data: st.DataObject) -> None:
    old, new = data.draw(limits("x", [before])), data.draw(limits("x", [after]))
    if before != "leaky_bucket" and after != "leaky_bucket":
        old, new = replace_debt(old), replace_debt(new)
    play = Play(world)
    for act in data.draw(calls(old, new)):
        do(play, act)
    world.store_limit(new, "x")
    at, granted, kept = play.now, len(play.grants), None
    try:
        for act in data.draw(calls(old, new)):
            asked = play.now + (play.wait if act.after is None else act.after)
            if len(play.grants) == granted and expiries(world.store).get(STATE, 0) <= asked:
                kept = 0  # under the old rule all was back before anybody asked, and the store forgot it
            do(play, act)
    except ImpossibleRequest:
        return

    def starts(grants: list) -> list[Start]:  # type: ignore[type-arg]
        return [
            start
            for grant in grants
            for each, start in zip(grant.demands, grant.taken, strict=True)
            if each.name == "x"
        ]

    judge(
        Numbers.of(LimitRequest(old, "x")),
        Numbers.of(LimitRequest(new, "x")),
        at,
        starts(play.grants[:granted]),
        starts(play.grants[granted:]),
        kept,
    )


def replace_debt(limit: Limit) -> Limit:
    """Without debt: what is overdrawn is not in use twice."""
    return replace(limit, debt=0) if limit.debt else limit
