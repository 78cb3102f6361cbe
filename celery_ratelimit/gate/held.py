"""A request in the gate, and the state that it is in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .._celery import stored_id
from .._celery.parcel import doubts_in
from ..app.plan import Plan
from ..limiter.demand import Demand

__all__ = ["HeldRequest", "State", "Unlimited"]


class State(Enum):
    """What becomes of a request next."""

    ASKS = "asks"
    ASKS_AGAIN = "asks again at a time"
    HOLDS_PERMIT = "holds a permit that is good at a time"
    IS_PARKED = "is parked in a moment, with others"
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
    ``is_checked``: whether the store was asked if it is the copy that may run, or need not be.
    ``slot_at``: when it has its turn, if it came back for one; 0.0: it is not known.
    ``asks_from``: it asks no sooner, so that those that come until then ask with it.
    ``announced``: what was said last to have become of it, by ``throttled_by``.
    ``alone``: what it has in common with tasks of which one is to wait; empty: all may.
    ``shadow``: what it asks of limits in shadow, which do not hold it up.
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
    asks_from: float = 0.0
    slot_at: float = 0.0
    is_checked: bool = True
    outside_prefetch: bool = False
    state: State = State.ASKS
    at: float = 0.0
    permit_at_us: int = 0
    announced: str = ""
    throttled_by: str = ""
    alone: str = ""
    shadow: tuple[Demand, ...] = ()
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

    @property
    def stays(self) -> bool:
        """Whether it waits here for its turn, if that is near, and does not go elsewhere at once."""
        return self.has_slot or self.plan.policy.throttle == "wait"

    def demand(self, name: str | None) -> Demand:
        """What it asks of the limit of that name."""
        return next((demand for demand in self.demands if demand.name == name), self.demands[0])


@dataclass(slots=True, eq=False)
class Unlimited:
    """A request in the gate that nothing limits: it waits for a process, as others do. See :class:`HeldRequest`.

    ``permit`` and ``on_start``: of one whose limits are in shadow.
    """

    request: Any
    queue: str
    number: int
    since: float
    outside_prefetch: bool = False
    permit: dict[str, Any] | None = None
    on_start: Callable[[], None] = lambda: None
