"""`fast_path.lua` gives the same answers and the same keys as the scripts without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import Concurrency, Decision, ImpossibleRequest, Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest, leased
from celery_ratelimit.limiter.script_calls import LeasesToRelease
from celery_ratelimit.limits.any_limit import AnyLimit
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import START
from tests.examples import examples

from .frozen import FROZEN_STORE, expiries

#: What is left of it, for the scripts that do without.
NOTHING = "-- decides nothing\n--!include config_format.lua\n--!include fetch_state_and_config.lua\n"
SIDES = ("with", "without")
SECOND = 1_000_000

LIMITS: dict[str, list[AnyLimit]] = {
    "bucket": [Limit("10/s", burst=3), Limit("1000/s", burst=2), Limit("3/s", burst=4), Limit("10/s", burst=2, debt=1)],
    "log": [Limit(rate, algorithm="sliding_log") for rate in ("40/s", "30/s", "12/2s", "3/s")],
    "places": [Concurrency(3, lease=2), Concurrency(1, lease=1), Concurrency(20, lease=3)],
    "window": [Limit("5/s", algorithm="fixed_window")],
}
KINDS = (
    ["log"],
    ["places"],
    ["bucket", "log"],
    ["log", "places"],
    ["bucket", "log", "places"],
    ["bucket", "log", "places", "window"],
)
VERBS = ("acquire",) * 24 + ("release", "release", "renew", "forget", "store", "store", "pause", "resume", "unset")


@dataclass(frozen=True)
class Act:
    """``stored``: a limit that is put in the place of the first one's."""

    verb: str
    after: int
    demands: tuple[LimitRequest, ...]
    id: str
    horizon: float
    claim: float
    stored: AnyLimit


@st.composite
def traces(draw: st.DrawFn, *, back: bool) -> list[Act]:
    """Over a limit of some kinds, some of which have another length or number now and then, as in a rolling deploy."""
    kinds = draw(st.sampled_from(KINDS))
    usual = {kind: draw(st.sampled_from(LIMITS[kind])) for kind in kinds}
    pauses = st.sampled_from([0, 0, 0, 0, 1, 1000, SECOND // 10, SECOND // 3, SECOND, SECOND + 1, 3 * SECOND])
    if back:
        pauses |= st.sampled_from([0, 0, 0, -1, -1000, -100_000, -100_001, -2 * SECOND])

    @st.composite
    def act(draw: st.DrawFn) -> Act:
        asked = draw(st.sampled_from([kinds] * 8 + [kinds[:1], kinds[::-1]]))
        limits = {kind: draw(st.sampled_from([usual[kind]] * 20 + LIMITS[kind])) for kind in asked}
        return Act(
            verb=draw(st.sampled_from(VERBS)),
            after=draw(pauses),
            demands=tuple(
                LimitRequest(limit, kind, "", draw(st.sampled_from([1] * 9 + [limit.most])))
                for kind, limit in limits.items()
            ),
            id=draw(st.sampled_from(["", "", "a", "b", "c", "d", "e", "f"])) or ("g" if "places" in asked else ""),
            horizon=draw(st.sampled_from([0.0, 0.0, 0.0, 0.2, 5.0, -1000.0])),
            claim=draw(st.sampled_from([0.0, 0.0, 0.0, 0.0, 0.3, 100.0])),
            stored=draw(st.sampled_from([each for kind in ("bucket", "log", "places") for each in LIMITS[kind]])),
        )

    return draw(st.lists(act(), min_size=20, max_size=40))


class Both:
    """Two sets of buckets on a clock that stands still; whatever is done is done to both."""

    def __init__(self, url: str) -> None:
        self.store = redis.Redis.from_url(url, decode_responses=True)
        clients = [redis.Redis.from_url(url) for _ in SIDES]
        replace = [{"now": FROZEN_STORE}, {"now": FROZEN_STORE, "fast_path": NOTHING}]
        self.limiters = [
            Limiter(client, prefix=f"ratelimit:{side}", replace_includes=each)
            for client, side, each in zip(clients, SIDES, replace, strict=True)
        ]
        self.clients = [self.store, *clients]

    def begin(self) -> None:
        self.store.flushall()
        self.now = START
        self.granted: dict[str, Decision] = {}

    def follow(self, trace: list[Act]) -> None:
        self.begin()
        for number, act in enumerate(trace):
            self.now += act.after
            self.store.set("test:clock", self.now)
            said = [self.answer(limiter, act) for limiter in self.limiters]
            assert said[0] == said[1], f"step {number}: {act}"
            if isinstance(said[0], Decision) and said[0].allowed:
                self.granted[act.id] = said[0]
            kept = [self.kept(side) for side in SIDES]
            assert kept[0] == kept[1], f"step {number}: {act}"

    def answer(self, limiter: Limiter, act: Act) -> Any:
        asker, name = limiter._asker, act.demands[0].name
        places, granted = leased(act.demands), self.granted.get(act.id)
        if act.verb == "acquire":
            try:
                return asker.ask(act.demands, id=act.id, horizon=act.horizon, claim=act.claim)
            except ImpossibleRequest as error:
                return str(error)
        if act.verb == "release":
            at = granted._granted_at if granted else self.now
            return asker.release([LeasesToRelease(act.id, places, at)])
        if act.verb == "renew":
            return asker.renew([(demand, act.id) for demand in places])
        if act.verb == "forget":
            return asker.forget(act.demands, id=act.id)
        if act.verb == "store":
            return limiter.set_rate(name, act.stored, force=True)
        if act.verb == "unset":
            return limiter.unset_rate(name, force=True)
        if act.verb == "pause":
            return limiter.pause(name, 0.4, force=True)
        return limiter.resume(name, force=True)

    def kept(self, side: str) -> dict[str, tuple[Any, int | None]]:
        """What every key holds, and when it expires."""
        read = {
            "string": self.store.get,
            "list": lambda key: self.store.lrange(key, 0, -1),
            "zset": lambda key: self.store.zrange(key, 0, -1, withscores=True),
        }
        ends = expiries(self.store)
        keys = self.store.scan_iter(f"ratelimit:{side}:*")
        return {key.removeprefix(f"ratelimit:{side}"): (read[self.store.type(key)](key), ends.get(key)) for key in keys}

    def close(self) -> None:
        for client in self.clients:
            client.close()


@pytest.fixture(scope="module")
def both(server: EmbeddedServer) -> Iterator[Both]:
    both = Both(server.url)
    yield both
    both.close()


@pytest.mark.parametrize("back", [False, True], ids=["", "the clock steps back"])
@given(data=st.data())
@examples(80)
def test_fast_path_answers_and_writes_the_same(both: Both, back: bool, data: st.DataObject) -> None:
    both.follow(data.draw(traces(back=back)))
