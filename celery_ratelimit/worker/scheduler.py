"""Dispatches the request queues of one worker: each free process goes to the request whose turn it is.

``dispatch`` is the one way in: a message, the end of a task, a timer, a notification, a changed limit and a reply of
the store only say which queues may go on, and call it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from time import monotonic

from .._celery import Worker
from .admission import POLL_INTERVAL
from .capacity import PoolCapacity
from .concurrency import ConcurrencyLeases
from .flow_control import ReturnQueueConsumption
from .parking_batch import ParkingBatch
from .pool_scheduler import PoolScheduler
from .queue_processor import QueueProcessor
from .request_queue import ACQUIRE_EARLY, LimitQueue
from .request_queues import QueueTimers, RequestQueues

__all__ = ["Scheduler"]

#: Seconds after its time at which a task is late; and how many queues are looked at for one, the longest waiting first.
LATE, LOOKED_AT = 0.005, 10


class Scheduler:
    """Dispatches the queues of one worker."""

    def __init__(
        self,
        worker: Worker,
        queues: RequestQueues,
        processor: QueueProcessor,
        pool_scheduler: PoolScheduler,
        capacity: PoolCapacity,
        concurrency: ConcurrencyLeases,
        batch: ParkingBatch,
        return_queues: ReturnQueueConsumption,
    ) -> None:
        self._worker, self._queues, self._processor, self._batch = worker, queues, processor, batch
        self._pool_scheduler, self._capacity, self._concurrency = pool_scheduler, capacity, concurrency
        self._return_queues = return_queues
        self._timers = QueueTimers(worker, capacity.turns, pool_scheduler.early, self.dispatch)
        self._cancel_poll: Callable[[], None] | None = None
        self._changed: set[str] = set()
        self._ready: dict[LimitQueue, None] = {}
        self._is_running = self._again = False

    def dispatch(self, queues: Iterable[LimitQueue] = ()) -> None:
        """Move these queues on, and all that wait for a process which is free.

        A task may run to its end while it is started (solo pool) and call this again: then it is done once more.
        """
        if self._worker.is_stopping:  # nothing starts any more; leases go to other workers
            self._concurrency.release_ended()
            return
        self._ready.update(dict.fromkeys(queues))
        if self._is_running:
            self._again = True
            return
        self._is_running = True
        try:
            while True:
                ready, self._ready, self._again = self._ready, {}, False
                self._requeue_changed()
                if self._pool_scheduler.unlimited_starving(monotonic()) and self._capacity.idle() > 0:
                    self._pool_scheduler.start_unlimited(monotonic(), owed=True)
                for limit_queue in ready:
                    self._move(limit_queue)
                self._give_processes()
                self._return_queues.update(monotonic())
                if not self._worker.bulk_receive.receiving:  # one script parks all that arrive with one delivery
                    self._batch.flush(self._processor.on_parked, self.dispatch)
                if not self._again or self._worker.is_stopping:
                    break
        finally:
            self._is_running = False
            self._concurrency.release_ended()
            self._worker.autoscaling.update()
            waiting = self._queues.needing_process or len(self._pool_scheduler) or len(self._batch)
            if waiting and self._cancel_poll is None:
                self._cancel_poll = self._worker.timers.call_after(POLL_INTERVAL, self._poll)

    def dispatch_all(self) -> None:
        """All queues may ask at once: the store is back, for one."""
        for limit_queue in self._queues:
            limit_queue.next_acquire = 0.0
        self.dispatch(self._queues)

    def note_changed(self, names: set[str]) -> None:
        """These limits have changed: requests that wait for a time at the old rate ask again."""
        self._changed |= names
        self.dispatch(self._queues)

    def is_late(self) -> bool:
        """Whether a turn has passed while a process was free for it, or is in a moment: the worker has too much to do.

        Where all processes are busy for longer, the worker is not late.
        """
        now = monotonic()
        queues = (self._queues.get(key) for key in itertools.islice(self._queues.needing_process, LOOKED_AT))
        late = any(limit_queue is not None and limit_queue.is_late(now - LATE) for limit_queue in queues)
        return late and not self._capacity.is_saturated(now, ACQUIRE_EARLY)

    def close(self) -> None:
        if self._cancel_poll is not None:
            self._cancel_poll()
            self._cancel_poll = None

    def _poll(self) -> None:
        self._cancel_poll = None
        queues = [self._queues.get(key) for key in self._queues.needing_process]
        self.dispatch([limit_queue for limit_queue in queues if limit_queue is not None])  # an empty one ends then

    def _requeue_changed(self) -> None:
        """Only between two moves of a queue."""
        names, self._changed = self._changed, set()
        for limit_queue in self._queues if names else ():
            if any(name in names for name, _ in limit_queue.key):
                limit_queue.requeue_deferred()
                if limit_queue.acquire is not None:  # its reply is about what was before
                    limit_queue.acquire.is_void = True

    def _give_processes(self) -> None:
        """Give free processes to waiting requests: first where the turn has come, then in the order of arrival."""
        while True:
            for key in list(self._queues.needing_process):
                if self._capacity.idle() <= 0 and not self._capacity.has_for_permit(monotonic()):
                    break
                limit_queue = self._queues.get(key)
                if limit_queue is None or key not in self._queues.needing_process:
                    continue
                if not self._pool_scheduler.unlimited_first(limit_queue):
                    del self._queues.needing_process[key]
                    self._move(limit_queue)  # and behind the others, if it wants another process
            if not self._pool_scheduler.start_unlimited(monotonic()):
                return

    def _move(self, limit_queue: LimitQueue) -> None:
        if self._queues.get(limit_queue.key) is not limit_queue:
            return  # it is empty, and has ended
        limit_queue.needs_process = False
        try:
            self._processor.move_on(limit_queue)
        finally:  # whatever is raised, the other requests in it go on
            # Unless the connection was lost while a greenlet was here.
            if self._queues.get(limit_queue.key) is limit_queue:
                if limit_queue:
                    self._timers.set(limit_queue)
                    self._queues.update_need(limit_queue)
                else:
                    self._queues.end(limit_queue)
                    self._timers.end(limit_queue)
