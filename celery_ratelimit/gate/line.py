"""Who is in the gate, and where: the requests of one worker, in lines."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .._celery import stored_id
from .._celery.parcel import doubts_in
from ..app.plan import Plan
from ..limiter.demand import Demand

__all__ = ["HeldRequest", "Line", "Unlimited"]


@dataclass(slots=True, eq=False)
class HeldRequest:
    """A request in the gate.

    ``number``: in the order in which requests came; ``since``: when it came to the gate; ``until``: when it is sent
    anew, before the broker takes it for lost.
    ``has_slot``: it has a slot in the store's line, so it goes before newcomers. ``returned``: it is back from its
    countdown. ``outside_prefetch``: it does not count against the prefetch, or those that wait for their turn would
    keep others out.
    ``permit_at_us``: it has a permit, good at that time (microseconds, the store's clock). ``gone``: it has left the
    gate.
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
    permit_at_us: int | None = None
    announced: str = ""
    gone: bool = False
    id: str = field(init=False)
    doubts: int = field(init=False)
    doubtful: bool = field(init=False)

    def __post_init__(self) -> None:
        self.id = stored_id(self.request, self.queue)
        self.doubts = doubts_in(self.request.message)
        self.doubtful = self.doubts > 0

    @property
    def task_id(self) -> str:
        return str(self.request.id)


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
    """The requests of one worker that ask the same buckets, first come first served.

    Attributes:
        with_slot: those that have a slot (they came back, or the pool was busy) and have to ask; they go first.
        new: newcomers that have to ask.
        due: (time, number, held): holds a permit that is good at that time, or asks again then.
        closed_until: when the head was told to have its turn.
        intervals: seconds in which a permit comes back, by limit, as it was when somebody was refused last.
        interval: seconds from one turn to the next, as it was in force when somebody asked last.
        next_ask: when the head may ask; earlier it would be told to wait.
        open: the last one that asked could have started at once: a newcomer need not ask for a slot.
        wants: it would move on if a process were free.
        turn: when somebody of it has its turn, who has to wait until then; 0.0: nobody.
        cancel: cancels the line's timer, which goes off at ``alarm``.
    """

    with_slot: deque[HeldRequest] = field(default_factory=deque)
    new: deque[HeldRequest] = field(default_factory=deque)
    due: list[tuple[float, int, HeldRequest]] = field(default_factory=list)
    closed_until: float = 0.0
    intervals: dict[str, float] = field(default_factory=dict)
    interval: float = 0.0
    next_ask: float = 0.0
    open: bool = True
    wants: bool = False
    turn: float = 0.0
    cancel: Callable[[], None] | None = None
    alarm: float = 0.0

    def waiting(self, held: HeldRequest) -> deque[HeldRequest]:
        return self.with_slot if held.has_slot else self.new

    def __iter__(self) -> Iterator[HeldRequest]:
        return itertools.chain(self.with_slot, self.new, [held for _, _, held in self.due])

    def remove(self, held: HeldRequest) -> float | None:
        """It waits here no more. When it was due, if it was."""
        for waiting in (self.with_slot, self.new):
            if held in waiting:
                waiting.remove(held)
        for entry in self.due:
            if entry[2] is held:
                self.due.remove(entry)
                heapq.heapify(self.due)
                return entry[0]
        return None

    def __len__(self) -> int:
        return len(self.with_slot) + len(self.new) + len(self.due)
