"""Acquires permits: what the store is asked for requests of a queue, and what becomes of each by its reply."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic

from ..backlog.deduplicator import Along
from ..backlog.tuning import RETURN_EARLY
from ..errors import ImpossibleRequest
from ..limiter.argument_checks import microseconds
from ..limiter.leases import LeaseKeeper
from ..limiter.limit_request import LimitRequest
from ..limiter.sync_store import StoreRunner
from ..limits import Concurrency
from ..limits.decision import Decision
from ..store_calls.outage import Outage
from ..store_calls.store_calls import Reply, StoreCalls
from .capacity import PoolCapacity
from .concurrency import MAX_BATCH, ConcurrencyLeases
from .deduplication import Deduplication, acquire_along
from .next_action import (
    BUNCHED,
    RETURN_HOLD,
    Action,
    BlockQueue,
    DropDuplicate,
    Fail,
    granted,
    is_concurrency,
    refused,
    without_store,
)
from .pool_scheduler import PoolScheduler
from .request import AcquireCall, PendingRequest
from .request_queue import LimitQueue

__all__ = [
    "MAX_BATCH",
    "POLL_INTERVAL",
    "FallbackLimiter",
    "PermitClient",
    "acquire_in_order",
    "claim",
    "max_lookahead",
]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: A horizon that grants nothing: asks only for a slot.
SLOT_ONLY = -1e6
#: Turns that come within so many round trips are asked for together: a worker spends a tenth of its time waiting.
BUSY = 10
#: Round trips before its turn that a queue asks: one for the reply, and one in which the worker waits for another.
TRIPS = 2


class PermitClient:
    """Asks the store for one worker.

    Args:
        pool_scheduler: says how far ahead permits may be taken, and how early a queue asks.
        max_hold: seconds that a message of a queue may be held here.
    """

    def __init__(
        self,
        asker: StoreRunner,
        store_calls: StoreCalls,
        outage: Outage,
        fallback: FallbackLimiter,
        concurrency: ConcurrencyLeases,
        pool_scheduler: PoolScheduler,
        deduplication: Deduplication,
        max_hold: Callable[[str], float],
    ) -> None:
        self._asker, self._store_calls, self._latency = asker, store_calls, store_calls.latency
        self._outage, self._fallback, self._concurrency = outage, fallback, concurrency
        self._pool_scheduler, self._deduplication, self._max_hold = pool_scheduler, deduplication, max_hold

    # -- How long it takes -----------------------------------------------------------------------------------------

    def lead_time(self) -> float:
        """Seconds before its turn that a queue asks: no longer than a permit may be taken ahead."""
        return min(self._pool_scheduler.early() + TRIPS * self._latency.round_trip, self._pool_scheduler.ahead())

    def not_before(self, now: float, reserved_for: float) -> float:
        """When a request asks that returns now for a turn at ``reserved_for``: requests that return by then ask, too.

        One that comes much sooner was called: there is another rate.
        """
        gathered = max(now + self._latency.round_trip / 4, reserved_for - self.lead_time())
        return gathered if gathered <= now + RETURN_EARLY else now

    def batch_size(self, limit_queue: LimitQueue, pending: PendingRequest) -> int:
        """How many may ask at once, so that the worker does not wait for answers most of the time."""
        if pending.plan.leased:
            return self._concurrency.batch_size(limit_queue)
        if pending.has_reservation:
            return MAX_BATCH
        interval = limit_queue.interval or max(demand.interval * demand.cost for demand in pending.demands)
        if interval <= 0:
            return 1
        return min(MAX_BATCH, 1 + int(BUSY * self._latency.round_trip / interval))

    # -- Asking ----------------------------------------------------------------------------------------------------

    def acquire(
        self, limit_queue: LimitQueue, call: AcquireCall, on_reply: Callable[[Reply[Sequence[Decision | None]]], None]
    ) -> None:
        """Ask for permits, or for slots alone: for requests of a queue that ask the same, one after the other.

        A call that hands leases over, or tells the store which copies have come, is made by the worker's loop.
        """
        asking, for_permit, first = call.requests, call.for_permit, call.requests[0]
        together, ahead = len(asking) > 1 and not first.plan.leased, self._pool_scheduler.ahead()
        horizon = max_lookahead(first, ahead, together=together) if for_permit else SLOT_ONLY
        how = {"horizon": horizon, "claim": claim(first, parks=first.parks)}
        if first.plan.leased:
            leases = partial(self._concurrency.acquire, limit_queue, asking, for_permit=for_permit, **how)
            self._store_calls.submit(leases, on_reply, in_loop=True)
        elif all(pending.duplicate_checked for pending in asking):
            self._store_calls.submit(partial(self._ask_next, asking, how), on_reply)
        else:
            acquire, acquire_along = partial(self._ask_next, how=how), partial(self._ask_along, how=how)
            decisions = partial(self._deduplication.acquire, asking, acquire, acquire_along)
            self._store_calls.submit(decisions, on_reply, in_loop=True)

    def answers(
        self, first: PendingRequest, reply: Reply[Sequence[Decision | None]]
    ) -> Sequence[Decision | Action | None]:
        """What the store has said to each that asked, see :meth:`action`: up to the first that has neither permits nor
        a slot.
        """
        try:
            said = self._outage.read(reply.get, None)
        except ImpossibleRequest as error:  # a stored limit is smaller than what this task costs
            if not first.duplicate_checked and not self._deduplication.may_run(first):
                return [DropDuplicate()]
            logger.error("Task %s[%s] can never start: %s", first.request.name, first.request.id, error)
            return [Fail(error)]
        return [None] if said is None else [DropDuplicate() if decision is None else decision for decision in said]

    def _ask_next(self, asking: Sequence[PendingRequest], how: Mapping[str, float]) -> list[Decision]:
        return acquire_in_order(self._asker, asking[0].demands, _ids(asking), **how)

    def _ask_along(
        self, asking: Sequence[PendingRequest], along: Along, how: Mapping[str, float]
    ) -> tuple[list[Decision | None], list[bool]]:
        return acquire_along(self._asker, asking[0].demands, _ids(asking), along, **how)

    def action(
        self,
        limit_queue: LimitQueue,
        pending: PendingRequest,
        answer: Decision | Action | None,
        *,
        for_permit: bool,
        at: float | None = None,
    ) -> Action:
        """The action for a request by the store's answer, which came ``at`` that time, or now; ``None``: no answer."""
        now = monotonic() if at is None else at
        if answer is None:
            return self._fallback.action(pending, now)
        if not isinstance(answer, Decision):
            return answer
        self._asker.shadows.note_decision(answer)
        early = self.lead_time()
        limit_queue.record_decision(pending, answer, now, early=early)
        if answer.allowed:
            return self._granted(pending, answer, now)
        is_notified = (
            pending.waits_in_worker and bool(limit_queue.channel) and is_concurrency(pending.demand(answer.limited_by))
        )
        return refused(
            pending,
            answer,
            now,
            for_permit=for_permit,
            max_hold=self._max_hold(pending.queue),
            parks=pending.parks,
            early=early,
            is_notified=is_notified,
        )

    def _granted(self, pending: PendingRequest, decision: Decision, now: float) -> Action:
        self._concurrency.note_granted(pending, decision)
        # An answer that has waited long for the worker's loop is as late as a permit that has.
        return granted(decision, now, is_idle=self._pool_scheduler.has_idle and monotonic() - now <= BUNCHED)


def acquire_in_order(
    asker: StoreRunner, demands: Sequence[LimitRequest], ids: Sequence[str], *, horizon: float = 0.0, claim: float = 0.0
) -> list[Decision]:
    """Acquire the same permits for several requests, in one round trip; see :meth:`Operations.ask`.

    Returns a decision for each request, in their order, until the first one that gets neither permits nor a slot.
    """
    core = asker.core
    if len(ids) == 1 or not core.takes_one_script(demands):
        return [asker.ask(demands, id=ids[0], horizon=horizon, claim=claim)]
    script, first = core.scripts.acquire_in_order, (ids[0], microseconds(horizon), microseconds(claim))
    call = core.calls.of_script(script, tuple(demands), first, None, ids[1:])
    return asker.drive(core.decide_each(script, call, demands, ids))


def _ids(asking: Sequence[PendingRequest]) -> list[str]:
    """The ids of requests in the store; empty for a request that does not wait."""
    return [pending.id if pending.plan.policy.waits else "" for pending in asking]


def max_lookahead(pending: PendingRequest, ahead: float, *, together: bool = False) -> float:
    """Seconds ahead that a permit may be taken for it; ``ahead``: for any task that is held; ``together``: it asks with
    others, as the store is far away.
    """
    policy = pending.plan.policy
    seconds = policy.inline_wait
    if policy.throttle == "wait" or pending.has_reservation or together:
        seconds = max(seconds, ahead)
    return seconds if policy.max_wait is None else min(seconds, policy.max_wait)


def claim(pending: PendingRequest, *, parks: bool) -> float:
    """Seconds within which it keeps a slot if it is refused. A task that is parked gets one when it is let out."""
    policy = pending.plan.policy
    if not parks:
        return policy.claim
    return min(policy.claim, RETURN_HOLD if pending.has_reservation else policy.inline_wait)


#: Seconds after which requests that wait for a process, or for a move of the store, are looked at again.
POLL_INTERVAL = 0.1
#: Seconds after which a request asks again for which there is no lease.
AGAIN = 0.5


class FallbackLimiter:
    """With ``"local"`` it gives out this worker's share of each limit: the limit divided by the workers of the fleet.

    It starts empty, not full: what the fleet took just before the outage is not known.

    Args:
        choice: ``ratelimit_on_store_error``.
    """

    def __init__(
        self, choice: str, workers: Callable[[], int], leases: LeaseKeeper, outage: Outage, capacity: PoolCapacity
    ) -> None:
        self._choice, self._workers, self._leases = choice, workers, leases
        self._outage, self._capacity = outage, capacity
        self._tats: dict[tuple[str, str], float] = {}

    def clear(self) -> None:
        """The outage is over."""
        self._tats.clear()

    def action(self, pending: PendingRequest, now: float) -> Action:
        """The action for a request for which the store has not answered."""
        if self._outage.is_a_move:
            return BlockQueue(now + POLL_INTERVAL)
        self._outage.begin(self._outage.error)  # which is said again after a while
        choice = self._choice
        may_start = choice in ("local", "allow") and self._capacity.has_for_permit(now)
        wait = self._wait(pending.demands) if choice == "local" and may_start else 0.0
        if choice == "local" and may_start and wait <= 0:
            self._leases.begin(pending.run_id, pending.demands, 0)
        deferred = choice == "defer" or wait > RETURN_HOLD
        pause = self._outage.pause() if deferred else 0.0
        return without_store(choice, pending, now, self._outage.error, may_start=may_start, wait=wait, pause=pause)

    def _wait(self, demands: Sequence[LimitRequest]) -> float:
        """Take permits of each limit; else the seconds until there are some."""
        now, workers = monotonic(), self._workers()
        leased = [demand for demand in demands if isinstance(demand.limit, Concurrency)]
        if any(self._leases.here(demand) + demand.cost > max(1, demand.size // workers) for demand in leased):
            return AGAIN
        intervals = {
            (demand.name, demand.key): demand.interval * demand.cost * (1 if demand.limit.per_worker else workers)
            for demand in demands
        }
        for bucket, interval in intervals.items():
            self._tats.setdefault(bucket, now + interval)
        wait = max(self._tats[bucket] for bucket in intervals) - now
        if wait <= 0:
            self._tats.update((bucket, now + interval) for bucket, interval in intervals.items())
        return wait
