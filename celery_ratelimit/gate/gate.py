"""The gate: stands in the worker's consumer, before the pool, and lets a task pass when its limits do.

There a message is raw and unacknowledged: holding it, or sending it back as it is, loses and changes nothing.
Tasks that ask the same limits share a line. One timer a line, no thread, one script for a task that may start.
Who has to wait for longer than a moment is parked in the store, see :mod:`~celery_ratelimit.parking.attendant`.

While somebody waits here the gate is the one entrance to the pool, for tasks without limits too: who has its turn gets
the next process, the others theirs in the order in which they came (:mod:`~celery_ratelimit.gate.room`).
"""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from .._celery import MOST_RETURNED, Worker
from .._celery.parcel import marker_among
from ..app.plan import AppLimits, Buckets, Plan, is_built_in, plan_of
from ..app.settings import Settings
from ..errors import STORE_TROUBLES, ImpossibleRequest, RateLimitError
from ..limiter.demand import Demand
from ..limiter.leases import Leases
from ..limiter.limiter import Limiter
from ..limiter.outage import Outage
from ..limits.decision import Decision
from ..parking.attendant import LEAD, Attendant
from ..parking.lot import FULL, HORIZON, NOBODY, OVERTAKEN
from ..parking.lots import parking_of
from ..signals import task_throttled
from .changes import Changes
from .line import HeldRequest, Line, Unlimited
from .local_share import LocalShare
from .outcome import Outcome
from .room import AHEAD, ASK_EARLY, Room
from .suspended import SuspendedQueues, Waiting
from .within import Within

__all__ = ["Gate"]

logger = logging.getLogger("celery_ratelimit")

#: Seconds that a returning task may be held when its slot has slipped, before it is sent back once more.
RETURN_HOLD = 1.0
#: Seconds after which a permit that could not be used is stale; and when it is not the only one that is late, as the
#: machine has done something else: used together, they would bunch.
STALE, BUNCHED = 0.1, 0.04
#: The share of the broker's redelivery time that a task may be on a countdown, and may be held after it: one delivery.
REDELIVERY_SHARE = 0.4
#: Seconds after which those who wait for a process are looked at again, should its end not be told; and after which
#: places are given back whose tasks have ended untold.
LOOK, LOOK_FOR_ENDS = 0.1, 0.25
#: Seconds after which a line that cannot go on now is moved on, at the soonest.
LEAST_PAUSE = 0.001
#: A horizon that grants nothing: asks only for a slot.
SLOT_ONLY = -1e6


class Gate:
    """Decides for each request of one worker whether its task starts now, is held, is sent back or is given up.

    Args:
        worker: the worker.
        limiter: whom to ask.
        leases: keeps the places of running tasks.
        settings: the app's settings.
        limits: that tasks of this worker may have, by name.
    """

    def __init__(self, worker: Worker, limiter: Limiter, leases: Leases, settings: Settings, limits: AppLimits) -> None:
        self.worker = worker
        self.limiter = limiter
        self.leases = leases
        self.settings = settings
        self._limits = limits
        self.outage = Outage(limiter, worker.call_soon)
        self._share = LocalShare(worker.live_workers, leases)
        self.changes = Changes(worker, limiter, limits, self.outage, self._changed)
        self.attendant = Attendant(
            worker,
            parking_of(worker.app),
            limits,
            worker.return_queue_for,
            self.outage,
            lambda error: self.outage.begin(error, self._store_is_back),
            settings.orphans_after,
        )
        self._within = Within()
        self._plans: dict[tuple[str, str], Plan | None] = {}
        self._lines: dict[Buckets, Line] = {}
        self._numbers = itertools.count()
        self._room = Room(worker.pool)
        self._unlimited: deque[Unlimited] = deque()
        self._passed: tuple[float, Any] | None = None  # when the last one without limits was started, and which it was
        self._limited = 0  # requests with limits that are held
        self._wants: dict[Buckets, None] = {}  # lines that wait for a process, in the order of their turns to ask
        self._lines_at: dict[tuple[str, str], dict[Buckets, None]] = {}  # lines by each of their buckets
        self._turns: list[tuple[float, int, Line]] = []
        self._running: dict[Any, HeldRequest] = {}
        self._cancel_look: Callable[[], None] | None = None
        self._cancel_ends: Callable[[], None] | None = None
        self._suspended = SuspendedQueues(worker, self._widen)
        self._outside_prefetch = 0
        self._pumping = False
        self._again = False
        self._changed_names: set[str] = set()
        self._at_hand: HeldRequest | None = None  # while lines are moved on

    # -- Coming in -------------------------------------------------------------------------------------------------

    def on_request(self, request: Any) -> None:
        """In the place of ``Consumer.on_task_request``: a message has arrived, or its countdown has ended."""
        queue = self.worker.queue_of(request)
        try:
            plan = self._plan(request.task, queue)
            demands = plan.demands(request.args, request.kwargs) if plan is not None else ()
        except Exception as error:
            # The user's own key or cost, or a limit that does not fit: this task's failure and nobody else's.
            traceback = not isinstance(error, RateLimitError)  # ours say what to do
            logger.error("Task %s[%s] cannot be rate limited: %r", request.name, request.id, error, exc_info=traceback)
            self.worker.fail(request, error)
            return
        if is_built_in(request.task.name):
            self._within.look(request)
        now = time.monotonic()
        self._room.has_come(request.id)
        if plan is None:
            self._pass(request, queue)
            return
        returned = self.worker.came_back(request)
        # With a long countdown of the user's behind it, which the broker counts, it is not to wait here.
        old = not returned and plan.policy.throttle == "wait" and self.worker.age(request) > self._longest
        until = now if old else now + self._longest
        number = next(self._numbers)
        held = HeldRequest(request, queue, plan, demands, number, now, until, has_slot=returned, returned=returned)
        if self._is_another_copy(held):
            return
        line_key = plan.buckets(demands)
        line = self._lines.get(line_key)
        if line is None:
            line = self._lines[line_key] = Line()
            for bucket in line_key:
                self._lines_at.setdefault(bucket, {})[line_key] = None
        waiting = line.waiting(held)
        if old:
            waiting.appendleft(held)
        else:
            waiting.append(held)
        self._room.held += 1
        self._limited += 1
        if returned and not self.worker.came_beside(request):
            self._widen(held)
        if len(waiting) == 1 or old:  # else whatever those ahead of it wait for moves the line on
            self._run(line_key)
        if plan.policy.throttle == "wait" and held in waiting and (not returned or self.worker.is_full):
            self._leave_alone(held, line)

    def _is_another_copy(self, held: HeldRequest) -> bool:
        """A worker was killed between two steps, and this task is about twice: one of the two is let go."""
        if not self._parks(held.plan):
            held.doubtful = False
            return False
        if self.outage:
            return False
        try:
            if self.attendant.may_run(held):
                held.doubtful = False
                return False
        except STORE_TROUBLES as error:
            self.outage.begin(error, self._store_is_back)
            return False
        self._end_copy(held)
        return True

    def _end_copy(self, held: HeldRequest) -> None:
        logger.info("Another copy of %s[%s] is parked or may run: this one ends", held.request.name, held.request.id)
        self.worker.let_go(held.request)

    def on_message(self, message: Any) -> None:
        """A message has come in. If it is on its way back, with a countdown, it is expected at its slot."""
        seconds = self.worker.comes_back_in(message)
        if seconds is not None:
            self._room.expect(str(message.headers.get("id")), time.monotonic() + seconds + LEAD)
        self.attendant.on_message(message)

    def _pass(self, request: Any, queue: str) -> None:
        """A request without limits: it passes, unless others wait for a process, or are about to have their turn."""
        self.worker.restore(request)
        self._room.held += 1
        waiting = Unlimited(request, queue, next(self._numbers), time.monotonic())
        self._unlimited.append(waiting)
        if len(self._unlimited) == 1:  # else the next one that ends moves them on
            self._run()
        if self._unlimited and self._unlimited[-1] is waiting:
            if len(self._unlimited) * self._room.seconds_of_one(request.task.name) < self.worker.hears_after:
                self._widen(waiting)
            if self._limited and self.worker.several_queues:
                self._suspended.leave(
                    waiting, self._unlimited, 0.0, lambda: self._room.seconds_of_one(request.task.name)
                )

    def on_end(self, request: Any) -> None:
        """A task has ended: whoever waits for its process, or its place, may ask."""
        lines: list[Buckets] = []
        running = self._running.pop(request, None)
        if running is not None:
            self._end_lease(running)
            for bucket in running.plan.buckets(running.demands):
                lines += self._lines_at.get(bucket, ())
            for line_key in lines:
                self._lines[line_key].next_ask = 0.0
        if self._limited or self._unlimited:
            self._run(*dict.fromkeys(lines))

    def _look_for_ends(self) -> None:
        """Tasks end in ways that a pool does not tell: then their places are given back here."""
        self._cancel_ends = None
        for request in [each for each in self._running if not self.worker.pool.has(each)]:
            self.on_end(request)
        self._watch_ends()

    def _watch_ends(self) -> None:
        if self._running and self._cancel_ends is None:
            self._cancel_ends = self.worker.call_after(LOOK_FOR_ENDS, self._look_for_ends)

    def on_error(self, request: Any, error: Exception) -> None:
        """What nobody has foreseen was raised at a message: it ends with that, and those behind it go on."""
        logger.error("Task %s[%s] cannot go on: %r", request.name, request.id, error, exc_info=error)
        found = [held for line in self._lines.values() for held in line if held.request is request]
        if not found and self._at_hand is not None and self._at_hand.request is request:
            found = [self._at_hand]  # it was just leaving its line
        for held in found:
            self._take_out(held)
        for running in [held for held in self._running.values() if held.request is request]:
            self.on_end(running.request)
        # Else the pool has it, or it waits elsewhere.
        if request.worker_pid is None and not request.acknowledged:
            self.worker.fail(request, error)

    def _take_out(self, held: HeldRequest) -> None:
        for line in self._lines.values():
            at = line.remove(held)
            if at is not None and held.permit_at_us is not None:
                self._room.take_back(at)
        if not held.gone:
            self._leave(held)
        elif held.plan.leased and held.request not in self._running:
            self._end_lease(held)
        self._forget_slot(held)

    def forget(self, task: Any, context: Any) -> None:
        """A task was revoked or has expired before it came here: its slot is free for others."""
        marker = marker_among(vars(context))
        if not marker or self.outage:
            return  # it was never sent back, so it has no slot
        try:
            plan = self._plan(task, str(marker.get("queue")))
            if plan is not None:
                attempt = f"{context.id}.{context.retries}" if context.retries else context.id
                id = marker.get("id") or f"{attempt}@{marker.get('queue')}"
                self.limiter.forget(plan.demands(context.args, context.kwargs), id=id)
        except Exception as error:
            logger.debug("no slot to give back for %s: %r", context.id, error)

    def _plan(self, task: Any, queue: str) -> Plan | None:
        known = (task.name, queue)
        try:
            return self._plans[known]
        except KeyError:
            plan = plan_of(task, queue)
            if plan is not None:
                self._limits.note(plan.limits)
            self._plans[known] = plan
            return plan

    def begin(self) -> None:
        """The worker has started, or has a new connection. What ran before runs on."""
        self.changes.watch()
        self.attendant.watch()
        self._watch_ends()

    def lose(self, error: RateLimitError, on_end: Callable[[], None]) -> None:
        """The store is lost already when the worker starts. ``on_end`` is called when it is there."""

        def back() -> None:
            on_end()
            self._store_is_back()

        self.outage.begin(error, back)

    def close(self) -> None:
        """Let go of everything: the connection is lost or the worker stops, and the broker has it all."""
        with self.worker.turn:
            self._close()

    def _close(self) -> None:
        lines = list(self._lines.values())
        self._lines.clear()
        self._lines_at.clear()
        self._wants.clear()
        self._turns.clear()
        self._unlimited.clear()
        if self._cancel_look is not None:
            self._cancel_look()
            self._cancel_look = None
        if self._cancel_ends is not None:
            self._cancel_ends()
            self._cancel_ends = None
        for line in lines:
            if line.cancel is not None:
                line.cancel()
            for _, _, held in line.due:
                self._end_lease(held)
        self._limited = self._outside_prefetch = 0
        self._room.clear()
        self._suspended.clear()
        self.outage.close()
        self.changes.close()
        self.attendant.close()
        self.worker.close()

    # -- Moving on -------------------------------------------------------------------------------------------------

    def _run(self, *line_keys: Buckets) -> None:
        """Move lines on. A task may run to its end inside ``start`` (solo pool) and come back here: then once more."""
        if self._pumping:
            self._again = True
            return
        self._pumping = True
        try:
            while True:
                self._put_back_early()
                if self._is_one_owed() and self._room.idle() > 0:
                    self._let_one_pass(owed=True)
                for line_key in line_keys:
                    self._pump(line_key)
                self._admit()
                if not self._again:
                    break
                self._again = False
                line_keys = tuple(self._lines)
        finally:
            self._pumping = False
            if (self._wants or self._unlimited) and self._cancel_look is None:
                self._cancel_look = self.worker.call_after(LOOK, self._look)

    def _look(self) -> None:
        self._cancel_look = None
        self._run(*self._wants)

    def _admit(self) -> None:
        """Free processes are for those who wait: first for who has its turn, then in the order in which they came."""
        while True:
            for line_key in list(self._wants):
                if self._room.idle() <= 0 and not self._room.has_for_permit(time.monotonic()):
                    break
                if line_key in self._wants and not self._waits_behind_unlimited(self._lines[line_key]):
                    del self._wants[line_key]
                    self._pump(line_key)  # and behind the others, if it wants another process
            if not self._let_one_pass():
                return

    def _is_one_owed(self) -> bool:
        """Whether limited tasks, more than the pool can run, would keep those without limits out for too long."""
        if not self._unlimited:
            return False
        since, pause = self._unlimited[0].since, self._room.pause_after("")
        if self._passed is not None:
            passed_at, request = self._passed
            if self.worker.pool.has(request):
                return False
            since, pause = max(since, passed_at), self._room.pause_after(request.task.name)
        return time.monotonic() - since >= pause

    def _let_one_pass(self, *, owed: bool = False) -> bool:
        """Start the next request without limits, if nobody who waits is to have the process; or it is ``owed`` one."""
        if not self._unlimited:
            return False
        waiting = self._unlimited[0]
        request, now = waiting.request, time.monotonic()
        claims, turn = 0, float("inf")
        if not owed:
            claims = sum(not self._waits_behind_unlimited(self._lines[line_key]) for line_key in self._wants)
            turn = self._next_turn(now)
        if not self._room.for_unlimited(now, request.task.name, claims=claims, turn=turn):
            return False
        self._passed = now, request
        self._unlimited.popleft()
        self._leaves(waiting)
        self.worker.start(request)
        return True

    def _waits_behind_unlimited(self, line: Line) -> bool:
        """Its limit is open and was not closed to those who wait: they go in the order in which they came."""
        return bool(
            line.open
            and not (line.with_slot or line.due)
            and line.new
            and self._unlimited
            and self._unlimited[0].number < line.new[0].number
        )

    def _next_turn(self, now: float) -> float:
        """When the next one has its turn that is to come, or cannot ask yet."""
        while self._turns and (self._turns[0][0] != self._turns[0][2].turn or self._turns[0][0] <= now):
            heapq.heappop(self._turns)
        turn = self._turns[0][0] if self._turns else float("inf")
        return min(turn, self._room.next_comer(now))

    def _pump(self, line_key: Buckets) -> None:
        line = self._lines.get(line_key)
        if line is None:
            return
        line.wants = False
        self._move_on(line)
        if self._lines.get(line_key) is not line:
            return  # the connection was lost while a greenlet was here: nobody of it is held any more
        if not line:
            if line.cancel is not None:
                line.cancel()
            line.turn = 0.0
            self._wants.pop(line_key, None)
            del self._lines[line_key]
            for bucket in line_key:
                del self._lines_at[bucket][line_key]
                if not self._lines_at[bucket]:
                    del self._lines_at[bucket]
        else:
            self._set_timer(line_key, line)
            if line.wants:
                self._wants[line_key] = None
            else:
                self._wants.pop(line_key, None)

    def _move_on(self, line: Line) -> None:
        """Start and ask for whom it can. Whoever something unforeseen happens to leaves the line, and it goes on."""
        while True:
            self._at_hand = None
            try:
                self._start_due(line)
                self._ask_all(line)
            except Exception as error:
                at_hand = self._at_hand
                if at_hand is None or isinstance(error, self.worker.connection_errors):
                    raise
                self.on_error(at_hand.request, error)
            else:
                self._at_hand = None
                return

    def _start_due(self, line: Line) -> None:
        again: list[HeldRequest] = []
        try:
            self._start_those_due(line, again)
        finally:
            for held in reversed(again):
                line.waiting(held).appendleft(held)

    def _start_those_due(self, line: Line, again: list[HeldRequest]) -> None:
        while line.due and line.due[0][0] <= time.monotonic():
            at, _, held = line.due[0]
            self._at_hand = held
            if held.permit_at_us is not None:
                now = time.monotonic()
                together = any(other <= now and each.permit_at_us is not None for other, _, each in line.due[1:3])
                stale = now - at > max(BUNCHED if together else STALE, *[demand.interval for demand in held.demands])
                if not stale and self._room.idle() <= 0:
                    line.wants = True
                    break  # until one is free, which is soon, or it asks again
                granted_at, held.permit_at_us = held.permit_at_us, None
                self._room.take_back(at)
                if not stale:
                    heapq.heappop(line.due)
                    self._start(held, granted_at)
                    continue
            heapq.heappop(line.due)
            again.append(held)

    def _ask_all(self, line: Line) -> None:
        self._ask_each(line, line.with_slot)
        self._ask_each(line, line.new)

    def _ask_each(self, line: Line, waiting: deque[HeldRequest]) -> None:
        while waiting:
            held = self._at_hand = waiting[0]
            if held.request.revoked():
                waiting.popleft()
                self._leave(held)
                self._forget_slot(held)
                continue
            if held.doubtful and self._is_another_copy(held):
                waiting.popleft()
                self._leave(held)
                continue
            if time.monotonic() >= held.until:
                # The broker would soon take it for lost, and hand it out a second time: it is sent anew instead.
                if not self._send_back(line, waiting, held, 0.0, held.demands[0].name):
                    return
                continue
            if not held.has_slot and held.plan.policy.max_wait is None and self._parks(held.plan) and not self.outage:
                demand = self.attendant.lot_of(held.demands)
                if demand is not None:
                    try:
                        if self._park(line, waiting, held, demand, HORIZON, only_behind=True):
                            continue
                    except STORE_TROUBLES as error:
                        if not self._perhaps_parked(line, waiting, held, error):
                            return
                        continue
            now = time.monotonic()
            if (held.has_slot or held.plan.policy.throttle == "wait") and now < line.next_ask:
                return
            may_start = (waiting is line.with_slot or not line.with_slot) and not self._waits_behind_unlimited(line)
            may_start = may_start and self._room.has_for_permit(now, owed=self._is_one_owed())
            # Nobody takes a permit without a process to use it. But a newcomer that would be sent back need not
            # wait for one: it asks for its slot alone, and makes room for what is behind it.
            if not may_start and (held.has_slot or line.open or held.plan.policy.throttle != "retry"):
                line.wants = True
                return
            if not self._ask(line, waiting, held, may_start):
                return

    def _ask(self, line: Line, waiting: deque[HeldRequest], held: HeldRequest, free: bool) -> bool:
        """Ask for the head of the line. False: the line has to wait."""
        policy = held.plan.policy
        try:
            if self.outage:
                raise self.outage.error
            decision = self.limiter.ask(
                held.demands,
                id=held.id if policy.waits or held.plan.leased else "",
                horizon=self._horizon(held) if free else SLOT_ONLY,
                claim=self._claim(held),
            )
        except STORE_TROUBLES as error:
            return self._without_store(line, waiting, held, error)
        except ImpossibleRequest as error:
            # A stored limit is smaller than what this task costs.
            logger.error("Task %s[%s] can never start: %s", held.request.name, held.request.id, error)
            waiting.popleft()
            self._leave(held)
            self._forget_slot(held)
            self.worker.fail(held.request, error)
            return True
        line.open = decision.retry_after <= 0
        if policy.throttle == "wait":  # whose queues may be left alone
            line.interval = _interval(held.demands, decision)
        if decision.allowed:
            waiting.popleft()
            self._granted(line, held, decision)
            return True
        line.intervals = {state.name: state.interval for state in decision.states}
        return self._refused(line, waiting, held, decision, free)

    def _claim(self, held: HeldRequest) -> float:
        """Seconds within which it keeps a slot if it is refused. Who is parked gets one when it leaves."""
        policy = held.plan.policy
        if not self._parks(held.plan):
            return policy.claim
        return min(policy.claim, RETURN_HOLD if held.has_slot else policy.inline_wait)

    def _parks(self, plan: Plan) -> bool:
        """Whether tasks wait in the store. Else they wait in the broker, on a countdown to a slot of their own."""
        return plan.parks and not self.settings.in_memory and self.limiter.pretended_wait is None

    def _horizon(self, held: HeldRequest) -> float:
        policy = held.plan.policy
        horizon = policy.inline_wait
        if policy.throttle == "wait" or held.has_slot:
            horizon = max(horizon, self._ahead())
        if policy.max_wait is not None:
            horizon = min(horizon, policy.max_wait)
        return horizon

    def _ahead(self) -> float:
        """Seconds ahead that a permit may be taken: no longer than a process may be kept for it."""
        return self._room.ahead(self._unlimited[0].request.task.name) if self._unlimited else AHEAD

    def _granted(self, line: Line, held: HeldRequest, decision: Decision) -> None:
        now = time.monotonic()
        at = now + decision.retry_after
        # The next one of this line can have its turn no earlier than its buckets say: asking sooner is of no use, and
        # would keep a pool process for it that other lines could use.
        line.closed_until = now + _next_turn(held.demands, decision)
        line.next_ask = line.closed_until - ASK_EARLY
        self.leases.begin(held.id, decision.demands, decision.granted_at)
        if at <= now and self._room.idle() > 0:
            self._start(held, decision.granted_at)
            return
        held.permit_at_us = decision.granted_at
        line.wants = line.wants or at <= now
        self._room.promise(at, held.request.task.name)
        heapq.heappush(line.due, (at, next(self._numbers), held))
        if decision.retry_after > held.plan.policy.inline_wait and held.plan.policy.throttle == "wait":
            self._announce(held, Outcome("waiting", decision.retry_after, held.demands[0]))

    def _refused(
        self, line: Line, waiting: deque[HeldRequest], held: HeldRequest, decision: Decision, free: bool
    ) -> bool:
        policy, wait = held.plan.policy, decision.retry_after
        name = decision.binding or held.demands[0].name
        line.closed_until = time.monotonic() + wait
        held_for = time.monotonic() - held.since
        given_up = (decision.full and policy.overflow != held.queue) or wait + held_for > policy.claim
        if policy.waits and given_up:
            self._give_up(line, waiting, held, policy.overflow, self._why(line, held, name, wait, decision.full))
        elif wait <= policy.inline_wait or (held.has_slot and wait <= RETURN_HOLD):
            # A little too early, or the pool is busy: asks again at its time, or when a process is free.
            if line.open:
                line.wants = True
                return False
            waiting.popleft()
            held.has_slot = held.has_slot or policy.throttle == "retry"
            if free:
                heapq.heappush(line.due, (time.monotonic() + max(0.001, wait - ASK_EARLY), next(self._numbers), held))
            else:
                line.with_slot.append(held)
        elif not policy.waits:
            self._give_up(line, waiting, held, policy.throttle, self._why(line, held, name, wait))
        elif policy.throttle == "wait" and wait <= self._longest:
            line.next_ask = time.monotonic() + max(0.001, min(wait - ASK_EARLY, held.plan.longest_pause))
            self._announce(held, self._why(line, held, name, wait))
            if self.worker.is_full:
                self._leave_alone(held, line)
            elif self.worker.several_queues:
                self._widen(held)
            return False
        elif self._parks(held.plan):
            demand = next((demand for demand in held.demands if demand.name == name), held.demands[0])
            try:
                self._park(line, waiting, held, demand, wait, since=decision.granted_at)
            except STORE_TROUBLES as error:
                return self._perhaps_parked(line, waiting, held, error)
        else:
            return self._send_back(line, waiting, held, wait, name)
        return True

    def _park(
        self,
        line: Line,
        waiting: deque[HeldRequest],
        held: HeldRequest,
        demand: Demand,
        wait: float,
        *,
        only_behind: bool = False,
        since: int = 0,
    ) -> bool:
        """Park it where ``demand`` is asked, ``wait`` seconds and those before it from its turn. False: nobody is."""
        interval, most = line.intervals.get(demand.name) or demand.interval, None
        max_wait = held.plan.policy.max_wait
        if max_wait is not None and interval > 0 and not held.returned:
            most = 1 + int((max_wait - wait) / interval)
        ahead = self.attendant.park(held, demand, only_behind=only_behind, most=most, since=since)
        if ahead == NOBODY:
            return False
        if ahead == OVERTAKEN:
            waiting.popleft()
            self._leave(held)
            self._end_copy(held)
            return True
        full = ahead <= FULL
        wait += (FULL - ahead if full else ahead) * interval
        if full:
            self._give_up(line, waiting, held, held.plan.policy.overflow, self._why(line, held, demand.name, wait))
            return True
        waiting.popleft()
        self._leave(held)
        self._announce(held, replace(self._why(line, held, demand.name, wait), what="parked"))
        return True

    def _perhaps_parked(
        self, line: Line, waiting: deque[HeldRequest], held: HeldRequest, error: RateLimitError
    ) -> bool:
        """The store's answer was lost. If it is parked, its message ends when it comes back: it must not start now."""
        self.outage.begin(error, self._store_is_back)
        held.doubts, held.doubtful = held.doubts + 1, True
        return self._send_back(line, waiting, held, self.outage.pause() + LEAD, None)

    def _send_back(
        self, line: Line, waiting: deque[HeldRequest], held: HeldRequest, wait: float, name: str | None
    ) -> bool:
        delay = min(wait, self._longest) - LEAD
        try:
            return_queue = self.worker.return_queue_for(held.queue)
            self.worker.send_back(held.request, held.queue, return_queue, delay, held.doubts)
        except Exception as error:
            self._hold_on(line, waiting, held, error)
            return True
        waiting.popleft()
        self._leave(held)
        why = self._why(line, held, name, wait) if name is not None else Outcome("", wait)
        self._announce(held, replace(why, what="returned"))
        return True

    def _hold_on(self, line: Line, waiting: deque[HeldRequest], held: HeldRequest, error: Exception) -> None:
        """Nothing is lost: the message is unacknowledged, here and at the broker. Tried again in a moment.

        But for a lost connection, which Celery has to see: the broker hands out everything anew then.
        """
        if isinstance(error, self.worker.connection_errors):
            raise error
        logger.warning(
            "Task %s[%s] could not be sent back (%r): held, and tried again",
            *(held.request.name, held.request.id, error),
        )
        line.next_ask = time.monotonic() + 1.0
        waiting.popleft()
        heapq.heappush(line.due, (line.next_ask, next(self._numbers), held))

    @cached_property
    def _longest(self) -> float:
        """Seconds that a message may be held, or be away on a countdown."""
        return self.worker.redelivery * REDELIVERY_SHARE

    def _without_store(self, line: Line, waiting: deque[HeldRequest], held: HeldRequest, error: RateLimitError) -> bool:
        """The store does not answer: what ``ratelimit_on_store_error`` says."""
        if self.outage.is_a_move:
            line.next_ask = time.monotonic() + LOOK
            return False
        self.outage.begin(error, self._store_is_back)
        choice = "defer" if held.doubtful else self.settings.on_store_error  # it may be parked
        if choice in ("local", "allow") and not self._room.has_for_permit(time.monotonic()):
            line.wants = True
            return False
        if choice == "local":
            wait = self._share.wait(held.demands)
            if wait <= 0:
                choice = "allow"
                self.leases.begin(held.id, held.demands, 0)
            elif held.plan.policy.throttle != "retry" or wait <= RETURN_HOLD:
                waiting.popleft()
                heapq.heappush(line.due, (time.monotonic() + wait, next(self._numbers), held))
                return True
        if choice == "allow":
            waiting.popleft()
            self._start(held, 0)
            return True
        if choice == "raise":
            waiting.popleft()
            self._leave(held)
            self.worker.fail(held.request, error)
            return True
        pause = self.outage.pause()
        if held.plan.policy.throttle == "wait":
            line.next_ask = time.monotonic() + pause
            return False
        return self._send_back(line, waiting, held, pause + LEAD, None)

    def _store_is_back(self) -> None:
        self._share.clear()
        self.attendant.store_is_back()
        for line in self._lines.values():
            line.next_ask = 0.0
        self._run(*self._lines)

    def _changed(self, names: set[str]) -> None:
        """Rates of these limits are others now: whoever waits asks again."""
        self._changed_names |= names
        self._run(*self._lines)
        self.attendant.wake(names)
        self.worker.recall(lambda request: self._limited_by(request, names))

    def _put_back_early(self) -> None:
        """Who waits for a time that was said at another rate asks again. Only between two turns of a line."""
        names, self._changed_names = self._changed_names, set()
        if not names:
            return
        for line_key, line in self._lines.items():
            if any(name in names for name, _ in line_key):
                line.next_ask = 0.0
                line.due, early = (
                    [each for each in line.due if each[2].permit_at_us is not None],
                    sorted(each for each in line.due if each[2].permit_at_us is None),
                )
                heapq.heapify(line.due)
                for _, _, held in reversed(early):
                    line.waiting(held).appendleft(held)

    def _limited_by(self, request: Any, names: set[str]) -> bool:
        plan = self._plan(request.task, self.worker.queue_of(request))
        return plan is not None and any(limit.name in names for limit in plan.limits)

    # -- Going out -------------------------------------------------------------------------------------------------

    def _leave_alone(self, held: HeldRequest, line: Line) -> None:
        first = max(0.0, line.closed_until - time.monotonic())
        # Or what the broker hands out of all queues would soon be of this one; or nothing, for too long.
        among_others = self.worker.several_queues and not line.open
        if among_others or 0 < first + len(line) * line.interval < self.worker.hears_after:
            self._widen(held)
        self._suspended.leave(held, [*line.with_slot, *line.new], first, lambda: line.interval)

    def _widen(self, waiting: Waiting) -> None:
        """What waits here for its turn is not to keep others out, unless there are very many."""
        if self._outside_prefetch < MOST_RETURNED and not waiting.outside_prefetch:
            self._outside_prefetch += 1
            waiting.outside_prefetch = True
            self.worker.widen_prefetch()

    def _leaves(self, waiting: Waiting) -> None:
        self._room.held -= 1
        if waiting.outside_prefetch:
            self._outside_prefetch -= 1
            self.worker.narrow_prefetch()
        self._suspended.one_has_gone(waiting)

    def _leave(self, held: HeldRequest, *, starts: bool = False) -> None:
        held.gone = True
        self._limited -= 1
        self._leaves(held)
        if held.plan.leased and not starts:
            self._end_lease(held)

    def _start(self, held: HeldRequest, granted_at: int) -> None:
        revoked = held.request.revoked()
        self._leave(held, starts=not revoked)
        if revoked:
            return
        if held.plan.leased:
            self._running[held.request] = held
            self._watch_ends()
        self.worker.restore(held.request)
        self.worker.start(held.request, {"queue": held.queue, "id": held.id, "granted_at": granted_at})

    def _why(self, line: Line, held: HeldRequest, name: str, wait: float, full: bool = False) -> Outcome:
        """Why this one does not start, as far as it waits for its turn."""
        demand = next((demand for demand in held.demands if demand.name == name), held.demands[0])
        waited = time.monotonic() - held.since
        return Outcome("waiting", wait, demand, line.intervals.get(demand.name, 0.0), waited=waited, full=full)

    def _give_up(self, line: Line, waiting: deque[HeldRequest], held: HeldRequest, how: str, why: Outcome) -> None:
        if held.plan.policy.waits and not why.full:
            why = replace(why, max_wait=held.plan.policy.max_wait)
        what, to = {"drop": ("dropped", None), "fail": ("failed", None)}.get(how, ("diverted", how))
        why = replace(why, what=what, to=to)
        if how not in ("drop", "fail"):
            try:
                self.worker.redirect(held.request, how)
            except Exception as error:
                self._hold_on(line, waiting, held, error)
                return
        waiting.popleft()
        self._leave(held)
        self._announce(held, why)
        self._forget_slot(held)
        if how == "drop":
            self.worker.drop(held.request, why.reason)
        elif how == "fail":
            self.worker.fail(held.request, why.error)

    def _end_lease(self, held: HeldRequest) -> None:
        try:
            self.leases.end(held.id, later=bool(self.outage))
        except STORE_TROUBLES as error:
            self.outage.begin(error, self._store_is_back)

    def _forget_slot(self, held: HeldRequest) -> None:
        if self.outage:
            return  # it lapses by itself
        try:
            self.limiter.forget(held.demands, id=held.id)
        except STORE_TROUBLES as error:
            logger.debug("slot of %s not given back: %r", held.request.id, error)

    def _announce(self, held: HeldRequest, outcome: Outcome) -> None:
        """Throttling is normal: an INFO line, an event and a signal, once for each outcome of a delivery.

        While the store does not answer, which is said when it begins and ends, the line is for whoever debugs.
        """
        if held.announced == outcome.what:
            return
        held.announced = outcome.what
        request, fields = held.request, outcome.fields()
        level = logging.INFO if outcome.limit is not None else logging.DEBUG
        logger.log(level, "Task %s[%s] %s", request.name, request.id, outcome)
        self.worker.announce(request, fields)
        task_throttled.send(sender=request.task, request=request, **fields)

    # -- The timer -------------------------------------------------------------------------------------------------

    def _set_timer(self, line_key: Buckets, line: Line) -> None:
        now = time.monotonic()
        heads = [waiting[0].until for waiting in (line.with_slot, line.new) if waiting]
        times = [min(heads, default=now + self._longest)]
        # Whose time has come waits for a process, which is noted; or it has come while the line asked for another one.
        turns = [line.due[0][0]] if line.due and (line.due[0][0] > now or not line.wants) else []
        if heads and not line.wants:
            turns.append(max(line.next_ask, now + LEAST_PAUSE))
        self._note_turn(line, min(turns, default=0.0))
        times += turns
        alarm = min(times)
        if line.cancel is not None:
            if line.alarm <= alarm:
                return
            line.cancel()
        line.alarm = alarm
        line.cancel = self.worker.call_after(max(0.0, alarm - time.monotonic()), lambda: self._ring(line_key, line))

    def _note_turn(self, line: Line, turn: float) -> None:
        if turn and turn != line.turn:
            heapq.heappush(self._turns, (turn, next(self._numbers), line))
        line.turn = turn
        if len(self._turns) > 100 + 4 * len(self._lines):  # of those that were told other times since
            self._turns = [(each.turn, next(self._numbers), each) for each in self._lines.values() if each.turn]
            heapq.heapify(self._turns)

    def _ring(self, line_key: Buckets, line: Line) -> None:
        line.cancel = None
        self._run(line_key)


def _interval(demands: Sequence[Demand], decision: Decision) -> float:
    """Seconds from one of a line to the next, at the rates that are in force."""
    states = zip(demands, decision.states, strict=True)
    return max([(state.interval or demand.interval) * demand.cost for demand, state in states])


def _next_turn(demands: Sequence[Demand], decision: Decision) -> float:
    """Seconds until the same demands can have their turn again, at the earliest."""
    return max(
        [
            state.reset_after - (state.limit - demand.cost) * state.interval
            if state.interval
            else 0.0  # it tells when it is asked
            for demand, state in zip(demands, decision.states, strict=True)
        ]
    )
