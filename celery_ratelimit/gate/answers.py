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
from ..parking.publisher import LEAD
from .asked_for import claim, horizon
from .clock import monotonic
from .distance import REACH
from .ear import Ear
from .handing import Handing
from .held import HeldRequest
from .line import Line
from .local_share import LocalShare
from .places import MOST_TOGETHER, Places
from .room import Room
from .slots import Slots
from .verdict import (
    BUNCHED,
    RETURN_HOLD,
    EndCopy,
    Fail,
    Stay,
    Verdict,
    granted,
    is_place,
    refused,
    without_store,
)

__all__ = ["LOOK", "MOST_TOGETHER", "Answers"]

logger = logging.getLogger("celery_ratelimit")

#: Seconds after which those who wait for a process are looked at again, should its end not be told.
LOOK = 0.1
#: A horizon that grants nothing: asks only for a slot.
SLOT_ONLY = -1e6
#: Round trips in whose time a line may have its turns with a single one: a tenth of a worker's time goes into waiting.
BUSY = 10
#: Round trips before its turn that a line asks: one for the answer, and one in which the worker waits for another.
TRIPS = 2


class Answers:
    """Asks the store for one worker.

    Args:
        asker: the way to the store.
        ear: hears that a place may be free.
        handing: places that are given back.
        leases: keeps the places of running tasks.
        outage: of the store.
        on_store_error: what the app's setting says.
        room: of the pool.
        slots: those that are given back.
        share: this worker's, while it decides alone.
        arrivals: of those that come back.
        parks: whether tasks of a plan may wait in the store.
        ahead: seconds ahead that a permit may be taken.
        early: seconds before its turn that a line asks.
        longest: seconds that a message may be held here.
    """

    def __init__(
        self,
        asker: Asker,
        ear: Ear,
        handing: Handing,
        leases: Leases,
        outage: Outage,
        on_store_error: str,
        room: Room,
        slots: Slots,
        share: LocalShare,
        arrivals: Arrivals,
        parks: Callable[[Plan], bool],
        ahead: Callable[[], float],
        early: Callable[[], float],
        longest: float,
    ) -> None:
        self._asker, self._leases, self._outage, self._on_store_error = asker, leases, outage, on_store_error
        self._places = Places(asker, ear, handing, room, parks, ahead)
        self._room, self._slots, self._share, self._arrivals = room, slots, share, arrivals
        self._store = room.store
        self._parks, self._ahead, self._early, self._longest = parks, ahead, early, longest

    # -- How long it takes -----------------------------------------------------------------------------------------

    def early(self) -> float:
        """Seconds before its turn that a line asks: no longer than a permit may be taken ahead."""
        return min(self._early() + TRIPS * self._store.round_trip, self._ahead())

    def asks_from(self, now: float, slot_at: float) -> float:
        """When a request asks that comes back now for a turn at ``slot_at``: those that come until then ask, too.

        One that comes much sooner was called: there is another rate.
        """
        gathered = max(now + self._store.round_trip / 4, slot_at - self.early())
        return gathered if gathered <= now + LEAD else now

    def together(self, line: Line, held: HeldRequest) -> int:
        """How many may ask at once, so that the worker does not wait for answers most of the time."""
        if held.plan.leased:
            return self._places.together(line)
        interval = line.interval or max(demand.interval for demand in held.demands)
        if interval <= 0:
            return 1
        return min(MOST_TOGETHER, 1 + int(BUSY * self._store.round_trip / interval))

    def reach(self, line: Line, held: HeldRequest) -> float:
        """Seconds within which those that come back have their turns who ask together: more, the further away the
        store is, and no more than a permit may be taken ahead.
        """
        if self.together(line, held) == 1:
            return 0.0
        return min(self.early() + REACH * self._store.round_trip, self._ahead())

    # -- Asking ----------------------------------------------------------------------------------------------------

    def ask(self, line: Line, asking: Sequence[HeldRequest], *, for_permit: bool) -> list[Decision | Verdict | None]:
        """Ask for a permit, or for a slot alone: for requests of a line that ask the same, one after the other.

        Returns:
            An answer for each that was asked, see :meth:`verdict`: up to the first that has neither permits nor a slot.
        """

        def decisions() -> Sequence[Decision | None]:
            if asking[0].plan.leased:
                return self._places.ask(line, asking, for_permit=for_permit)
            return self._decisions(asking, for_permit=for_permit)

        return self.said_to(asking[0], decisions)

    def said_to(
        self, first: HeldRequest, decisions: Callable[[], Sequence[Decision | None]], seconds: float | None = None
    ) -> list[Decision | Verdict | None]:
        """What the store decides, or what is to become of those who ask it if it can not; in so many seconds, if it has
        decided already.
        """
        began = monotonic()
        try:
            said = self._outage.ask(decisions, None) if seconds is None else self._outage.hear(decisions, None)
        except ImpossibleRequest as error:  # a stored limit is smaller than what this task costs
            if not first.is_checked and self._outage.ask(lambda: self._arrivals.may_run(first), None) is False:
                return [EndCopy()]
            logger.error("Task %s[%s] can never start: %s", first.request.name, first.request.id, error)
            self._slots.forget(first)
            return [Fail(error)]
        if said is not None:
            self._store.note(monotonic() - began if seconds is None else seconds)
        return [None] if said is None else [EndCopy() if decision is None else decision for decision in said]

    def question(self, asking: Sequence[HeldRequest], *, for_permit: bool) -> Callable[[], list[Decision]]:
        """For those of whom nothing is to be told."""
        first = asking[0]
        return partial(self._asker.ask_next, first.demands, _ids(asking), **self._how(asking, for_permit=for_permit))

    def _how(self, asking: Sequence[HeldRequest], *, for_permit: bool) -> dict[str, float]:
        """Seconds ahead that permits are taken, and within which slots are kept."""
        first = asking[0]
        seconds = horizon(first, self._ahead(), together=len(asking) > 1) if for_permit else SLOT_ONLY
        return {"horizon": seconds, "claim": claim(first, parks=self._parks(first.plan))}

    def _decisions(self, asking: Sequence[HeldRequest], *, for_permit: bool) -> Sequence[Decision | None]:
        """What the store says; ``None``: another copy may run. Those that have come from a lot are told with it."""
        asking = self._who_may_run(asking)
        if not asking:
            return [None]
        if all(held.is_checked for held in asking):
            return self.question(asking, for_permit=for_permit)()
        with self._arrivals.told_along(asking) as told:
            if told is None:
                return self.question(asking, for_permit=for_permit)()
            how = self._how(asking, for_permit=for_permit)
            decisions, told.may = self._asker.ask_along(asking[0].demands, _ids(asking), told.along, **how)
            told.answered = len(decisions)
        for held, _ in zip(asking, decisions, strict=False):
            held.is_checked = True
        return decisions

    def _who_may_run(self, asking: Sequence[HeldRequest]) -> Sequence[HeldRequest]:
        """Those of them, from the first on, of which it is known by the answer: where greenlets switch, another one may
        have told of some of them since they were looked at. Nobody: another copy of the first may.
        """
        first = asking[0]
        if not first.is_checked and not self._arrivals.asks_along(first):
            if not self._arrivals.may_run(first):
                return []
            first.is_checked = True
        return [*itertools.takewhile(lambda held: held.is_checked or self._arrivals.asks_along(held), asking)]

    def verdict(
        self,
        line: Line,
        held: HeldRequest,
        answer: Decision | Verdict | None,
        *,
        for_permit: bool,
        at: float | None = None,
    ) -> Verdict:
        """What becomes of a request by what the store has said, at that time or now; ``None``: it has not."""
        now = monotonic() if at is None else at
        if answer is None:
            return self._without_store(held, now)
        if not isinstance(answer, Decision):
            return answer
        self._asker.shadows.hear(answer)
        early = self.early()
        line.told(held, answer, now, early=early)
        if answer.allowed:
            return self._granted(held, answer, now)
        hears = held.stays and bool(line.ear) and is_place(held.demand(answer.binding))
        return refused(
            held,
            answer,
            now,
            for_permit=for_permit,
            longest=self._longest,
            parks=self._parks(held.plan),
            early=early,
            hears=hears,
        )

    def _granted(self, held: HeldRequest, decision: Decision, now: float) -> Verdict:
        self._leases.begin(held.id, decision.demands, decision.granted_at)
        # An answer that has waited long for the worker's loop is as late as a permit that has.
        is_idle = self._room.idle() > 0 and monotonic() - now <= BUNCHED
        return granted(decision, now, is_idle=is_idle)

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


def _ids(asking: Sequence[HeldRequest]) -> list[str]:
    """Under which they are known to the store; empty: who does not wait need not be known."""
    return [held.id if held.plan.policy.waits else "" for held in asking]
