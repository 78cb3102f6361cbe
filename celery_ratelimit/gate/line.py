"""Who is in the gate, and in which state: the requests of one worker, in lines.

A request that is held is in one state, which its line alone changes:

* it **asks**: as soon as it is the first of those who do, and its line may ask;
* it **asks again** at a time that it was told;
* it **holds a permit**, which is good at a time;
* it is **gone**.

Those who have a slot in the store ask before newcomers.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .._celery import stored_id
from .._celery.parcel import doubts_in
from ..app.plan import Plan
from ..limiter.demand import Demand
from ..limits.decision import Decision

__all__ = ["ASK_EARLY", "HeldRequest", "Line", "State", "Unlimited"]

#: Seconds before its turn that a line asks, so that a late timer wastes nothing.
ASK_EARLY = 0.02
#: Seconds after which a line that cannot go on now is moved on, at the soonest.
LEAST_PAUSE = 0.001


class State(Enum):
    """What becomes of a request next."""

    ASKS = "asks"
    ASKS_AGAIN = "asks again at a time"
    HOLDS_PERMIT = "holds a permit that is good at a time"
    GONE = "gone"


@dataclass(slots=True, eq=False)
class HeldRequest:
    """A request in the gate.

    ``number``: in the order in which requests came; ``since``: when it came to the gate; ``until``: when it is sent
    anew, before the broker takes it for lost.
    ``has_slot``: it has a slot in the store's line, so it goes before newcomers. ``returned``: it is back from its
    countdown. ``outside_prefetch``: it does not count against the prefetch, or those that wait for their turn would
    keep others out.
    ``state``; and the time that belongs to it, ``at``. ``permit_at_us``: when its permit is good, in microseconds by
    the store's clock; 0: it has none.
    ``announced``: what was said last to have become of it.
    ``id``: what the store knows it by.
    ``doubts``: how often it was sent anew, for it was not known whether it was parked; ``doubtful``: nor is it now.
    """

    request: Any
    queue: str
    plan: Plan
    demands: tuple[Demand, ...]
    number: int
    since: float
    until: float
    has_slot: bool
    returned: bool
    outside_prefetch: bool = False
    state: State = State.ASKS
    at: float = 0.0
    permit_at_us: int = 0
    announced: str = ""
    id: str = field(init=False)
    doubts: int = field(init=False)
    doubtful: bool = field(init=False)

    def __post_init__(self) -> None:
        self.id = stored_id(self.request, self.queue)
        self.doubts = doubts_in(self.request.message)
        self.doubtful = self.doubts > 0

    @property
    def gone(self) -> bool:
        return self.state is State.GONE

    def demand(self, name: str | None) -> Demand:
        """What it asks of the limit of that name."""
        return next((demand for demand in self.demands if demand.name == name), self.demands[0])


@dataclass(slots=True, eq=False)
class Unlimited:
    """A request in the gate that nothing limits: it waits for a process, as others do. See :class:`HeldRequest`."""

    request: Any
    queue: str
    number: int
    since: float
    outside_prefetch: bool = False


@dataclass(slots=True, eq=False)
class Line:
    """The requests of one worker that ask the same buckets, first come first served. Times are the gate's clock's.

    Attributes:
        key: the buckets.
        with_slot: those who ask and have a slot (they came back, or the pool was busy); they go first.
        new: newcomers who ask.
        closed_until: when the head was told to have its turn.
        intervals: seconds in which a permit comes back, by limit, as it was when somebody was refused last.
        interval: seconds from one turn to the next, as it was in force when somebody asked last.
        next_ask: when the head may ask; earlier it would be told to wait.
        open: the last one that asked could have started at once: a newcomer need not ask for a slot.
        wants: it would move on if a process were free.
        turn: when somebody of it has its turn, who has to wait until then; 0.0: nobody.
        cancel: cancels the line's timer, which goes off at ``alarm``.
    """

    key: tuple[tuple[str, str], ...] = ()
    with_slot: deque[HeldRequest] = field(default_factory=deque)
    new: deque[HeldRequest] = field(default_factory=deque)
    closed_until: float = 0.0
    intervals: dict[str, float] = field(default_factory=dict)
    interval: float = 0.0
    next_ask: float = 0.0
    open: bool = True
    wants: bool = False
    turn: float = 0.0
    cancel: Callable[[], None] | None = None
    alarm: float = 0.0
    _due: list[tuple[float, int, HeldRequest]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    # -- Who is here -----------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[HeldRequest]:
        return itertools.chain(self.with_slot, self.new, [held for _, _, held in self._due])

    def __len__(self) -> int:
        return len(self.with_slot) + len(self.new) + len(self._due)

    def asking(self, held: HeldRequest) -> deque[HeldRequest]:
        """Those among whom it asks, or would."""
        return self.with_slot if held.has_slot else self.new

    @property
    def only_newcomers(self) -> bool:
        return bool(self.new and not self.with_slot and not self._due)

    # -- Moves -----------------------------------------------------------------------------------------------------

    def ask(self, held: HeldRequest, *, first: bool = False, has_slot: bool = False) -> None:
        """It asks, from now on: behind the others, or before them; with a slot, if it has one now."""
        self._take_out(held)
        held.state, held.has_slot = State.ASKS, held.has_slot or has_slot
        if first:
            self.asking(held).appendleft(held)
        else:
            self.asking(held).append(held)

    def recall(self, held: HeldRequest, *, behind: Sequence[HeldRequest] = ()) -> None:
        """Its time is void, and its permit: it asks, before the others, but behind these, which were recalled now."""
        self._take_out(held)
        held.state, held.permit_at_us = State.ASKS, 0
        self.asking(held).insert(sum(each in self.asking(held) for each in behind), held)

    def ask_again(self, held: HeldRequest, at: float, *, has_slot: bool = False) -> None:
        """It asks again at that time; with a slot, if it has one now."""
        self._move(held, State.ASKS_AGAIN, at)
        held.has_slot = held.has_slot or has_slot

    def hold(self, held: HeldRequest, at: float, permit_at_us: int) -> None:
        """It has a permit, which is good at that time."""
        held.permit_at_us = permit_at_us
        self._move(held, State.HOLDS_PERMIT, at)

    def leave(self, held: HeldRequest) -> None:
        """It is not in the gate any more."""
        self._take_out(held)
        held.state = State.GONE

    def clear(self) -> list[HeldRequest]:
        """Everybody is gone. Returns who was here."""
        everybody = list(self)
        for held in everybody:
            held.state = State.GONE
        self.with_slot.clear()
        self.new.clear()
        self._due.clear()
        return everybody

    def first_due(self, now: float) -> HeldRequest | None:
        """The first whose time has come."""
        return self._due[0][2] if self._due and self._due[0][0] <= now else None

    def are_late_together(self, now: float) -> bool:
        """Whether more than one permit is good by now that was not used."""
        return any(at <= now and held.state is State.HOLDS_PERMIT for at, _, held in self._due[1:3])

    def ask_all_again(self) -> None:
        """The times that they were told are void: they ask now, in their order, before the others."""
        again = [held for _, _, held in sorted(self._due) if held.state is State.ASKS_AGAIN]
        for number, held in enumerate(again):
            self.recall(held, behind=again[:number])
        self.next_ask = 0.0

    def _move(self, held: HeldRequest, state: State, at: float) -> None:
        self._take_out(held)
        held.state, held.at = state, at
        heapq.heappush(self._due, (at, next(self._numbers), held))

    def _take_out(self, held: HeldRequest) -> None:
        if held.state is State.ASKS:
            asking = self.asking(held)
            if asking and asking[0] is held:
                asking.popleft()
            elif held in asking:
                asking.remove(held)
        elif held.state is not State.GONE:
            if self._due and self._due[0][2] is held:
                heapq.heappop(self._due)
            else:
                self._due = [entry for entry in self._due if entry[2] is not held]
                heapq.heapify(self._due)

    # -- What was told ---------------------------------------------------------------------------------------------

    def granted(self, held: HeldRequest, decision: Decision, now: float) -> None:
        """The next one can have its turn no earlier than the buckets say.

        Asking sooner is of no use, and would keep a pool process for it that other lines could use.
        """
        self._told(held, decision)
        self.closed_until = now + _next_turn(held.demands, decision)
        self.next_ask = self.closed_until - ASK_EARLY

    def refused(self, held: HeldRequest, decision: Decision, now: float) -> None:
        self._told(held, decision)
        self.intervals = {state.name: state.interval for state in decision.states}
        self.closed_until = now + decision.retry_after

    def _told(self, held: HeldRequest, decision: Decision) -> None:
        self.open = decision.retry_after <= 0
        if held.plan.policy.throttle == "wait":  # whose queues may be suspended
            self.interval = _interval(held.demands, decision)

    def times(self, now: float, longest: float) -> tuple[float, float]:
        """When somebody has its turn, who has to wait until then (0.0: nobody), and when to look at the line again.

        Args:
            now: the time.
            longest: seconds after which to look in any case.
        """
        heads = [asking[0].until for asking in (self.with_slot, self.new) if asking]
        # Whose time has come waits for a process, which is noted; or it has come while the line asked for another one.
        turns = [self._due[0][0]] if self._due and (self._due[0][0] > now or not self.wants) else []
        if heads and not self.wants:
            turns.append(max(self.next_ask, now + LEAST_PAUSE))
        return min(turns, default=0.0), min([min(heads, default=now + longest), *turns])


def _interval(demands: Sequence[Demand], decision: Decision) -> float:
    """Seconds from one of a line to the next, at the rates that are in force."""
    states = zip(demands, decision.states, strict=True)
    return max([(state.interval or demand.interval) * demand.cost for demand, state in states])


def _next_turn(demands: Sequence[Demand], decision: Decision) -> float:
    """Seconds until the same demands can have their turn again, at the earliest."""
    return max(
        [
            state.reset_after - (state.limit - demand.cost) * state.interval
            if state.interval
            else 0.0  # it tells when it is asked
            for demand, state in zip(demands, decision.states, strict=True)
        ]
    )
