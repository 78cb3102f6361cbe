"""Random traces over limits of all algorithms, and what plays them: on the store and the model, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from celery_ratelimit import Limit
from celery_ratelimit.limiter.argument_checks import microseconds
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limits.parse_rate import parse_window
from tests.asking import cancel_demands, reserve_demands, settle_demands

from .counted import GRACE, STEP, Numbers
from .model import Answer
from .windows import Start
from .world import World

#: Counts and periods as written; sub-windows and steps of most of them are not whole.
WINDOWS = ("1/s", "2/3s", "3/s", "7/10s", "10/s", "5/m", "4 per 1.000001 s", "100/s", "3 per 0.007 s", "1000/s")


class MixedWorld(World):
    """The store and the model."""

    def store_limit(self, limit: Limit | None, name: str) -> None:
        """Put a limit in the place of the code's; None: take it away."""
        if limit is None:
            if self.limiters[0].unset_rate(name, force=True):
                self.model.since[name] = self.model.now
            self.model.stored.pop(name, None)
        else:
            assert self.limiters[0].set_rate(name, limit, force=True)
            self.model.stored[name] = limit
            self.model.since[name] = self.model.now

    def pause(self, name: str, us: int) -> None:
        """For so many microseconds; 0: go on."""
        if us:
            self.limiters[0].pause(name, us / 1e6, force=True)
            self.model.paused[name] = max(self.model.paused.get(name, 0), self.model.now + microseconds(us / 1e6))
        else:
            if self.limiters[0].resume(name, force=True):
                self.model.resumed[name] = self.model.now
            self.model.paused.pop(name, None)

    def reserve(self, demands: Sequence[LimitRequest], id: str, horizon: int) -> tuple[Answer, Answer]:
        decision = reserve_demands(self.limiters[0], demands, id=id, horizon=horizon / 1e6)
        return Answer.of(decision), self.model.reserve(demands, id, horizon)

    def cancel(self, demands: Sequence[LimitRequest], id: str) -> tuple[bool, bool]:
        lua, back = self._back(demands, lambda: cancel_demands(self.limiters[0], demands, id=id))
        return lua, self.model.cancel(demands, id, back)

    def settle(
        self, demands: Sequence[LimitRequest], actual: Sequence[int], id: str, granted_at: int
    ) -> tuple[bool, bool]:
        lua, back = self._back(
            demands, lambda: settle_demands(self.limiters[0], demands, actual, id=id, granted_at=granted_at)
        )
        return lua, self.model.settle(demands, actual, id, granted_at, back)

    def _back(self, demands: Sequence[LimitRequest], call: Callable[[], bool]) -> tuple[bool, list[int]]:
        """What a call answers, and by how much sooner each bucket is full."""
        before = [Answer.of(self.limiters[0].peek(demand.limit)).states[0][1] for demand in demands]
        answer = call()
        after = [Answer.of(self.limiters[0].peek(demand.limit)).states[0][1] for demand in demands]
        return answer, [b - a for b, a in zip(before, after, strict=True)]


@dataclass(frozen=True)
class Act:
    """One call. ``after``: microseconds since the last; ``None``: as long as the last answer said to wait.

    ``which``: of the grants so far, the one to settle or cancel, counted from the last; ``share``: what it used of
    what it took, in quarters.
    """

    verb: str
    after: int | None
    demands: tuple[LimitRequest, ...]
    id: str
    horizon: int
    claim: int
    which: int
    share: int


@dataclass
class Grant:
    """What was let in: for when by the store's clock, and its permits for each bucket in true time.

    ``lost``: what the clock had stepped back by until then.
    """

    id: str
    demands: tuple[LimitRequest, ...]
    at: int
    lost: int
    taken: list[Start]
    booked: bool = False
    settled: bool = False
    cancelled: bool = False


class Play:
    """Plays a trace, and keeps what was granted, in true time, which never steps back.

    A call is either settled or cancelled, once, under an id of its own and by the clock that it was granted by.
    ``waited_for``: the clock steps back by no more than a store waits for; what is granted is kept by the clock itself.
    ``on_grant`` is told of each grant, with all that was taken from its bucket before.
    """

    def __init__(
        self,
        world: MixedWorld,
        on_grant: Callable[[LimitRequest, Start, list[Start]], None] | None = None,
        waited_for: bool = False,
    ) -> None:
        self.world, self.on_grant, self.waited_for = world, on_grant, waited_for
        self.lost = self.wait = self.latest = 0
        self.grants: list[Grant] = []
        self.charges: list[tuple[str, Start]] = []
        self.corrected: set[tuple[str, str]] = set()
        world.begin()

    @property
    def now(self) -> int:
        return self.world.model.now

    def do(self, act: Act) -> tuple[object, object]:
        """The Lua's answer, and the model's."""
        pause = self.wait if act.after is None else act.after
        now = self.now + pause
        if self.waited_for:
            now = max(now, self.latest - STEP)
            self.latest = max(now, self.latest)
        else:
            self.lost += max(0, -pause)
        self.world.set(now)
        if act.verb == "forget":
            self.world.forget(act.demands, act.id)
            return self.world.peek(act.demands)
        if act.verb == "peek":
            return self.world.peek(act.demands)
        if act.verb in ("cancel", "settle"):
            lua, model = self._cancel(act) if act.verb == "cancel" else self._settle(act)
            seen = self.world.peek(act.demands)
            return (lua, seen[0]), (model, seen[1])
        if act.verb == "reserve":
            both = self._reserve(act)
        else:
            both = self.world.acquire(act.demands, act.id, act.horizon, act.claim)
            if both[0].allowed:
                self._granted(f"{act.id}{len(self.grants)}", act.demands, both[0])
        self.wait = both[0].wait
        return both

    def taken(self, name: str) -> list[Start]:
        """What was used of a bucket."""
        starts = [
            start
            for grant in self.grants
            for each, start in zip(grant.demands, grant.taken, strict=True)
            if each.name == name
        ]
        return starts + [start for each, start in self.charges if each == name]

    def _granted(self, id: str, demands: tuple[LimitRequest, ...], answer: Answer, booked: bool = False) -> None:
        starts = [Start(answer.granted_at + self.lost, demand.cost) for demand in demands]
        for demand, start in zip(demands, starts, strict=True) if self.on_grant else ():
            self.on_grant(demand, start, self.taken(demand.name))
        self.grants.append(Grant(id, demands, answer.granted_at, self.lost, starts, booked))

    def _reserve(self, act: Act) -> tuple[Answer, Answer]:
        named = [each for each in self.grants if each.booked and each.id.startswith(act.id)]
        if named and not named[-1].cancelled:
            return self.world.reserve(named[-1].demands, named[-1].id, max(0, act.horizon))
        id = f"{act.id}{len(named)}"
        both = self.world.reserve(act.demands, id, max(0, act.horizon))
        if both[0].allowed:
            self._granted(id, act.demands, both[0], booked=True)
        return both

    def _cancel(self, act: Act) -> tuple[bool, bool]:
        grants = [each for each in self.grants if each.booked and not each.settled and each.lost == self.lost]
        if not grants:
            return self.world.cancel(act.demands, "never reserved")
        grant = grants[-1 - act.which % len(grants)]
        grant.cancelled = True
        grant.taken = [start._replace(cost=0) for start in grant.taken]
        return self.world.cancel(grant.demands, grant.id)

    def _settle(self, act: Act) -> tuple[bool, bool]:
        grants = [each for each in self.grants if not each.cancelled and each.lost == self.lost]
        if not grants:
            return self.world.settle(act.demands, [each.cost for each in act.demands], "never granted", self.now)
        grant = grants[-1 - act.which % len(grants)]
        actual = [demand.cost * act.share // 4 for demand in grant.demands]
        both = self.world.settle(grant.demands, actual, grant.id, grant.at)
        for i, (demand, cost) in enumerate(zip(grant.demands, actual, strict=True)):
            if (grant.id, demand.name) in self.corrected:
                continue
            self.corrected.add((grant.id, demand.name))
            if cost > demand.cost:
                self.charges.append((demand.name, Start(self.now + self.lost, cost - demand.cost)))
            else:
                grant.taken[i] = grant.taken[i]._replace(cost=cost)
        grant.settled = True
        return both


def follow(world: MixedWorld, trace: Sequence[Act]) -> None:
    """Play a trace. The store answers what the model answers, field by field."""
    play = Play(world)
    for number, act in enumerate(trace):
        lua, model = play.do(act)
        assert lua == model, f"step {number}: {act}"


@st.composite
def limits(draw: st.DrawFn, name: str, only: Sequence[str] = ()) -> Limit:
    """A limit of any algorithm."""
    kind = draw(st.sampled_from(only or KINDS))
    rate = draw(st.sampled_from(WINDOWS))
    burst = draw(st.integers(1, 5))
    if kind == "token_bucket":
        return Limit(rate, burst=burst, debt=draw(st.integers(0, 4)), name=name)
    if kind == "leaky_bucket":
        return Limit(rate, algorithm=kind, capacity=draw(st.none() | st.integers(0, 3)), name=name)
    if kind == "stepped_bucket":
        count = parse_window(rate, 0.0, keep_period=False).count
        return Limit(rate, burst=draw(st.just(burst) | st.integers(count, 2 * count)), refill="interval", name=name)
    if kind == "warm_up":
        return Limit(rate, burst=burst, warmup=draw(st.sampled_from([0.003, 0.5, 1.0, 2.3, 10.0])), name=name)
    if kind == "fixed_window":
        return Limit(rate, algorithm=kind, align=draw(st.sampled_from(["clock", "first"])), name=name)
    if kind == "sliding_window":
        return Limit(rate, algorithm=kind, sub_windows=draw(st.sampled_from([1, 2, 3, 7, 10])), name=name)
    return Limit(rate, algorithm=kind, name=name)


KINDS = (
    *("token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"),
    *("stepped_bucket", "warm_up"),
)

VERBS = ("acquire",) * 8 + ("peek", "forget", "reserve", "reserve", "cancel", "settle")


@st.composite
def acts(
    draw: st.DrawFn,
    back: bool = False,
    only: Sequence[str] = (),
    verbs: Sequence[str] = VERBS,
    most: int = 3,
    overdraw: bool = True,
    ahead: bool = False,
) -> list[Act]:
    """A trace over one to ``most`` limits, mixed; ``back``: the clock may step back; ``ahead``: all is taken ahead."""
    some = [draw(limits(name, only)) for name in "xyz"[: draw(st.integers(1, most))]]
    numbers = Numbers.of(LimitRequest(draw(st.sampled_from(some)), ""))
    period, interval = numbers.period, numbers.period // numbers.count
    near = st.sampled_from([0, 1, interval, interval + 1, period - 1, period, period + 1, GRACE, GRACE + 1])
    within = st.integers(0, 3 * interval) | st.integers(0, 2 * period)
    pause = st.none() | st.none() | near | within
    if back:
        pause |= within.map(lambda us: -us) | st.integers(-STEP, 0) | st.sampled_from([-1, -STEP, -STEP - 1])
        pause |= st.integers(-3_000_000, 0)
    first = draw(st.integers(0, 2 * period))
    horizons = st.just(10**8) if ahead else st.just(0) | within | st.just(-(10**12))

    @st.composite
    def act(draw: st.DrawFn, after: st.SearchStrategy[int | None]) -> Act:
        verb = draw(st.sampled_from(verbs))
        asked = draw(st.lists(st.sampled_from(some), min_size=1, unique=True))
        return Act(
            verb=verb,
            after=draw(after),
            demands=tuple(
                LimitRequest(each, each.name or "", "", draw(st.just(1) | st.integers(1, min(each.most, 4))))
                for each in asked
            ),
            id=draw(st.sampled_from(["r", "s", "t"] if verb == "reserve" else ["", "a", "b", "c", "d", "e"])),
            horizon=draw(horizons),
            claim=draw(st.just(10**15) | within),
            which=draw(st.integers(0, 5)),
            share=draw(st.integers(0, 8 if overdraw else 4)),
        )

    return [draw(act(st.just(first))), *draw(st.lists(act(pause), max_size=25))]
