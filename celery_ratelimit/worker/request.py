"""A request in the gate, and the state that it is in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .._celery import stored_id
from ..app.plan import Plan
from ..forks import Ids
from ..limiter.leases import run_id
from ..limiter.limit_request import LimitRequest
from ..store_calls.store_calls import Reply

__all__ = ["AcquireCall", "PendingRequest", "State", "UnlimitedRequest"]


class State(Enum):
    """The state of a request in the gate."""

    QUEUED = "asks"
    ACQUIRING = "waits for the reply to the call that asks for it"
    DEFERRED = "asks again at a time"
    GRANTED = "holds a permit that is good at a time"
    PARKING = "waits for the reply to the call that parks it"
    GONE = "gone"


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request in the gate.

    Attributes:
        number: requests are numbered in the order in which they came.
        arrived_at, release_deadline: when it came to the gate, and when it is sent to the broker again at the latest:
            before the broker takes the message for lost.
        has_reservation: it has a reservation in the store, so it goes before newcomers.
        returned: it has come back from its countdown or from the store.
        outside_prefetch: it does not count against the prefetch.
        state, at: its state, and the time that belongs to it.
        permit_at_us: when its permit is good, in microseconds by the store's clock; 0: it has none.
        can_park: its task may wait in the store, so there may be copies of its message.
        duplicate_checked: this copy may run; that is asked when it asks for its permit, or is parked.
        reserved_for: the time of its slot, if it came back for one; 0.0: unknown.
        not_before: it asks no sooner, so that requests that come until then ask with it.
        announced, throttled_by: what was reported last about it, and the limit that refused it.
        coalesce_key: shared by tasks of which only one is to wait; empty: all may.
        shadow: its demands on limits in shadow, which do not delay it.
        run_id: names the run of the task that it asks for: another one for each delivery, and for each permit.
        lease_unconfirmed: the answer to its last question for leases is not known: it may hold some.
        token: names this delivery of its message where it is parked.
        attempt: how many replies to calls that park it were lost.
    """

    request: Any
    queue: str
    plan: Plan
    demands: tuple[LimitRequest, ...]
    number: int
    arrived_at: float
    release_deadline: float
    has_reservation: bool
    returned: bool
    not_before: float = 0.0
    reserved_for: float = 0.0
    can_park: bool = False
    duplicate_checked: bool = False
    outside_prefetch: bool = False
    state: State = State.QUEUED
    at: float = 0.0
    permit_at_us: int = 0
    announced: str = ""
    throttled_by: str = ""
    coalesce_key: str = ""
    shadow: tuple[LimitRequest, ...] = ()
    lease_unconfirmed: bool = False
    attempt: int = 0
    id: str = field(init=False)
    run_id: str = field(init=False)
    token: str = field(default_factory=Ids(8), init=False)

    def __post_init__(self) -> None:
        self.id = stored_id(self.request, self.queue)
        self.new_run()

    def new_run(self) -> None:
        """Name the next run: a release that is on its way does not concern it."""
        self.run_id = run_id(self.request.id)

    @property
    def gone(self) -> bool:
        return self.state is State.GONE

    @property
    def parks(self) -> bool:
        """Whether its task waits in the store, if it is throttled; else it waits at the broker."""
        return self.can_park and self.plan.parks

    @property
    def waits_in_worker(self) -> bool:
        """Whether it waits here for its turn, if that is near, and does not go elsewhere at once."""
        return self.has_reservation or self.plan.policy.throttle == "wait"

    def demand(self, name: str | None) -> LimitRequest:
        """The demand on the limit of that name."""
        return next((demand for demand in self.demands if demand.name == name), self.demands[0])


@dataclass(slots=True, eq=False)
class AcquireCall:
    """A call that asks for permits, or for slots alone, for requests of a queue.

    Attributes:
        requests: they ask the same, one after the other.
        reply: what the store has said; ``None``: the call is in flight.
        is_late: the worker goes on; it has not come back to the call yet.
        is_void: the limit has changed meanwhile: a refusal says nothing.
    """

    requests: Sequence[PendingRequest]
    for_permit: bool
    reply: Reply[Any] | None = None
    is_late: bool = False
    is_void: bool = False

    def begin(self) -> None:
        """The requests keep their order, and no other of their queue asks before the reply."""
        for pending in self.requests:
            if pending.state is State.QUEUED:  # else the connection was lost while a greenlet was here
                pending.state = State.ACQUIRING

    def end(self) -> None:
        """The reply is there, or never comes: the requests are queued again."""
        for pending in self.requests:
            if pending.state is State.ACQUIRING:
                pending.state = State.QUEUED


@dataclass(slots=True, eq=False)
class UnlimitedRequest:
    """A request in the gate that no limit holds up: it waits for a process.

    Attributes:
        number, since, outside_prefetch: see :class:`PendingRequest`.
        permit, on_start: of a request whose limits are all in shadow.
    """

    request: Any
    queue: str
    number: int
    since: float
    outside_prefetch: bool = False
    permit: dict[str, Any] | None = None
    on_start: Callable[[], None] = lambda: None
