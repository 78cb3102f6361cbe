"""Tasks that run for a while under several limits: the slowest of these is used, places or a log beside it or not."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import pytest

from celery_ratelimit import Concurrency, Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.script_calls import LeasesToRelease
from tests.conftest import START, Clock

from .frozen import us
from .windows import Start, check_every_window

SECONDS, HELD = 6, us(0.1)
RATE = Limit("50/s", name="rate")
LOG = Limit("400/10s", algorithm="sliding_log", name="log")
WINDOW = Limit("400/10s", algorithm="sliding_window", name="window")
FIXED = Limit("400/10s", algorithm="fixed_window", name="fixed")
WIDE = Limit("60/s", burst=10, name="wide")
LARGE = Limit("700/10s", algorithm="sliding_log", name="large")
SLOW = Limit("10/s", name="slow")
PLACES = Concurrency(8, name="places")
#: How a worker asks, see celery_ratelimit/worker/admission.py: us before the turn; seconds that a permit lies ahead at
#: most, and a slot that is kept.
EARLY, AHEAD, CLAIM, SLOT_ONLY = us(0.02), 0.1, 1.0, -1e6


def names(limits: Sequence[Limit | Concurrency]) -> str:
    return "+".join(limit.name or "" for limit in limits)


class Tasks:
    """Tasks that come, one after the other, and run for 0.1 s.

    ``parks``: each is parked for the first limit, gets its slot there in turn, within a second of it, and comes back
    shortly before; else it keeps a slot in every limit from the start.

    ``starts``: when each got going, in us, and how long after its first slot.
    """

    def __init__(self, limiter: Limiter, limits: Sequence[Limit | Concurrency], number: int, parks: bool) -> None:
        self.asker, self.number, self.parks = limiter._asker, number, parks
        self.demands = [LimitRequest(limit, limit.name or "") for limit in limits]
        self.places = [demand for demand in self.demands if isinstance(demand.limit, Concurrency)]
        self.starts: list[tuple[int, int]] = []
        self._lot: list[tuple[int, str]] = []
        self._came = 0

    def begin(self, line: Line) -> None:
        self.line = line
        for _ in range(self.number):
            line.at(START + line.random.randrange(10_000), self._come)
        if self.parks:
            line.at(START, self._let_out)

    def rate(self) -> float:
        """How many a second have started, after the first."""
        return sum(at > START + us(1.0) for at, _ in self.starts if at <= START + us(SECONDS)) / (SECONDS - 1)

    def longest(self) -> int:
        return max(waited for at, waited in self.starts if at > START + us(2.0))

    def _come(self) -> None:
        self._came += 1
        id = f"{self.demands[0].name}.{self._came}"
        if self.parks:
            heapq.heappush(self._lot, (self._came, id))
        else:
            self._ask(self._came, id, 0)

    def _let_out(self) -> None:
        while self._lot:
            place, id = self._lot[0]
            told = us(self.asker.ask(self.demands[:1], id=id, horizon=SLOT_ONLY, claim=CLAIM).retry_after)
            if told > us(CLAIM):
                break
            heapq.heappop(self._lot)
            slot = self.line.now + told
            self.line.at(slot - EARLY, partial(self._ask, place, id, slot))
        self.line.at(self.line.now + 10_000, self._let_out)

    def _ask(self, place: int, id: str, slot: int) -> None:
        now = self.line.now
        said = self.asker.ask(self.demands, id=id, horizon=AHEAD, claim=CLAIM if self.parks else 60.0)
        at = now + us(said.retry_after)
        if said.allowed:
            self.starts.append((at, at - (slot or at)))
            self.line.at(at + HELD, partial(self._end, id, now))
        elif self.parks and said.retry_after > CLAIM:
            heapq.heappush(self._lot, (place, id))
        else:
            self.line.at(max(now + 1_000, at - EARLY), partial(self._ask, place, id, slot or at))

    def _end(self, id: str, since: int) -> None:
        if self.places:
            self.asker.release([LeasesToRelease(id, tuple(self.places), since)])
        self._come()


class Line:
    """What is to be done, in order.

    ``late``: us, at most, by which it comes too late; ``busy``: the share of it that comes up to 0.3 s too late.
    """

    def __init__(self, clock: Clock, late: int, busy: float = 0.0) -> None:
        self.clock, self.late, self.busy, self.random = clock, late, busy, Random(1)
        self._todo: list[tuple[int, int, Callable[[], None]]] = []

    @property
    def now(self) -> int:
        return self.clock.us

    def at(self, when: int, act: Callable[[], None]) -> None:
        late = us(0.3) if self.random.random() < self.busy else self.late
        when += self.random.randrange(late + 1)
        heapq.heappush(self._todo, (when, self.random.randrange(1 << 30), act))

    def play(self, *kinds: Tasks) -> None:
        for kind in kinds:
            kind.begin(self)
        while self._todo[0][0] < START + us(SECONDS):
            when, _, act = heapq.heappop(self._todo)
            self.clock.set(max(self.now, when))
            act()
        for name, demand in {each.name: each for kind in kinds for each in kind.demands}.items():
            starts = [at for kind in kinds if any(each.name == name for each in kind.demands) for at, _ in kind.starts]
            if isinstance(demand.limit, Limit):
                check_every_window([Start(at, 1) for at in sorted(starts)], demand)
            else:
                assert all(sum(at - HELD < other <= at for other in starts) <= demand.limit.limit for at in starts)


WAYS = pytest.mark.parametrize("parks", [False, True], ids=["wait", "retry"])
MIXTURES = [
    [RATE],
    [RATE, PLACES],
    [RATE, LOG],
    [RATE, WINDOW],
    [RATE, FIXED],
    [RATE, WIDE],
    [RATE, LOG, PLACES],
    [RATE, WINDOW, WIDE, PLACES],
]


@pytest.mark.rows(8)
@pytest.mark.parametrize("late", [0, 15_000])
@WAYS
@pytest.mark.parametrize("limits", MIXTURES, ids=names)
def test_long_tasks_use_the_whole_rate(
    frozen: Limiter, clock: Clock, limits: list[Limit | Concurrency], parks: bool, late: int
) -> None:
    tasks = Tasks(frozen, limits, 60, parks)
    Line(clock, late).play(tasks)
    assert tasks.rate() >= 0.97 * 50
    assert tasks.longest() <= us(0.2), "a task keeps the turn that it has in one limit"


@WAYS
@pytest.mark.parametrize("algorithm", ["sliding_log", "sliding_window", "fixed_window"])
def test_concurrency_beside_a_faster_rate_is_used(frozen: Limiter, clock: Clock, algorithm: str, parks: bool) -> None:
    tasks = Tasks(frozen, [RATE, Limit("40/s", algorithm=algorithm, name="tight"), PLACES], 60, parks)
    Line(clock, 15_000).play(tasks)
    assert tasks.rate() >= 0.97 * 40


@pytest.mark.rows(3)
@pytest.mark.parametrize("late", [0, 15_000])
@WAYS
@pytest.mark.parametrize("common", [PLACES, LARGE], ids=lambda limit: limit.name)
def test_tasks_waiting_for_a_slower_rate_delay_no_others(
    frozen: Limiter, clock: Clock, common: Limit | Concurrency, parks: bool, late: int
) -> None:
    slow = Tasks(frozen, [SLOW, common], 60, parks)
    fast = Tasks(frozen, [RATE, common], 60, parks)
    Line(clock, late).play(slow, fast)
    assert slow.rate() >= 0.95 * 10
    assert fast.rate() >= 0.97 * 50


@pytest.mark.rows(2)
@WAYS
@pytest.mark.parametrize("others", [[LOG], [PLACES], [LOG, PLACES]], ids=names)
def test_very_late_tasks_delay_few_others(
    frozen: Limiter, clock: Clock, others: list[Limit | Concurrency], parks: bool
) -> None:
    """One in five has no process at its turn. What it leaves, others use: not all that have a slot wait for it."""
    tasks = Tasks(frozen, [Limit("50/s", burst=10, name="rate"), *others], 60, parks)
    Line(clock, 2_000, busy=0.2).play(tasks)
    assert tasks.rate() >= 0.97 * 50
    assert tasks.longest() <= us(0.8)
