"""Receives each request of a worker before the pool does, and decides when its task starts.

The message is raw and unacknowledged here: holding it, or sending it back as it is, loses and changes nothing. Requests
with the same limits share a queue (:mod:`.request_queue`). :mod:`.next_action` decides.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import monotonic
from typing import Any

from .._celery import Worker, requests
from .._celery.message_fields import priority_of
from .._celery.saved_message import marker_in, marker_in_headers, set_countdown
from ..app.app_limits import AppLimits
from ..app.plan import is_built_in
from ..app.settings import Settings
from ..app.ungated_call_warning import BuiltinCallWarning
from ..backlog.backlog import backlog_of
from ..backlog.return_scheduler import ReturnScheduler
from ..backlog.tuning import RETURN_EARLY
from ..errors import RateLimitError
from ..limiter.leases import LeaseKeeper
from ..limiter.limiter import Limiter
from ..limiter.report_counts import DecisionCounter
from ..observing import Observer
from ..store_calls.outage import Outage
from ..store_calls.store_calls import StoreCalls
from ..store_calls.store_clock import StoreClock, read_time_us
from .admission import FallbackLimiter, PermitClient
from .announce_outcomes import Reporter
from .capacity import PoolCapacity
from .concurrency import END_POLL_INTERVAL, ConcurrencyLeases
from .deduplication import Deduplication, coalesce_key
from .flow_control import ArrivalBatch, HeldRequests, ReturnQueueConsumption
from .limit_watcher import LimitWatcher
from .parking_batch import ParkingBatch
from .perform_action import Actions
from .pool_scheduler import PoolScheduler
from .queue_processor import CurrentRequest, QueueProcessor
from .request import PendingRequest
from .request_queue import LimitQueue
from .request_queues import Expirations, RequestQueues
from .request_resources import RequestResources
from .scheduler import Scheduler
from .stored_rate_labels import StoredLimitLabels
from .upstream_returns import UpstreamReturns

__all__ = ["Gate"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")


class Gate:
    """Decides for each request of one worker whether its task starts now, is held, is sent back or is given up.

    Args:
        limits: the limits of this worker's tasks, by name.
        observers: called with the outcome of each request.
    """

    def __init__(
        self,
        worker: Worker,
        limiter: Limiter,
        leases: LeaseKeeper,
        settings: Settings,
        limits: AppLimits,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.worker = worker
        self._limits, self._builtin_calls, self._numbers = limits, BuiltinCallWarning(), itertools.count()
        asker = self._asker = limiter._asker
        # The store, and what is parked in it.
        self._outage = outage = Outage(asker, worker.timers.call_soon, self._store_is_back)
        store_calls = self._store_calls = StoreCalls(worker, outage)
        clock = self._clock = StoreClock(lambda: outage.ask(partial(read_time_us, asker), None, quietly=True))
        worker.republisher.now = clock.now
        lots, orphans_after = backlog_of(worker.app), settings.orphans_after
        self._attendant = attendant = ReturnScheduler(worker, lots, limits, outage, store_calls, orphans_after, clock)
        register = attendant.parking.register
        self._limit_watcher = LimitWatcher(
            *(worker, asker, limits, outage, store_calls, self._is_idle, self._changed, lambda: register.workers)
        )
        counting = DecisionCounter(
            *(asker, worker.timers.call_after, lambda: bool(outage)),
            lambda: 1.0 if asker.shadows.any_of(limits) else register.counts_apart,
        )
        self._counting = counting if settings.counts and not settings.in_memory else None
        stored = self._stored = StoredLimitLabels(asker, outage)
        reporter = Reporter(observers, stored.of, counting.counter if self._counting is not None else None)
        self._capacity = capacity = PoolCapacity(worker.pool, worker.live_workers, worker.keeps_only_process)
        self._queues = queues = RequestQueues()
        self._prefetch = prefetch = HeldRequests(worker, capacity)
        self._return_queues = return_queues = ReturnQueueConsumption(worker, capacity, lambda: self._dispatch(queues))
        self._pool_scheduler = pool_scheduler = PoolScheduler(
            worker, capacity, queues, prefetch, reporter, self._dispatch
        )
        self._concurrency = concurrency = ConcurrencyLeases(
            *(worker, asker, leases, outage, capacity, queues, self.on_end, self._dispatch)
        )
        self._resources = resources = RequestResources(asker, outage, capacity, prefetch, concurrency)
        deduplication = self._deduplication = Deduplication(worker, attendant.arrivals, outage)
        self.upstream_returns: UpstreamReturns = UpstreamReturns(
            *(worker, asker, limits, attendant, outage, reporter, deduplication, queues, prefetch, resources),
            self._dispatch,
        )
        self._batch = batch = ParkingBatch(worker, attendant, outage, store_calls, prefetch, capacity.turns)
        actions = Actions(worker, clock, outage, prefetch, resources, reporter, batch, deduplication)
        self._fallback = FallbackLimiter(settings.on_store_error, worker.live_workers, leases, outage, capacity)
        self._admission = PermitClient(
            *(asker, store_calls, outage, self._fallback, concurrency, pool_scheduler, deduplication),
            worker.broker.max_hold,
        )
        self._errors = CurrentRequest(worker, self.on_error)
        processor = QueueProcessor(
            *(self._admission, resources, pool_scheduler, batch, actions, return_queues, self._errors, self._dispatch)
        )
        self._scheduler = Scheduler(
            worker, queues, processor, pool_scheduler, capacity, concurrency, batch, return_queues
        )
        self._expirations = Expirations(worker, self._dispatch)
        self._arrival_batch = ArrivalBatch(worker, attendant, capacity, prefetch, self._dispatch)
        worker.consumption.pause_while(self._scheduler.is_late)
        worker.autoscaling.leave_out(pool_scheduler.waiting_for_limits)
        worker.during_soft_shutdown(concurrency.release_in_soft_shutdown, END_POLL_INTERVAL)

    def _dispatch(self, queues: Iterable[LimitQueue] = ()) -> None:
        self._scheduler.dispatch(queues)

    # -- Coming in -------------------------------------------------------------------------------------------------

    def on_request(self, request: Any) -> None:
        """In the place of ``Consumer.on_task_request``: a message has arrived, or its countdown has ended."""
        queue = requests.queue_of(request)
        try:
            plan = self._limits.plan_of(request.task, queue)
            priority = priority_of(request.message.properties.get("priority"))
            every = plan.demands(request.args, request.kwargs, priority) if plan is not None else ()
            alone = coalesce_key(plan, request) if plan is not None else ""
        except Exception as error:
            # The user's own key or cost, or a limit that does not fit: this task fails, and no other.
            traceback = not isinstance(error, RateLimitError)  # ours say what to do
            logger.error("Task %s[%s] cannot be rate limited: %r", request.name, request.id, error, exc_info=traceback)
            requests.fail(request, error)
            return
        if is_built_in(request.task.name):
            self._builtin_calls.look(request)
        reserved_for = self._capacity.turns.pop(request.id)
        if plan is None:
            self._pool_scheduler.admit(request, queue, next(self._numbers))
            return
        can_park, returned = self._attendant.may_park(plan), requests.was_throttled(request)
        if can_park and not returned and self._attendant.memory.is_full:
            plan = plan.waiting
        demands, shadow = self._asker.shadows.split(every)
        now, number, max_hold = monotonic(), next(self._numbers), self.worker.broker.max_hold(queue)
        # After a countdown of the user's, which the broker counts, or near a delivery limit, it is not to wait here.
        old = plan.policy.throttle == "wait" and (
            (not returned and requests.delivery_age(request) > max_hold)
            or self.worker.consumption.nears_delivery_limit(request, queue)
        )
        until = now if old else now + max_hold
        not_before = self._admission.not_before(now, reserved_for) if returned else now
        pending = PendingRequest(
            request, queue, plan, demands, number, now, until, returned, returned, not_before, reserved_for
        )
        pending.can_park, pending.coalesce_key, pending.shadow = can_park, alone, shadow
        if self._deduplication.ends_coalesced(pending):
            return
        if not demands:
            if not self._deduplication.ends(pending):
                self._pool_scheduler.admit(request, queue, number, plan, shadow)
            return
        self._hold(pending, first=old)

    def _hold(self, pending: PendingRequest, *, first: bool) -> None:
        limit_queue = self._queues.get_or_create(pending.plan.buckets(pending.demands))
        limit_queue.enqueue(pending, is_new=True, first=first)
        self._expirations.watch(limit_queue, pending)
        self._prefetch.enter(pending)
        if pending.returned and not requests.via_return_queue(pending.request):
            self._prefetch.widen(pending)
        if self._arrival_batch.add(limit_queue, pending):
            return
        if first or len(limit_queue.asking(pending)) == 1:  # else the queue goes on with the requests ahead of it
            self._scheduler.dispatch([limit_queue])
        self._prefetch.suspend_if_it_stays(pending, limit_queue)

    def on_message(self, message: Any) -> None:
        """A message has come in. If it is on its way back, with a countdown, it is expected at its slot."""
        seconds = set_countdown(message, self._clock.seconds_until, RETURN_EARLY, self.worker.broker.max_hold)
        if seconds is not None:
            now = monotonic()
            self._capacity.turns.expect_return(message.headers, self._limits, now + seconds + RETURN_EARLY, now)
            self._attendant.occupied.note_coming(message, seconds + RETURN_EARLY)
        if marker_in(message) and not self._return_queues.has_left:
            self._capacity.stop_listening()
            self._arrival_batch.request_as_many_as_run(message, str(message.headers.get("task")))
        self._attendant.arrivals.on_message(message)

    # -- Ends ------------------------------------------------------------------------------------------------------

    def on_end(self, request: Any) -> None:
        """A task has ended: requests that wait for its process, or its lease, may ask."""
        pending = self._concurrency.end(request)
        queues = self._queues.asking(pending.plan.buckets(pending.demands)) if pending is not None else []
        self._return_queues.update(monotonic())
        for limit_queue in queues:
            limit_queue.next_acquire = 0.0
        if self._prefetch.limited or len(self._pool_scheduler):
            self._scheduler.dispatch(queues)
        else:
            self._concurrency.release_ended()

    def on_error(self, request: Any, error: Exception) -> None:
        """An unforeseen error was raised at a message: its task fails with it, and the requests behind it go on."""
        logger.error("Task %s[%s] cannot go on: %r", request.name, request.id, error, exc_info=error)
        found = [(queue, pending) for queue in self._queues for pending in queue if pending.request is request]
        attribution = self._errors.pair
        if not found and attribution is not None and attribution[1].request is request:
            found = [attribution]  # it was just leaving its line
        for limit_queue, pending in found:
            self._resources.evict(limit_queue, pending)
        if request in self._concurrency:
            self.on_end(request)
        self._concurrency.release_ended()
        # Else the pool has it, or it waits elsewhere.
        if (request.worker_pid is None or not self.worker.pool.has(request)) and not request.acknowledged:
            requests.fail(request, error)

    def on_revoked(self, task: Any, context: Any, expired: bool) -> None:
        """A task was revoked or has expired, here or before it came here: then its slot is free for others."""
        marker = marker_in_headers(vars(context))
        if marker or self._queues.holds(context.id):
            outcome = "expired" if expired else "revoked"
            requests.throttled_out(task, context, outcome, f"{outcome} while it waited for a limit")
        if marker and not self._outage:  # else it was never sent back, so it has no slot
            queue = str(marker.get("queue"))
            self._resources.give_up_slot_of(lambda: self._limits.plan_of(task, queue), context, marker)

    # -- The worker, the store, and what people store --------------------------------------------------------------

    def begin(self) -> None:
        """The worker has started, or has a new connection. What ran before runs on."""
        self._outage.ask(lambda: self._store_calls.open(self._asker.ping), None, quietly=True)
        self._limit_watcher.watch()
        self._attendant.watch()
        self._concurrency.watch()

    def start_without_store(self, error: RateLimitError, on_end: Callable[[], None]) -> None:
        """The store is lost already when the worker starts. ``on_end`` is called when it is there."""
        self._outage.begin(error, on_end)

    def close(self) -> None:
        """Let go of everything: the connection is lost or the worker stops, and the broker has it all."""
        with self.worker.timers.lock:
            requests_here = self._queues.clear()
            self.upstream_returns.close(requests_here)
            self._arrival_batch.clear()
            self._expirations.clear()
            self._batch.clear()
            self._store_calls.close()
            self._pool_scheduler.clear()
            self._scheduler.close()
            self._prefetch.clear()
            for pending in requests_here:
                self._resources.release_lease(pending)
            self._concurrency.release_ended()
            if self._counting is not None and not self._outage:
                self._counting.close()
            self._outage.close()
            self._limit_watcher.close()
            self._concurrency.close()
            self._attendant.close()
            self.worker.final_states.close(stopping=False)
            self.worker.acknowledgements.close()

    def _store_is_back(self) -> None:
        self._attendant.store_is_back()
        self._fallback.clear()
        self._scheduler.dispatch_all()

    def _is_idle(self) -> bool:
        """No task waits here, returns, or is parked; and no limit is in shadow."""
        waiting = self._prefetch.limited or self._capacity.turns.next(monotonic()) < float("inf")
        return self._attendant.is_idle and not waiting and not self._asker.shadows.any_of(self._limits)

    def _changed(self, names: set[str]) -> None:
        """The rates of these limits have changed: waiting requests ask again."""
        self._stored.forget(names)
        self._attendant.occupied.forget_turns(names)
        self._scheduler.note_changed(names)
        self._attendant.rescheduler.wake(names)
        has_any, queue_of = self._limits.has_any, requests.queue_of
        self.worker.timers.fire_early(lambda request: has_any(request.task, queue_of(request), names))
