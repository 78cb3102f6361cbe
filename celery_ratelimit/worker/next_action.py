"""Decides what happens to a request next: pure functions, so that every rule is a row of a table in the tests.

A rule is applied three times: before the store is asked, when it has answered, and when the time of the request has
come. :mod:`~celery_ratelimit.worker.perform_action` carries out the action that it returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..app.plan import Plan
from ..backlog.tuning import RETURN_AHEAD, RETURN_EARLY
from ..errors import RateLimitError
from ..limiter.limit_request import LimitRequest
from ..limits.concurrency import Concurrency
from ..limits.decision import Decision
from .request import PendingRequest, State
from .request_queue import LEAST_PAUSE, LimitQueue

# fmt: off
__all__ = [
    "BUNCHED", "NOTIFICATION_TIMEOUT", "RETURN_HOLD", "STALE", "Acquire", "Action", "BlockQueue", "DropDuplicate",
    "Fail", "GiveUp", "Park", "Republish", "RetryAt", "Start", "StartAt", "before_acquire", "granted",
    "is_concurrency", "on_timer", "refused", "without_store",
]
# fmt: on

#: Seconds that a returning task may be held when its slot has slipped, before it is sent back once more.
RETURN_HOLD = 1.0
#: Seconds after which a queue that waits for a lease asks without a notification.
NOTIFICATION_TIMEOUT = 1.0
#: Seconds after which a permit that was not used is stale; and where several are late, which would bunch.
STALE, BUNCHED = 0.1, 0.04


@dataclass(frozen=True, slots=True)
class Start:
    """The task starts, with a permit that is good since then (µs by the store's clock; 0: without the store)."""

    permit_at_us: int


@dataclass(frozen=True, slots=True)
class StartAt:
    """The request keeps a permit that is good at that time."""

    at: float
    permit_at_us: int


@dataclass(frozen=True, slots=True)
class Acquire:
    """The request asks the store: for a permit, or for a reservation alone, where its task is not parked."""

    for_permit: bool


@dataclass(frozen=True, slots=True)
class RetryAt:
    """The request asks again at that time; ``None``: when a process is free. Others of its queue may ask."""

    at: float | None
    has_reservation: bool = False


@dataclass(frozen=True, slots=True)
class BlockQueue:
    """The request stays at the head of its queue, which asks no sooner; ``None``: than a process is free.

    ``demand`` has refused it, and its turn is in ``wait`` seconds.
    """

    until: float | None
    demand: LimitRequest | None = None
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Park:
    """The task is parked in the backlog of ``demand``; its turn is ``wait`` seconds after the tasks before it.

    ``only_behind``: only if other tasks are parked there; else it asks. ``since``: when it was throttled first, in
    microseconds, by which parked tasks are ordered; 0: now.
    """

    demand: LimitRequest
    wait: float
    only_behind: bool = False
    since: int = 0


@dataclass(frozen=True, slots=True)
class Republish:
    """The message returns to the broker for so many seconds; ``demand``: of the limit that it waits for, if any."""

    wait: float
    demand: LimitRequest | None = None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The task does not run here; ``how``: ``"drop"``, ``"fail"``, or the queue that its message is sent to."""

    how: str
    demand: LimitRequest
    wait: float
    queue_full: bool = False


@dataclass(frozen=True, slots=True)
class Fail:
    """The task fails with an error."""

    error: RateLimitError


@dataclass(frozen=True, slots=True)
class DropDuplicate:
    """The message ends: another copy of the task is parked, or may run."""


Action = Start | StartAt | Acquire | RetryAt | BlockQueue | Park | Republish | GiveUp | DropDuplicate | Fail


def before_acquire(
    pending: PendingRequest,
    limit_queue: LimitQueue,
    now: float,
    *,
    lot: LimitRequest | None,
    may_start: bool,
    parks: bool = False,
    leaves: bool = False,
) -> Action:
    """Decide for the head of a queue, as far as the store need not be asked.

    Args:
        lot: the demand in whose backlog tasks are known to be parked, behind which it may be parked.
        may_start: whether a process is free for it.
        parks: whether its task may wait in the store now.
        leaves: it is to go to another worker, as no process will be free for long.
    """
    policy = pending.plan.policy
    if now >= pending.release_deadline:  # the broker would soon take it for lost, and hand it out a second time
        return Republish(0.0, pending.demands[0])
    if leaves:
        return Republish(max(0.0, pending.reserved_for - now))
    if lot is not None:
        return Park(lot, RETURN_AHEAD, only_behind=True)
    if (pending.has_reservation or policy.throttle == "wait") and now < limit_queue.next_acquire:
        wait = limit_queue.closed_until - now
        if pending.has_reservation or wait <= policy.inline_wait:
            return BlockQueue(limit_queue.next_acquire)
        return BlockQueue(limit_queue.next_acquire, pending.demand(limit_queue.limited_by), wait)  # as it would be told
    if now < pending.not_before:
        return BlockQueue(pending.not_before)
    if may_start:
        return Acquire(for_permit=True)
    # No permit is taken without a process. A newcomer whose limit is closed for long makes room for what is behind it.
    if pending.has_reservation or policy.throttle != "retry":
        return BlockQueue(None)
    if not parks:  # its message returns at its slot
        return BlockQueue(None) if limit_queue.permit_available else Acquire(for_permit=False)
    wait = limit_queue.closed_until - now  # of another request: the store alone says that a task has waited too long
    if wait > policy.inline_wait and now - pending.arrived_at + wait <= policy.claim:
        return Park(pending.demand(limit_queue.limited_by), wait)
    return BlockQueue(None)


def is_concurrency(demand: LimitRequest) -> bool:
    """Whether it asks for a lease."""
    return isinstance(demand.limit, Concurrency)


def granted(decision: Decision, now: float, *, is_idle: bool) -> Action:
    """The store has granted its permits; ``is_idle``: a process would start it at once."""
    if decision.retry_after <= 0 and is_idle:
        return Start(decision._granted_at)
    return StartAt(now + decision.retry_after, decision._granted_at)


class PermitRequest(Protocol):
    """The part of a request that :func:`refused` reads; see :class:`PendingRequest`."""

    @property
    def plan(self) -> Plan: ...

    @property
    def queue(self) -> str: ...

    @property
    def arrived_at(self) -> float: ...

    @property
    def has_reservation(self) -> bool: ...

    def demand(self, name: str | None) -> LimitRequest: ...


def refused(
    pending: PermitRequest,
    decision: Decision,
    now: float,
    *,
    for_permit: bool,
    max_hold: float,
    parks: bool,
    early: float,
    is_notified: bool = False,
) -> Action:
    """The store has refused.

    Args:
        for_permit: whether a permit was asked for, or only a slot.
        max_hold: seconds that a message may be held here.
        early: seconds before its time that it asks.
        is_notified: it waits for a lease, and its queue is notified when one may be free.
    """
    policy, wait = pending.plan.policy, decision.retry_after
    demand = pending.demand(decision.limited_by)
    full = decision.queue_full and policy.overflow != pending.queue
    if policy.waits and (full or wait + (now - pending.arrived_at) > policy.claim):
        return GiveUp(policy.overflow, demand, wait, decision.queue_full)
    if wait <= policy.inline_wait or (pending.has_reservation and wait <= RETURN_HOLD):
        # A little too early, or the pool is busy: asks again at its time, or when a process is free.
        if wait <= 0:
            return BlockQueue(None)
        if is_notified and pending.has_reservation:
            return BlockQueue(now + NOTIFICATION_TIMEOUT)
        at = now + max(LEAST_PAUSE, wait - early) if for_permit else None
        return RetryAt(at, has_reservation=pending.has_reservation or policy.throttle == "retry")
    if not policy.waits:
        return GiveUp(policy.throttle, demand, wait)
    if policy.throttle == "wait" and is_notified:
        return BlockQueue(now + NOTIFICATION_TIMEOUT, demand, wait)
    if policy.throttle == "wait" and wait <= max_hold:
        return BlockQueue(now + max(LEAST_PAUSE, min(wait - early, pending.plan.longest_pause)), demand, wait)
    if parks:
        return Park(demand, wait, since=decision._granted_at)
    return Republish(wait, demand)


def without_store(
    choice: str,
    pending: PendingRequest,
    now: float,
    error: RateLimitError,
    *,
    may_start: bool,
    wait: float,
    pause: float,
) -> Action:
    """The store does not answer.

    Args:
        choice: ``ratelimit_on_store_error``.
        error: what there is of an answer.
        may_start: whether a process is free for it.
        wait: ``"local"``: seconds until this worker's share of the limits allows it; 0.0: taken, or all may pass.
        pause: seconds after which a deferred task returns.
    """
    throttle = pending.plan.policy.throttle
    if choice in ("local", "allow"):
        if not may_start:
            return BlockQueue(None)
        if wait <= 0:
            return Start(0)
        if throttle != "retry" or wait <= RETURN_HOLD:
            return RetryAt(now + wait)
    if choice == "raise":
        return Fail(error)
    return BlockQueue(now + pause) if throttle == "wait" else Republish(pause + RETURN_EARLY)


def on_timer(pending: PendingRequest, now: float, *, together: bool, is_idle: bool) -> Action:
    """The time of a request has come: to ask again, or to use its permit.

    Args:
        together: whether another one's permit is late, too.
        is_idle: whether a process would start it at once.
    """
    if pending.state is not State.GRANTED:
        return RetryAt(now)
    late = now - pending.at
    if late > (BUNCHED if together else STALE) and late > max([demand.interval for demand in pending.demands]):
        return RetryAt(now)
    return Start(pending.permit_at_us) if is_idle else BlockQueue(None)  # one is free soon, or it asks again
