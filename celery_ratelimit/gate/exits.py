"""Carries out what was decided about a request that is held: the one place by which requests leave the gate.

What is sent anew is published before it is acknowledged: nothing is lost between the two.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from .._celery import Worker, requests
from ..app.plan import Plan
from ..app.settings import Settings
from ..errors import STORE_TROUBLES
from ..limiter.demand import Demand
from ..limiter.outage import Outage
from ..parking.asks import asked
from ..parking.attendant import Attendant
from ..parking.lot import FULL, NOBODY, OVERTAKEN, REPLACED
from ..parking.publisher import LEAD
from . import coalesced
from .answers import LOOK
from .batch import Batch, Leaving
from .clock import monotonic
from .errands import Errands
from .held import HeldRequest
from .holdings import Holdings
from .line import Line
from .outcome import Outcome
from .presence import Presence
from .room import Room
from .running import Running
from .said import Hook, outcome_of
from .verdict import AskAt, End, EndCopy, Fail, Hold, Park, SendBack, Start, Stay, Verdict

__all__ = ["Exits"]

logger = logging.getLogger("celery_ratelimit")

#: The share of the broker's redelivery time that a task may be on a countdown, and may be held after it: one delivery.
REDELIVERY_SHARE = 0.4
#: Seconds after which what could not be published is tried again.
AGAIN = 1.0


class Exits:
    """What can become of a request.

    Args:
        worker: the worker.
        attendant: parks.
        outage: of the store.
        settings: the app's.
        room: of the pool.
        presence: who is in the gate.
        running: who runs with a place.
        holdings: what requests have.
        hook: is told what becomes of them.
        errands: to a store that is some way off.

    Attributes:
        batch: those that are parked in a moment.
        longest: seconds that a message may be held, or be away on a countdown.
    """

    def __init__(
        self,
        worker: Worker,
        attendant: Attendant,
        outage: Outage,
        settings: Settings,
        room: Room,
        presence: Presence,
        running: Running,
        holdings: Holdings,
        hook: Hook,
        errands: Errands,
    ) -> None:
        self._worker, self._attendant, self._outage = worker, attendant, outage
        self._room, self._presence, self._running, self._holdings = room, presence, running, holdings
        self._hook, self._in_memory = hook, settings.in_memory
        self.batch = Batch(worker, attendant, outage, errands, presence.widen)
        self.longest = worker.broker.redelivery * REDELIVERY_SHARE

    def parks(self, plan: Plan) -> bool:
        """Whether tasks wait in the store. Else they wait in the broker, on a countdown to a slot of their own."""
        return plan.parks and not self._in_memory and self._attendant.may_park

    def lot_before(self, held: HeldRequest) -> Demand | None:
        """In whose lot others are known to wait, behind whom a newcomer stands. Who may use more than they asks."""
        if held.has_slot or held.plan.policy.max_wait is not None or not self.parks(held.plan) or self._outage:
            return None
        demands = [demand for demand in held.demands if not demand.passes]
        return self._attendant.occupied.lot_of(demands) or self.batch.lot_of(demands)

    def carry_out(self, line: Line, held: HeldRequest, verdict: Verdict, now: float) -> bool:
        """Do what was decided. Returns whether its line may go on; else it waits for a time or a process."""
        if held.gone:  # the connection was lost while a greenlet waited for what was decided: the broker has it
            self._holdings.give_back(held)
            return False
        match verdict:
            case Start(permit_at_us):
                self._start(line, held, permit_at_us)
            case Hold(at, permit_at_us):
                self._holdings.hold(line, held, at, permit_at_us)
                line.wants = line.wants or at <= now
                wait = at - now
                if wait > held.plan.policy.inline_wait and held.plan.policy.throttle == "wait":
                    self._hook.announce(held, Outcome("waiting", wait, held.demands[0]))
            case AskAt(at, has_slot):
                if at is None:
                    line.ask(held, has_slot=has_slot)
                else:
                    line.ask_again(held, at, has_slot=has_slot)
            case Stay():
                self._stay(line, held, verdict, now)
                return False
            case Park():
                return self._park(line, held, verdict, now)
            case SendBack():
                self._send_back(line, held, verdict, now)
            case End():
                self._end(line, held, verdict, now)
            case EndCopy():
                self._holdings.leave(line, held)
                self._end_copy(held)
            case Fail(error):
                self._holdings.leave(line, held)
                self._hook.failed(held, error, without_store=isinstance(error, STORE_TROUBLES))
                requests.fail(held.request, error)
        return True

    # -- It stays --------------------------------------------------------------------------------------------------

    def _stay(self, line: Line, held: HeldRequest, verdict: Stay, now: float) -> None:
        if verdict.until is None:
            line.wants = True
            return
        line.next_ask = verdict.until
        if verdict.demand is not None:
            self._hook.announce(held, outcome_of(line, held, verdict.demand, verdict.wait, now))
            if self._worker.intake.is_full:
                self._presence.suspend(held, line, now)
            elif self._worker.intake.has_several_queues:
                self._presence.widen(held)

    def _hold_on(self, line: Line, held: HeldRequest, error: Exception, now: float) -> None:
        """Nothing is lost: the message is unacknowledged, here and at the broker. Tried again in a moment.

        But for a lost connection, which Celery has to see: the broker hands out everything anew then.
        """
        if isinstance(error, self._worker.broker.connection_errors):
            raise error
        logger.warning(
            "Task %s[%s] could not be sent back (%r): held, and tried again",
            *(held.request.name, held.request.id, error),
        )
        line.next_ask = now + AGAIN
        line.ask_again(held, line.next_ask)

    # -- It starts -------------------------------------------------------------------------------------------------

    def _start(self, line: Line, held: HeldRequest, permit_at_us: int) -> None:
        stays_here = held.request.revoked() or held.gone  # lost with its connection, while a greenlet was told
        self._holdings.leave(line, held, starts=not stays_here)
        if stays_here:
            return
        if held.plan.leased:
            self._running.begin(held)
        permit = self._hook.started(held, permit_at_us)
        requests.restore(held.request)
        self._worker.start(held.request, permit)

    # -- It waits elsewhere ----------------------------------------------------------------------------------------

    def _park(self, line: Line, held: HeldRequest, verdict: Park, now: float) -> bool:
        if self._outage:
            line.next_ask = now + LOOK
            return False
        demand, most = verdict.demand, None
        bucket = demand.name, demand.key
        interval = line.intervals.get(demand.name) or demand.interval
        max_wait = held.plan.policy.max_wait
        if max_wait is not None and interval > 0 and not held.returned:
            most = 1 + int((max_wait - verdict.wait) / interval)
        packed = self._attendant.to_park(held, demand, verdict.since)
        if most is None and self.batch.takes(bucket, packed, only_behind=verdict.only_behind):
            self.batch.add(Leaving(line, held, verdict, packed))
            if self.batch.errands.are_run:
                self._room.coming.expect_parked(held.request.id, verdict, interval, now)
            return True
        asks = self._attendant.parks({bucket: [(held, packed)]}, only_behind=verdict.only_behind, most=most)
        said = self._outage.ask(lambda: asked(asks), None)
        self._parked(line, held, verdict, said[bucket][0] if said else None, now)
        return True

    def parked_together(self, leaving: Leaving, ahead: int | None) -> None:
        """What the store has said of one that is parked with others."""
        self._parked(leaving.line, leaving.held, leaving.verdict, ahead, monotonic())

    def _parked(self, line: Line, held: HeldRequest, verdict: Park, ahead: int | None, now: float) -> None:
        """The store has said what came of it; ``None``: it has not."""
        demand, wait = verdict.demand, verdict.wait
        interval = line.intervals.get(demand.name) or demand.interval
        if ahead is None:
            # The store's answer was lost. If it is parked, its message ends when it comes back: it must not start now.
            held.doubts, held.doubtful = held.doubts + 1, True
            self._send_back(line, held, SendBack(self._outage.pause() + LEAD), now)
        elif ahead == NOBODY:
            pass  # it asks by itself
        elif ahead == REPLACED:
            survivor = self._attendant.parking.survivors[held.id]
            self._holdings.leave(line, held)
            self._holdings.forget_slot(held)
            coalesced.end(held, survivor)
        elif ahead == OVERTAKEN:
            self._holdings.leave(line, held)
            self._end_copy(held)
        elif ahead <= FULL:
            wait += (FULL - ahead) * interval
            self._end(line, held, End(held.plan.policy.overflow, demand, wait), now)
        else:
            why = outcome_of(line, held, demand, wait + ahead * interval, now, what="parked")
            self._holdings.leave(line, held)
            self._room.coming.expect_parked(held.request.id, verdict, interval, now)
            self._hook.announce(held, why)

    def _send_back(self, line: Line, held: HeldRequest, verdict: SendBack, now: float) -> None:
        delay = min(verdict.wait, self.longest) - LEAD
        try:
            return_queue = self._worker.intake.return_queue_for(held.queue)
            self._worker.departures.send_back(held.request, held.queue, return_queue, delay, held.doubts)
        except Exception as error:
            self._hold_on(line, held, error, now)
            return
        # One without a limit has come back, and is left to another worker.
        demand = verdict.demand or (None if self._outage else held.demands[0])
        why = outcome_of(line, held, demand, verdict.wait, now) if demand else Outcome("", verdict.wait)
        self._holdings.leave(line, held)
        self._hook.announce(held, replace(why, what="returned"))

    # -- It ends ---------------------------------------------------------------------------------------------------

    def _end(self, line: Line, held: HeldRequest, verdict: End, now: float) -> None:
        how = verdict.how
        why = outcome_of(line, held, verdict.demand, verdict.wait, now, verdict.full)
        if held.plan.policy.waits and not why.full:
            why = replace(why, max_wait=held.plan.policy.max_wait)
        what, to = {"drop": ("dropped", None), "fail": ("failed", None)}.get(how, ("diverted", how))
        why = replace(why, what=what, to=to)
        if to is not None:
            try:
                self._worker.departures.redirect(held.request, to)
            except Exception as error:
                self._hold_on(line, held, error, now)
                return
        self._holdings.leave(line, held)
        self._hook.announce(held, why)
        self._holdings.forget_slot(held)
        if how == "drop":
            requests.drop(held.request, why.reason)
        elif how == "fail":
            requests.fail(held.request, why.error)

    def is_over(self, line: Line, held: HeldRequest) -> bool:
        """It need not ask any more, and has left: it was revoked or has expired, or another copy of it is about."""
        if held.request.revoked():
            self._holdings.leave(line, held)
            self._holdings.forget_slot(held)
            return True
        if (held.is_checked and not held.doubtful) or self.asks_along(held):
            return False
        held.is_checked = True
        if self.ends_as_a_copy(held):
            self._holdings.leave(line, held)
            return True
        return False

    def asks_along(self, held: HeldRequest) -> bool:
        """Whether the store says with its permit if it is the copy that may run. (With a place it does not.)"""
        may_wait = not held.is_checked and not held.plan.leased and self.parks(held.plan)
        return may_wait and self._attendant.arrivals.asks_along(held)

    def ends_as_a_copy(self, held: HeldRequest) -> bool:
        """A worker was killed between two steps, and this task is about twice: one of the two is let go."""
        if not self.parks(held.plan):
            held.doubtful = False
            return False
        may_run = self._outage.ask(lambda: self._attendant.arrivals.may_run(held), None)
        if may_run is False:
            self._end_copy(held)
            return True
        held.doubtful = held.doubtful and may_run is None
        return False

    def _end_copy(self, held: HeldRequest) -> None:
        logger.info("Another copy of %s[%s] is parked or may run: this one ends", held.request.name, held.request.id)
        self._worker.departures.acknowledge(held.request)
