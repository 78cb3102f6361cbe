"""The gate: stands in the worker's consumer, before the pool, and lets a task pass when its limits do.

There a message is raw and unacknowledged: holding it, or sending it back as it is, loses and changes nothing.
Tasks that ask the same limits share a line. One timer a line, no thread, one script for a task that may start.
Who has to wait for longer than a moment is parked in the store, see :mod:`~celery_ratelimit.parking.attendant`.

While somebody waits here the gate is the one entrance to the pool, for tasks without limits too
(:mod:`~celery_ratelimit.gate.entrance`). What becomes of a request is decided in
:mod:`~celery_ratelimit.gate.verdict`, and done in :mod:`~celery_ratelimit.gate.exits`.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from .._celery import Worker, requests
from .._celery.parcel import marker_among
from ..app.plan import AppLimits, Plan, is_built_in
from ..app.settings import Settings
from ..errors import RateLimitError
from ..limiter.counting import Counting
from ..limiter.leases import Leases
from ..limiter.limiter import Limiter
from ..limiter.outage import Outage
from ..observing import Observer
from ..parking.attendant import Attendant
from ..parking.lots import parking_of
from ..parking.publisher import LEAD
from . import coalesced
from .answers import Answers
from .changes import Changes
from .clock import monotonic
from .coming import Coming
from .ear import Ear
from .entrance import Entrance
from .errands import Errands
from .exits import Exits
from .handing import Handing
from .held import HeldRequest
from .holdings import Holdings
from .lines import Lines
from .local_share import LocalShare
from .loop import Loop
from .passing import Passing
from .presence import Presence
from .reach import Reach
from .room import Room
from .running import Running
from .said import Hook
from .sent import Sent
from .slots import Slots
from .stored_rates import StoredRates
from .within import Within

__all__ = ["Gate"]

logger = logging.getLogger("celery_ratelimit")


class Gate:
    """Decides for each request of one worker whether its task starts now, is held, is sent back or is given up.

    Args:
        worker: the worker.
        limiter: whom to ask.
        leases: keeps the places of running tasks.
        settings: the app's settings.
        limits: that tasks of this worker may have, by name.
        observers: are told what becomes of each request.
    """

    def __init__(
        self,
        worker: Worker,
        limiter: Limiter,
        leases: Leases,
        settings: Settings,
        limits: AppLimits,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.worker, self._limits, self._within = worker, limits, Within()
        asker = self._asker = limiter.asker
        self._numbers, self._connections = itertools.count(), 0  # that were lost
        self._outage = outage = Outage(asker, worker.timers.call_soon, self._store_is_back)
        self._room = room = Room(worker.pool)
        errands = self._errands = Errands(worker, room.store, outage)
        lots, orphans_after = parking_of(worker.app), settings.orphans_after
        self._attendant = attendant = Attendant(worker, lots, limits, outage, errands, orphans_after)
        register = attendant.parking.register
        self._changes = Changes(
            *(worker, asker, limits, outage, errands, self._is_idle, self._changed, lambda: register.workers)
        )
        self._lines = lines = Lines()
        self._presence = presence = Presence(worker, room)
        handing = self._handing = Handing(leases, outage)
        self._running = running = Running(worker, handing, self.on_end)
        self._entrance = entrance = Entrance(worker, room, lines, presence)
        slots = self._slots = Slots(asker, outage)
        self._holdings = holdings = Holdings(slots, room, presence, running)
        counting = Counting(
            *(asker, worker.timers.call_after, lambda: bool(outage)),
            lambda: 1.0 if asker.shadows.any_of(limits) else register.counts_apart,
        )
        self._counting = counting if settings.counts and not settings.in_memory else None
        stored = self._stored = StoredRates(asker, outage)
        hook = Hook(observers, stored.of, counting.counter if self._counting is not None else None)
        self._exits = exits = Exits(
            worker, attendant, outage, settings, room, presence, running, holdings, hook, errands
        )
        share = LocalShare(worker.live_workers, leases)
        ear = self._ear = Ear(worker, asker, lines, lambda waiting: self._loop.run(waiting))
        answers = self._answers = Answers(
            *(asker, ear, handing, leases, outage, settings.on_store_error, room, slots, share, attendant.arrivals),
            parks=exits.parks,
            ahead=entrance.ahead,
            early=entrance.early,
            longest=exits.longest,
        )
        sent = Sent(errands, answers, room)
        self._reach = reach = Reach(worker, room, self._leave_returned_to_others)
        self._loop = Loop(
            *(worker, answers, sent, holdings, room, lines, entrance, exits, reach, handing),
            on_error=lambda held, error: self.on_error(held.request, error),
        )
        self._coming = Coming(worker, attendant, room, lines, presence, exits, sent, self._loop)
        self._passing = Passing(entrance, self._numbers, hook, self._loop.run)

    # -- Coming in -------------------------------------------------------------------------------------------------

    def on_request(self, request: Any) -> None:
        """In the place of ``Consumer.on_task_request``: a message has arrived, or its countdown has ended."""
        queue = requests.queue_of(request)
        try:
            plan = self._limits.plan_of(request.task, queue)
            priority = requests.priority_of(request)
            every = plan.demands(request.args, request.kwargs, priority) if plan is not None else ()
            alone = coalesced.alone(plan, request) if plan is not None else ""
        except Exception as error:
            # The user's own key or cost, or a limit that does not fit: this task's failure and nobody else's.
            traceback = not isinstance(error, RateLimitError)  # ours say what to do
            logger.error("Task %s[%s] cannot be rate limited: %r", request.name, request.id, error, exc_info=traceback)
            requests.fail(request, error)
            return
        if is_built_in(request.task.name):
            self._within.look(request)
        slot_at = self._room.coming.has_come(request.id)
        if plan is None:
            self._passing.let(request, queue)
            return
        demands, shadow = self._asker.shadows.split(every)
        now, longest = monotonic(), self._exits.longest
        returned = requests.came_back(request)
        # With a long countdown of the user's behind it, which the broker counts, it is not to wait here.
        old = not returned and plan.policy.throttle == "wait" and requests.age(request) > longest
        until = now if old else now + longest
        number = next(self._numbers)
        asks_from = self._answers.asks_from(now, slot_at) if returned else now
        held = HeldRequest(request, queue, plan, demands, number, now, until, returned, returned, asks_from, slot_at)
        held.alone, held.shadow = alone, shadow
        if returned and coalesced.ends(held, self._exits.ends_as_a_copy):
            return
        if not demands:
            if not (returned or held.doubtful) or not self._exits.ends_as_a_copy(held):
                self._passing.let(request, queue, shadow)
            return
        if returned:
            # Until it asks, if it waits: then others have come, too, and the store is asked once.
            waits = asks_from > now or self.worker.together.is_at_it
            held.is_checked = not (waits or self._exits.asks_along(held))
        connections = self._connections
        if held.is_checked and (self._exits.ends_as_a_copy(held) or connections != self._connections):
            return  # the second: a greenlet waits for the store
        self._hold(held, first=old)

    def _hold(self, held: HeldRequest, *, first: bool) -> None:
        request, returned = held.request, held.returned
        line = self._lines.of(held.plan.buckets(held.demands))
        line.ask(held, is_new=True, first=first)
        self._presence.enter(held)
        if returned and not requests.came_beside(request):
            self._presence.widen(held)
        if self._coming.add(line, held):
            return
        if first or len(line.asking(held)) == 1:  # else whatever those ahead of it wait for moves the line on
            self._loop.run([line])
        self._presence.suspend_if_it_stays(held, line, monotonic())

    def on_message(self, message: Any) -> None:
        """A message has come in. If it is on its way back, with a countdown, it is expected at its slot."""
        seconds = requests.comes_back_in(message)
        if seconds is not None:
            now = monotonic()
            self._room.coming.expect(str(message.headers.get("id")), now + seconds + LEAD, now)
            self._attendant.occupied.note_coming(message, seconds + LEAD)
            if self._reach.has_left:  # it was on its way, and soon waits for the end of its countdown
                self.worker.timers.call_after(0, self._leave_returned_to_others)
            else:
                self._coming.comes_back(message)
        elif requests.is_back(message) and not self._reach.has_left:  # its turn has come, or has passed
            self._coming.comes_back(message)
        self._attendant.arrivals.on_message(message)

    # -- Ends ------------------------------------------------------------------------------------------------------

    def on_end(self, request: Any) -> None:
        """A task has ended: whoever waits for its process, or its place, may ask."""
        held = self._running.end(request)
        lines = self._lines.asking(held.plan.buckets(held.demands)) if held is not None else []
        self._reach.look(monotonic())
        for line in lines:
            line.next_ask = 0.0
        if self._presence.limited or len(self._entrance):
            self._loop.run(lines)
        else:
            self._handing.give_rest()

    def on_error(self, request: Any, error: Exception) -> None:
        """What nobody has foreseen was raised at a message: it ends with that, and those behind it go on."""
        logger.error("Task %s[%s] cannot go on: %r", request.name, request.id, error, exc_info=error)
        found = [(line, held) for line in self._lines for held in line if held.request is request]
        at_hand = self._loop.at_hand.pair
        if not found and at_hand is not None and at_hand[1].request is request:
            found = [at_hand]  # it was just leaving its line
        for line, held in found:
            self._holdings.take_out(line, held)
        if request in self._running:
            self.on_end(request)
        # Else the pool has it, or it waits elsewhere.
        if request.worker_pid is None and not request.acknowledged:
            requests.fail(request, error)

    def forget(self, task: Any, context: Any) -> None:
        """A task was revoked or has expired before it came here: its slot is free for others."""
        marker = marker_among(vars(context))
        if marker and not self._outage:  # else it was never sent back, so it has no slot
            self._slots.forget_of(lambda: self._limits.plan_of(task, str(marker.get("queue"))), context, marker)

    # -- The worker, the store, and what people store --------------------------------------------------------------

    def begin(self) -> None:
        """The worker has started, or has a new connection. What ran before runs on."""
        self.worker.acknowledgements.open()
        self._outage.ask(lambda: self._errands.open(self._asker.ping), None, quietly=True)
        self._changes.watch()
        self._attendant.watch()
        self._running.watch()

    def lose(self, error: RateLimitError, on_end: Callable[[], None]) -> None:
        """The store is lost already when the worker starts. ``on_end`` is called when it is there."""
        self._outage.begin(error, on_end)

    def close(self) -> None:
        """Let go of everything: the connection is lost or the worker stops, and the broker has it all."""
        with self.worker.timers.turn:
            self._connections += 1
            everybody = self._lines.clear()
            self._coming.clear()
            self._entrance.clear()
            self._loop.close()
            self._running.close()
            self._presence.clear()
            for held in everybody:
                self._holdings.give_back(held)
            if self._counting is not None and not self._outage:
                self._counting.send()
            self._outage.close()
            self._changes.close()
            self._ear.close()
            self._attendant.close()
            self.worker.acknowledgements.close()

    def _store_is_back(self) -> None:
        self._attendant.store_is_back()
        self._loop.store_is_back()

    def _leave_returned_to_others(self) -> None:
        """Those that have come back, and wait here or for the end of their countdown."""
        self.worker.timers.recall(requests.came_beside)
        self._loop.run(self._lines)

    def _is_idle(self) -> bool:
        """Nobody waits here, comes back, or is parked; and no limit is in shadow."""
        waiting = self._presence.limited or self._room.coming.next_comer(monotonic()) < float("inf")
        return self._attendant.is_idle and not waiting and not self._asker.shadows.any_of(self._limits)

    def _changed(self, names: set[str]) -> None:
        """Rates of these limits are others now: whoever waits asks again."""
        self._stored.forget(names)
        self._loop.note_changed(names)
        self._attendant.occupied.forget_turns(names)
        self._loop.run(self._lines)
        self._attendant.waking.wake(names)
        self.worker.timers.recall(lambda request: self._is_limited_by(request, names))

    def _is_limited_by(self, request: Any, names: set[str]) -> bool:
        plan: Plan | None = self._limits.plan_of(request.task, requests.queue_of(request))
        return plan is not None and any(limit.name in names for limit in plan.limits)
