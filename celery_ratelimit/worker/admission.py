"""What the store says about a request, as a verdict; and what is to become of it while the store does not answer."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from functools import partial

from ..app.plan import Plan
from ..errors import ImpossibleRequest
from ..limiter.asker import Asker
from ..limiter.leases import Leases
from ..limiter.outage import Outage
from ..limits.decision import Decision
from ..parking.arrivals import Arrivals
from ..parking.asks import Reply
from ..parking.publisher import LEAD
from .capacity import PoolCapacity
from .clock import monotonic
from .concurrency import MAX_BATCH, ConcurrencyLeases
from .fallback_limiter import FallbackLimiter
from .permit_terms import claim, max_lookahead
from .request import AcquireCall, PendingRequest
from .request_queue import LimitQueue
from .reservations import Reservations
from .rules import (
    BUNCHED,
    RETURN_HOLD,
    Action,
    BlockQueue,
    DropDuplicate,
    Fail,
    granted,
    is_place,
    refused,
    without_store,
)
from .store_calls import StoreCalls

__all__ = ["MAX_BATCH", "POLL_INTERVAL", "PermitClient"]

logger = logging.getLogger("celery_ratelimit")

#: Seconds after which those who wait for a process are looked at again, should its end not be told.
POLL_INTERVAL = 0.1
#: A horizon that grants nothing: asks only for a slot.
SLOT_ONLY = -1e6
#: Round trips in whose time a line may have its turns with a single one: a tenth of a worker's time goes into waiting.
BUSY = 10
#: Round trips before its turn that a line asks: one for the answer, and one in which the worker waits for another.
TRIPS = 2


class PermitClient:
    """Asks the store for one worker.

    Args:
        asker: the way to the store.
        concurrency: the leases of this worker's tasks.
        leases: renews those that are held.
        store_calls: asks.
        outage: of the store.
        on_store_error: what the app's setting says.
        capacity: of the pool.
        slots: those that are given back.
        share: this worker's, while it decides alone.
        arrivals: of those that come back.
        parks: whether tasks of a plan may wait in the store.
        ahead: seconds ahead that a permit may be taken.
        early: seconds before its turn that a line asks.
        max_hold: seconds that a message may be held here.
    """

    def __init__(
        self,
        asker: Asker,
        concurrency: ConcurrencyLeases,
        leases: Leases,
        store_calls: StoreCalls,
        outage: Outage,
        on_store_error: str,
        capacity: PoolCapacity,
        slots: Reservations,
        share: FallbackLimiter,
        arrivals: Arrivals,
        parks: Callable[[Plan], bool],
        ahead: Callable[[], float],
        early: Callable[[], float],
        max_hold: float,
    ) -> None:
        self._asker, self._leases, self._outage, self._on_store_error = asker, leases, outage, on_store_error
        self._concurrency, self._store_calls = concurrency, store_calls
        self._capacity, self._slots, self._share, self._arrivals = capacity, slots, share, arrivals
        self._store = capacity.store
        self._parks, self._ahead, self._early, self._longest = parks, ahead, early, max_hold

    # -- How long it takes -----------------------------------------------------------------------------------------

    def lead_time(self) -> float:
        """Seconds before its turn that a line asks: no longer than a permit may be taken ahead."""
        return min(self._early() + TRIPS * self._store.round_trip, self._ahead())

    def not_before(self, now: float, reserved_for: float) -> float:
        """When a request asks that comes back now for a turn at ``reserved_for``: those that come until then ask, too.

        One that comes much sooner was called: there is another rate.
        """
        gathered = max(now + self._store.round_trip / 4, reserved_for - self.lead_time())
        return gathered if gathered <= now + LEAD else now

    def batch_size(self, limit_queue: LimitQueue, pending: PendingRequest) -> int:
        """How many may ask at once, so that the worker does not wait for answers most of the time."""
        if pending.plan.leased:
            return self._concurrency.batch_size(limit_queue)
        interval = limit_queue.interval or max(demand.interval * demand.cost for demand in pending.demands)
        if interval <= 0:
            return 1
        return min(MAX_BATCH, 1 + int(BUSY * self._store.round_trip / interval))

    # -- Asking ----------------------------------------------------------------------------------------------------

    def acquire(
        self, limit_queue: LimitQueue, call: AcquireCall, on_reply: Callable[[Reply[Sequence[Decision | None]]], None]
    ) -> None:
        """Ask for permits, or for slots alone: for requests of a queue that ask the same, one after the other.

        Where places are handed on, or the store is told which copies have come, with the same script, the loop asks:
        what is told is its own.
        """
        asking, for_permit = call.requests, call.for_permit
        if asking[0].plan.leased:
            how = self._how(asking[:1], for_permit=for_permit)
            leases = partial(self._concurrency.acquire, limit_queue, asking, for_permit=for_permit, **how)
            self._store_calls.submit(leases, on_reply, in_loop=True)
        elif all(pending.duplicate_checked for pending in asking):
            self._store_calls.submit(self._question(asking, for_permit=for_permit), on_reply)
        else:
            decisions = partial(self._decisions, asking, for_permit=for_permit)
            self._store_calls.submit(decisions, on_reply, in_loop=True)

    def answers(
        self, first: PendingRequest, reply: Reply[Sequence[Decision | None]]
    ) -> Sequence[Decision | Action | None]:
        """What the store has said to each that asked, see :meth:`action`: up to the first that has neither permits nor
        a slot.
        """
        try:
            said = self._outage.hear(reply.get, None)
        except ImpossibleRequest as error:  # a stored limit is smaller than what this task costs
            if not first.duplicate_checked and self._outage.ask(lambda: self._arrivals.may_run(first), None) is False:
                return [DropDuplicate()]
            logger.error("Task %s[%s] can never start: %s", first.request.name, first.request.id, error)
            self._slots.forget(first)
            return [Fail(error)]
        return [None] if said is None else [DropDuplicate() if decision is None else decision for decision in said]

    def _question(
        self, asking: Sequence[PendingRequest], *, for_permit: bool
    ) -> Callable[[], Sequence[Decision | None]]:
        """Of requests of which nothing is to be told."""
        first = asking[0]
        return partial(self._asker.ask_next, first.demands, _ids(asking), **self._how(asking, for_permit=for_permit))

    def _how(self, asking: Sequence[PendingRequest], *, for_permit: bool) -> dict[str, float]:
        """Seconds ahead that permits are taken, and within which slots are kept."""
        first = asking[0]
        seconds = max_lookahead(first, self._ahead(), together=len(asking) > 1) if for_permit else SLOT_ONLY
        return {"horizon": seconds, "claim": claim(first, parks=self._parks(first.plan))}

    def _decisions(self, asking: Sequence[PendingRequest], *, for_permit: bool) -> Sequence[Decision | None]:
        """What the store says; ``None``: another copy may run. Those that have come from a lot are told with it."""
        asking = self._who_may_run(asking)
        if not asking:
            return [None]
        if all(pending.duplicate_checked for pending in asking):
            return self._question(asking, for_permit=for_permit)()
        with self._arrivals.told_along(asking) as told:
            if told is None:
                return self._question(asking, for_permit=for_permit)()
            how = self._how(asking, for_permit=for_permit)
            decisions, told.may = self._asker.ask_along(asking[0].demands, _ids(asking), told.along, **how)
            told.answered = len(decisions)
        for pending, _ in zip(asking, decisions, strict=False):
            pending.duplicate_checked = True
        return decisions

    def _who_may_run(self, asking: Sequence[PendingRequest]) -> Sequence[PendingRequest]:
        """Those of them, from the first on, of which it is known by the answer: where greenlets switch, another one may
        have told of some of them since they were looked at. Nobody: another copy of the first may.
        """
        first = asking[0]
        if not first.duplicate_checked and not self._arrivals.asks_along(first):
            if not self._arrivals.may_run(first):
                return []
            first.duplicate_checked = True
        return [
            *itertools.takewhile(
                lambda pending: pending.duplicate_checked or self._arrivals.asks_along(pending), asking
            )
        ]

    def action(
        self,
        limit_queue: LimitQueue,
        pending: PendingRequest,
        answer: Decision | Action | None,
        *,
        for_permit: bool,
        at: float | None = None,
    ) -> Action:
        """What becomes of a request by what the store has said, at that time or now; ``None``: it has not."""
        now = monotonic() if at is None else at
        if answer is None:
            return self._without_store(pending, now)
        if not isinstance(answer, Decision):
            return answer
        self._asker.shadows.hear(answer)
        early = self.lead_time()
        limit_queue.record_decision(pending, answer, now, early=early)
        if answer.allowed:
            return self._granted(pending, answer, now)
        hears = pending.waits_in_worker and bool(limit_queue.channel) and is_place(pending.demand(answer.binding))
        return refused(
            pending,
            answer,
            now,
            for_permit=for_permit,
            max_hold=self._longest,
            parks=self._parks(pending.plan),
            early=early,
            hears=hears,
        )

    def _granted(self, pending: PendingRequest, decision: Decision, now: float) -> Action:
        self._leases.begin(pending.run_id, decision.demands, decision.granted_at)
        # An answer that has waited long for the worker's loop is as late as a permit that has.
        is_idle = self._capacity.idle() > 0 and monotonic() - now <= BUNCHED
        return granted(decision, now, is_idle=is_idle)

    def _without_store(self, pending: PendingRequest, now: float) -> Action:
        """What ``ratelimit_on_store_error`` says."""
        if self._outage.is_a_move:
            return BlockQueue(now + POLL_INTERVAL)
        self._outage.begin(self._outage.error)  # which is said again after a while
        choice = "defer" if pending.park_unconfirmed else self._on_store_error  # it may be parked
        may_start = choice in ("local", "allow") and self._capacity.has_for_permit(now)
        wait = self._share.wait(pending.demands) if choice == "local" and may_start else 0.0
        if choice == "local" and may_start and wait <= 0:
            self._leases.begin(pending.run_id, pending.demands, 0)
        deferred = choice == "defer" or wait > RETURN_HOLD
        return without_store(
            choice,
            pending,
            now,
            self._outage.error,
            may_start=may_start,
            wait=wait,
            pause=self._outage.pause() if deferred else 0.0,
        )

    def store_is_back(self) -> None:
        """This worker does not decide alone any more."""
        self._share.clear()


def _ids(asking: Sequence[PendingRequest]) -> list[str]:
    """Under which they are known to the store; empty: who does not wait need not be known."""
    return [pending.id if pending.plan.policy.waits else "" for pending in asking]
