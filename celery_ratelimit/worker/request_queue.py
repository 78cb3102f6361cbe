"""The requests of one worker that wait for the same limits, each in one state, which its queue alone changes.

* **QUEUED**: it asks as soon as it is the first of its queue that does, and the queue may ask;
* **ACQUIRING**: the call that asks for it is in flight; until the reply it keeps its place in the queue;
* **DEFERRED**: it asks again at a time that the store has told;
* **GRANTED**: it has a permit, which is good at a time;
* **PARKING**: the call that parks it is about to be made, or in flight;
* **GONE**: it has left.

Requests with a reservation in the store ask before new ones.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ..limiter.limit_request import LimitRequest
from ..limits.decision import Decision
from .request import AcquireCall, PendingRequest, State

__all__ = ["ACQUIRE_EARLY", "LEAST_PAUSE", "LimitQueue", "TimedRequests"]

#: Seconds before its turn that a queue asks, so that a late timer wastes nothing.
ACQUIRE_EARLY = 0.02
#: Seconds after which a queue that cannot go on now is looked at again, at the soonest.
LEAST_PAUSE = 0.001


class TimedRequests:
    """The requests of a queue that have a time: at which they ask again, or their permit is good."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, PendingRequest]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[PendingRequest]:
        return iter([pending for _, _, pending in self._entries])

    def in_order(self) -> list[PendingRequest]:
        """By their times."""
        return [pending for _, _, pending in sorted(self._entries)]

    def add(self, at: float, pending: PendingRequest) -> None:
        heapq.heappush(self._entries, (at, next(self._numbers), pending))

    def remove(self, pending: PendingRequest) -> None:
        if self._entries and self._entries[0][2] is pending:
            heapq.heappop(self._entries)
        else:
            self._entries = [entry for entry in self._entries if entry[2] is not pending]
            heapq.heapify(self._entries)

    @property
    def next(self) -> float:
        """The first time; there has to be one."""
        return self._entries[0][0]

    def first(self, now: float) -> PendingRequest | None:
        """The first whose time has come."""
        return self._entries[0][2] if self._entries and self._entries[0][0] <= now else None

    def are_late_together(self, now: float) -> bool:
        """Whether more than one permit is good by now and was not used."""
        return any(at <= now and pending.state is State.GRANTED for at, _, pending in self._entries[1:3])


@dataclass(slots=True, eq=False)
class LimitQueue:
    """The requests of one worker that ask the same buckets, first come first served. Times are of ``time.monotonic``.

    Attributes:
        key: the buckets.
        number: of the worker's queues.
        channel: where the store notifies it that a lease may be free; empty: it waits for none.
        announced_at: when all requests that wait here for leases asked last.
        reserved: queued requests with a reservation (they returned, or the pool was busy); they go first.
        new: queued requests without one.
        closed_until: when the first request has its turn, by ``limited_by``, the name of a limit.
        intervals: seconds in which a permit comes back, by limit, at the last refusal.
        interval: seconds from one turn to the next, at the last decision.
        next_acquire: when the head may ask; earlier it would be told to wait.
        permit_available: the last decision left a permit available; a new request needs no reservation.
        needs_process: it would go on if a process were free.
        cancel: cancels the queue's timer, which goes off at ``alarm``.
        due: requests that have a time.
        acquire: the call in flight for the first requests; the others wait for its reply.
    """

    key: tuple[tuple[str, str], ...] = ()
    number: int = 0
    channel: str = ""
    announced_at: float = 0.0
    reserved: deque[PendingRequest] = field(default_factory=deque)
    new: deque[PendingRequest] = field(default_factory=deque)
    closed_until: float = 0.0
    limited_by: str | None = None
    intervals: dict[str, float] = field(default_factory=dict)
    interval: float = 0.0
    next_acquire: float = 0.0
    permit_available: bool = True
    needs_process: bool = False
    cancel: Callable[[], None] | None = None
    alarm: float = 0.0
    due: TimedRequests = field(default_factory=TimedRequests)
    parking: list[PendingRequest] = field(default_factory=list)
    acquire: AcquireCall | None = None

    # -- Contents --------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[PendingRequest]:
        return itertools.chain(self.reserved, self.new, self.due, self.parking)

    def __len__(self) -> int:
        return len(self.reserved) + len(self.new) + len(self.due) + len(self.parking)

    def asking(self, pending: PendingRequest) -> deque[PendingRequest]:
        """The queued requests that a request stands among: reserved or new."""
        return self.reserved if pending.has_reservation else self.new

    def is_late(self, by: float) -> bool:
        """Whether a request should have started before that time, or asked, if it has a reservation."""
        if self.due and self.due.next < by:
            return True
        return bool(self.reserved) and max(self.next_acquire, self.reserved[0].not_before) < by

    @property
    def only_newcomers(self) -> bool:
        return bool(self.new and not self.reserved and not self.due)

    # -- Moves -----------------------------------------------------------------------------------------------------

    def enqueue(
        self, pending: PendingRequest, *, is_new: bool = False, first: bool = False, has_reservation: bool = False
    ) -> None:
        """Queue a request behind the others, or ``first``; ``has_reservation``: it has one now.

        ``is_new``: the request was not in this queue.
        """
        if not is_new:
            self._take_out(pending)
        elif pending.has_reservation:  # its turn may be before that of a new request that waits here
            self.next_acquire = min(self.next_acquire, pending.not_before)
        pending.state, pending.has_reservation = State.QUEUED, pending.has_reservation or has_reservation
        asking = self.asking(pending)
        if first:  # a new one is to leave: behind others that are
            leaving = sum(each.release_deadline <= pending.release_deadline for each in asking) if is_new else 0
            asking.insert(leaving, pending)
        else:
            asking.append(pending)

    def requeue(self, pending: PendingRequest, *, behind: Sequence[PendingRequest] = ()) -> None:
        """Queue a request whose time is void before the others, but ``behind`` the ones that were requeued just now."""
        self._take_out(pending)
        pending.state, pending.permit_at_us = State.QUEUED, 0
        self.asking(pending).insert(sum(each in self.asking(pending) for each in behind), pending)

    def defer(self, pending: PendingRequest, at: float, *, has_reservation: bool = False) -> None:
        """Let a request ask again at that time; ``has_reservation``: it has one now."""
        self._move(pending, State.DEFERRED, at)
        pending.has_reservation = pending.has_reservation or has_reservation

    def grant(self, pending: PendingRequest, at: float, permit_at_us: int) -> None:
        """Note a permit of a request, which is good at that time."""
        pending.permit_at_us = permit_at_us
        self._move(pending, State.GRANTED, at)

    def start_parking(self, pending: PendingRequest) -> None:
        """A request is about to be parked."""
        self._take_out(pending)
        pending.state = State.PARKING
        self.parking.append(pending)

    def leave(self, pending: PendingRequest) -> None:
        """A request has left."""
        self._take_out(pending)
        pending.state = State.GONE

    def clear(self) -> list[PendingRequest]:
        """All requests are gone. Returns them."""
        gone = list(self)
        for pending in gone:
            pending.state = State.GONE
        self.reserved.clear()
        self.new.clear()
        self.parking.clear()
        self.due, self.acquire = TimedRequests(), None
        return gone

    def requeue_deferred(self) -> None:
        """Let all deferred requests ask now, in their order, before the others."""
        again = [pending for pending in self.due.in_order() if pending.state is State.DEFERRED]
        for number, pending in enumerate(again):
            self.requeue(pending, behind=again[:number])
        self.next_acquire = 0.0

    def _move(self, pending: PendingRequest, state: State, at: float) -> None:
        self._take_out(pending)
        pending.state, pending.at = state, at
        self.due.add(at, pending)

    def _take_out(self, pending: PendingRequest) -> None:
        if pending.state in (State.QUEUED, State.ACQUIRING):
            asking = self.asking(pending)
            if asking and asking[0] is pending:
                asking.popleft()
            elif pending in asking:
                asking.remove(pending)
        elif pending.state is State.PARKING:
            self.parking.remove(pending)
        elif pending.state is not State.GONE:
            self.due.remove(pending)

    # -- Decisions -------------------------------------------------------------------------------------------------

    def record_decision(self, pending: PendingRequest, decision: Decision, now: float, *, early: float) -> None:
        """Note a decision about a request of the queue: its next turn. It asks ``early`` seconds before."""
        self.permit_available = decision.retry_after <= LEAST_PAUSE
        self.interval = _interval(pending.demands, decision)
        if decision.allowed:
            # No earlier than the buckets say: asking sooner is of no use, and would keep a pool process that other
            # queues could use.
            wait, self.limited_by = _next_turn(pending.demands, decision)
            self.closed_until = now + wait
            self.next_acquire = self.closed_until - early
        else:
            self.intervals = {state.name: state.interval for state in decision.states}
            self.closed_until, self.limited_by = now + decision.retry_after, decision.limited_by

    def times(self, now: float, max_hold: float) -> tuple[float, float]:
        """When a request that has to wait has its turn (0.0: none has), and when to look at the queue again.

        Args:
            max_hold: seconds after which to look in any case.
        """
        heads = [asking[0].release_deadline for asking in (self.reserved, self.new) if asking]
        # A request whose time has come waits for a process, or its time came while the queue was asking.
        turns = [self.due.next] if self.due and (self.due.next > now or not self.needs_process) else []
        if heads and not self.needs_process and self.acquire is None:
            turns.append(max(self.next_acquire, now + LEAST_PAUSE))
        return min(turns, default=0.0), min([min(heads, default=now + max_hold), *turns])


def task_name(limit_queue: LimitQueue) -> str:
    """The name of the task that goes next in a queue; empty: no request is in it."""
    first = next(itertools.chain(limit_queue.reserved, limit_queue.new, limit_queue.due), None)
    return first.request.task.name if first is not None else ""


def permit_interval(limit_queue: LimitQueue, demand: LimitRequest) -> float:
    """Seconds in which a permit of the demand's limit comes back, as of the last refusal of the queue."""
    return limit_queue.intervals.get(demand.name) or demand.interval


def _interval(demands: Sequence[LimitRequest], decision: Decision) -> float:
    """Seconds from one request of a queue to the next, at the rates that are in force."""
    states = zip(demands, decision.states, strict=True)
    return max([(state.interval or demand.interval) * demand.cost for demand, state in states])


def _next_turn(demands: Sequence[LimitRequest], decision: Decision) -> tuple[float, str]:
    """Seconds until the same demands can have their turn again, at the earliest, and the limit that says so."""
    return max(
        [
            (
                state.reset_after - (state.capacity - demand.cost - demand.left(state.capacity)) * state.interval,
                state.name,
            )
            if state.interval
            else (0.0, state.name)  # it tells when it is asked
            for demand, state in zip(demands, decision.states, strict=True)
        ]
    )
