"""What the store says about a request, as a verdict; and what is to become of it while the store does not answer."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..app.plan import Plan
from ..errors import ImpossibleRequest
from ..limiter.asker import Asker
from ..limiter.leases import Leases
from ..limiter.outage import Outage
from ..limits.decision import Decision
from .clock import monotonic
from .held import HeldRequest
from .line import Line
from .local_share import LocalShare
from .room import Room
from .slots import Slots
from .verdict import RETURN_HOLD, Fail, Stay, Verdict, claim, granted, horizon, refused, without_store

__all__ = ["LOOK", "Answers"]

logger = logging.getLogger("celery_ratelimit")

#: Seconds after which those who wait for a process are looked at again, should its end not be told.
LOOK = 0.1
#: A horizon that grants nothing: asks only for a slot.
SLOT_ONLY = -1e6


class Answers:
    """Asks the store for one worker.

    Args:
        asker: the way to the store.
        leases: keeps the places of running tasks.
        outage: of the store.
        on_store_error: what the app's setting says.
        room: of the pool.
        slots: those that are given back.
        share: this worker's, while it decides alone.
        parks: whether tasks of a plan may wait in the store.
        ahead: seconds ahead that a permit may be taken.
        early: seconds before its turn that a line asks.
        longest: seconds that a message may be held here.
    """

    def __init__(
        self,
        asker: Asker,
        leases: Leases,
        outage: Outage,
        on_store_error: str,
        room: Room,
        slots: Slots,
        share: LocalShare,
        parks: Callable[[Plan], bool],
        ahead: Callable[[], float],
        early: Callable[[], float],
        longest: float,
    ) -> None:
        self._asker, self._leases, self._outage, self._on_store_error = asker, leases, outage, on_store_error
        self._room, self._slots, self._share = room, slots, share
        self._parks, self._ahead, self._early, self._longest = parks, ahead, early, longest

    def ask(self, line: Line, held: HeldRequest, *, for_permit: bool) -> Verdict:
        """Ask for a permit, or for a slot alone."""
        parks = self._parks(held.plan)
        try:
            decision = self._outage.ask(
                lambda: self._asker.ask(
                    held.demands,
                    id=held.id if held.plan.policy.waits or held.plan.leased else "",
                    horizon=horizon(held, self._ahead()) if for_permit else SLOT_ONLY,
                    claim=claim(held, parks=parks),
                ),
                None,
            )
        except ImpossibleRequest as error:  # a stored limit is smaller than what this task costs
            logger.error("Task %s[%s] can never start: %s", held.request.name, held.request.id, error)
            self._slots.forget(held)
            return Fail(error)
        now = monotonic()
        if decision is None:
            return self._without_store(held, now)
        early = self._early()
        line.told(held, decision, now, early=early)
        if decision.allowed:
            return self._granted(held, decision, now)
        return refused(held, decision, now, for_permit=for_permit, longest=self._longest, parks=parks, early=early)

    def _granted(self, held: HeldRequest, decision: Decision, now: float) -> Verdict:
        self._leases.begin(held.id, decision.demands, decision.granted_at)
        return granted(decision, now, is_idle=self._room.idle() > 0)

    def _without_store(self, held: HeldRequest, now: float) -> Verdict:
        """What ``ratelimit_on_store_error`` says."""
        if self._outage.is_a_move:
            return Stay(now + LOOK)
        self._outage.begin(self._outage.error)  # which is said again after a while
        choice = "defer" if held.doubtful else self._on_store_error  # it may be parked
        may_start = choice in ("local", "allow") and self._room.has_for_permit(now)
        wait = self._share.wait(held.demands) if choice == "local" and may_start else 0.0
        if choice == "local" and may_start and wait <= 0:
            self._leases.begin(held.id, held.demands, 0)
        deferred = choice == "defer" or wait > RETURN_HOLD
        return without_store(
            choice,
            held,
            now,
            self._outage.error,
            may_start=may_start,
            wait=wait,
            pause=self._outage.pause() if deferred else 0.0,
        )

    def store_is_back(self) -> None:
        """This worker does not decide alone any more."""
        self._share.clear()
