"""What the store says about a request, as a verdict; and what is to become of it while the store does not answer."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence

from ..app.plan import Plan
from ..errors import ImpossibleRequest
from ..limiter.asker import Asker
from ..limiter.calls import Asking
from ..limiter.durations import microseconds
from ..limiter.leases import Leases
from ..limiter.outage import Outage
from ..limits.decision import Decision
from ..parking.arrivals import Arrivals
from ..parking.publisher import LEAD
from .clock import monotonic
from .distance import REACH
from .ear import Ear
from .handing import Handing
from .held import HeldRequest
from .line import Line
from .local_share import LocalShare
from .room import Room
from .slots import Slots
from .verdict import (
    RETURN_HOLD,
    EndCopy,
    Fail,
    Stay,
    Verdict,
    claim,
    granted,
    horizon,
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
#: Requests that ask together, at the most.
MOST_TOGETHER = 16
#: Seconds after which all that wait here for places say so, and how many of them at the most.
LINE_UP, MOST_WAITING = 1.0, 32


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
        self._ear, self._handing = ear, handing
        self._room, self._slots, self._share, self._arrivals = room, slots, share, arrivals
        self._store = room.store
        self._parks, self._ahead, self._early, self._longest = parks, ahead, early, longest

    # -- How long it takes -----------------------------------------------------------------------------------------

    def early(self) -> float:
        """Seconds before its turn that a line asks: no longer than a permit may be taken ahead."""
        return min(self._early() + self._store.round_trip, self._ahead())

    def asks_from(self, now: float, slot_at: float) -> float:
        """When a request asks that comes back now for a turn at ``slot_at``: those that come until then ask, too.

        One that comes much sooner was called: there is another rate.
        """
        gathered = max(now + self._store.round_trip / 4, slot_at - self.early())
        return gathered if gathered <= now + LEAD else now

    def together(self, line: Line, held: HeldRequest) -> int:
        """How many may ask at once, so that the worker does not wait for answers most of the time."""
        if held.plan.leased:  # one that no process is for would only stand in the way of others
            return MOST_WAITING if self._lines_up(line) else self._places()
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
        first = asking[0]
        began = monotonic()
        try:
            decisions = self._outage.ask(
                lambda: (
                    self._ask_for_places(line, asking, for_permit=for_permit)
                    if first.plan.leased
                    else self._decisions(asking, for_permit=for_permit)
                ),
                None,
            )
        except ImpossibleRequest as error:  # a stored limit is smaller than what this task costs
            if not first.is_checked and self._outage.ask(lambda: self._arrivals.may_run(first), None) is False:
                return [EndCopy()]
            logger.error("Task %s[%s] can never start: %s", first.request.name, first.request.id, error)
            self._slots.forget(first)
            return [Fail(error)]
        if decisions is None:
            return [None]
        self._store.note(monotonic() - began)
        return [EndCopy() if decision is None else decision for decision in decisions]

    def _decisions(self, asking: Sequence[HeldRequest], *, for_permit: bool) -> Sequence[Decision | None]:
        """What the store says; ``None``: another copy may run. Those that have come from a lot are told with it."""
        asking = self._who_may_run(asking)
        if not asking:
            return [None]
        first = asking[0]
        plan, demands = first.plan, first.demands
        ids = [held.id if plan.policy.waits else "" for held in asking]
        seconds = horizon(first, self._ahead(), together=len(asking) > 1) if for_permit else SLOT_ONLY
        kept = claim(first, parks=self._parks(plan))
        if all(held.is_checked for held in asking):
            return self._asker.ask_next(demands, ids, horizon=seconds, claim=kept)
        with self._arrivals.told_along(asking) as told:
            if told is None:
                return self._asker.ask_next(demands, ids, horizon=seconds, claim=kept)
            decisions, told.may = self._asker.ask_along(demands, ids, told.along, horizon=seconds, claim=kept)
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

    def _ask_for_places(self, line: Line, asking: Sequence[HeldRequest], *, for_permit: bool) -> list[Decision]:
        """What has ended here gives its places back in the same step."""
        first, ended = asking[0], self._handing.going_to(asking[0].demands)
        lines_up = len(asking) > 1 and self._lines_up(line)
        if lines_up:
            line.lined_up = monotonic()
        if first.stays:
            line.ear = self._ear.name_of(line)
        said = self._asker.hand_on(
            first.demands,
            Asking(
                [held.id for held in asking],
                microseconds(horizon(first, self._ahead())),
                microseconds(claim(first, parks=self._parks(first.plan))),
                line.ear if first.stays else "",
                self._places() if for_permit else 0,
                lines_up,
            ),
            ended,
        )
        self._handing.given(ended)
        return said

    def _places(self) -> int:
        """How many may have places now: each is held from then on, so there has to be a process for it."""
        return max(1, min(MOST_TOGETHER, self._room.free(monotonic())))

    def _lines_up(self, line: Line) -> bool:
        """Whether it is time for those of a line that wait for places to say so, or their slots would be others'."""
        return monotonic() - line.lined_up >= LINE_UP and bool(line.with_slot)

    def verdict(self, line: Line, held: HeldRequest, answer: Decision | Verdict | None, *, for_permit: bool) -> Verdict:
        """What becomes of a request by what the store has said; ``None``: it has not."""
        now = monotonic()
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
