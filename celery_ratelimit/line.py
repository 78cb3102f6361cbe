"""Who is in the gate, and where: the requests of one worker, in lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .binding import Plan
from .limiter import Demand

__all__ = ["Held", "Line"]


@dataclass(slots=True, eq=False)
class Held:
    """A request in the gate.

    ``slotted``: it has a slot in the store's line, so it goes before newcomers. ``returned``: it is back from its
    countdown; it does not count against the prefetch, or those that wait for their turn would keep newcomers out.
    ``paid``: it has a permit, good at that time (microseconds, the store's clock).
    """

    request: Any
    queue: str
    plan: Plan
    demands: tuple[Demand, ...]
    since: float
    slotted: bool
    returned: bool
    paid: int | None = None
    announced: bool = False

    @property
    def id(self) -> str:
        """What the store knows it by. Each attempt of a task that is tried again is a request of its own."""
        retries = self.request.request_dict.get("retries")
        return f"{self.request.id}.{retries}" if retries else self.request.id


@dataclass(slots=True, eq=False)
class Line:
    """The requests of one worker that ask the same buckets, first come first served.

    Attributes:
        slotted: those that have a slot (they came back, or the pool was busy) and have to ask; they go first.
        new: newcomers that have to ask.
        due: (time, number, held): holds a permit that is good at that time, or asks again then.
        next_ask: when the head may ask; earlier it would be told to wait.
        open: the last one that asked could have started at once: a newcomer need not ask for a slot.
        cancel: cancels the line's timer, which goes off at ``alarm``.
    """

    slotted: deque[Held] = field(default_factory=deque)
    new: deque[Held] = field(default_factory=deque)
    due: list[tuple[float, int, Held]] = field(default_factory=list)
    next_ask: float = 0.0
    open: bool = True
    cancel: Callable[[], None] | None = None
    alarm: float = 0.0

    def waiting(self, held: Held) -> deque[Held]:
        return self.slotted if held.slotted else self.new

    def __len__(self) -> int:
        return len(self.slotted) + len(self.new) + len(self.due)
