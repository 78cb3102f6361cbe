"""The concurrency leases of one worker's tasks: acquired, held while a task runs, handed over and released.

A lease belongs to one run of a task (``PendingRequest.run_id``). A lease whose task has ended is released in the script
by which the next requests ask, so that it is not free between two tasks. A request that is refused is noted in the
store, which notifies the worker when a lease may be free (``lua/include/concurrency_waiters.lua``). A notification that
is sent while the worker does not listen is lost, so requests ask from time to time all the same.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

from .._celery import Worker
from ..limiter.argument_checks import microseconds
from ..limiter.leases import LeaseKeeper
from ..limiter.limit_request import LimitRequest
from ..limiter.script_calls import LeaseRequests, LeasesToRelease
from ..limiter.sync_store import StoreRunner
from ..limits.decision import Decision
from ..store.notifications import NotificationListener
from ..store_calls.outage import Outage
from .capacity import PoolCapacity
from .request import PendingRequest
from .request_queue import LimitQueue, task_name
from .request_queues import RequestQueues

__all__ = ["END_POLL_INTERVAL", "MAX_BATCH", "ConcurrencyLeases", "release_and_acquire"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Requests that ask together, at the most.
MAX_BATCH = 16
#: Seconds after which all requests that wait here for leases ask, to keep their slots; and how many, at the most.
ANNOUNCE, MAX_ANNOUNCED = 1.0, 32
#: Seconds between two looks for tasks whose end the pool has not told.
END_POLL_INTERVAL = 0.25


class ConcurrencyLeases:
    """Leases under :class:`~celery_ratelimit.Concurrency`, from the request that asks to the end of its task.

    Args:
        leases: renews what is held, and releases what could not be released here.
        on_end: called with the request of a task whose end the pool has not told.
        on_free: called with queues for which a lease may be free.
    """

    def __init__(
        self,
        worker: Worker,
        asker: StoreRunner,
        leases: LeaseKeeper,
        outage: Outage,
        capacity: PoolCapacity,
        queues: RequestQueues,
        on_end: Callable[[Any], None],
        on_free: Callable[[list[LimitQueue]], None],
    ) -> None:
        self._worker, self._asker, self._leases, self._outage = worker, asker, leases, outage
        self._capacity, self._queues, self._on_end, self._on_free = capacity, queues, on_end, on_free
        self._running: dict[Any, PendingRequest] = {}
        self._cancel_poll: Callable[[], None] | None = None
        # A cluster's node that notifies does not know of subscribers at others: lua/include/concurrency_waiters.lua.
        self._channel = ("c" if asker.is_cluster else "s") + uuid.uuid4().hex[:12]
        self._listener = NotificationListener(
            *(asker.client, asker.prefix, self._channel),
            lambda number: worker.timers.call_soon(partial(self._wake, number)),
        )
        self._listens = False

    # -- Acquiring -------------------------------------------------------------------------------------------------

    def batch_size(self, limit_queue: LimitQueue) -> int:
        """How many requests may ask at once: as many as there are free processes, or all that keep a slot."""
        return MAX_ANNOUNCED if self._announces(limit_queue) else self._free(limit_queue)

    def acquire(
        self,
        limit_queue: LimitQueue,
        asking: Sequence[PendingRequest],
        *,
        for_permit: bool,
        horizon: float,
        claim: float,
    ) -> list[Decision]:
        """Ask for leases, in one script with the release of leases whose tasks have ended.

        Args:
            for_permit: whether they may get their permits, or slots alone.
            horizon: seconds, see :meth:`Operations.ask <celery_ratelimit.limiter.script_operations.Operations.ask>`.
            claim: seconds, see there.
        """
        first, ended = asking[0], self._leases.ended(asking[0].demands)
        announces = len(asking) > 1 and self._announces(limit_queue)
        if announces:
            limit_queue.announced_at = monotonic()
        if first.waits_in_worker:
            limit_queue.channel = self._channel_of(limit_queue)
        for pending in asking:  # until the answer is known
            pending.lease_unconfirmed = True
        decisions = release_and_acquire(
            self._asker,
            first.demands,
            LeaseRequests(
                [pending.id for pending in asking],
                microseconds(horizon),
                microseconds(claim),
                limit_queue.channel if first.waits_in_worker else "",
                self._free(limit_queue) if for_permit else 0,
                announces,
                [pending.run_id for pending in asking],
            ),
            ended,
        )
        for pending in asking:
            pending.lease_unconfirmed = False
        self._leases.confirm(ended)
        return decisions

    def note_granted(self, pending: PendingRequest, decision: Decision) -> None:
        """A request holds these permits from now on: its leases are renewed, and released when its task ends."""
        self._leases.begin(pending.run_id, decision._demands, decision._granted_at)

    def _free(self, limit_queue: LimitQueue) -> int:
        """How many requests may get leases now: a lease is held from then on, so a process has to be free for it."""
        return max(1, min(MAX_BATCH, int(self._capacity.free(monotonic(), task_name(limit_queue)))))

    def _announces(self, limit_queue: LimitQueue) -> bool:
        """Whether it is time that all requests of a queue ask, to keep their slots."""
        return monotonic() - limit_queue.announced_at >= ANNOUNCE and bool(limit_queue.reserved)

    # -- Running ---------------------------------------------------------------------------------------------------

    def __contains__(self, request: Any) -> bool:
        """Whether the task of a request runs with leases."""
        return request in self._running

    def begin(self, pending: PendingRequest) -> None:
        """The task of a request starts, and keeps its leases until :meth:`end`."""
        self._running[pending.request] = pending
        self.watch()

    def end(self, request: Any) -> PendingRequest | None:
        """The task of a request has ended. Returns what it was, if it ran with leases: they are free soon."""
        pending = self._running.pop(request, None)
        if pending is not None:
            self.release(pending)
        return pending

    def release(self, pending: PendingRequest) -> None:
        """Give the leases of a request to the next one that asks, or release them at :meth:`release_ended`."""
        unconfirmed = pending.demands if pending.lease_unconfirmed else ()
        try:
            self._leases.end(pending.run_id, later=True, unconfirmed=unconfirmed)
        except Exception as error:
            _log(error)

    def release_ended(self) -> None:
        """Release what no request here has asked for, in one script. What fails, the leases' thread tries again."""
        if self._leases.has_ended:
            try:
                self._outage.ask(self._leases.release_ended, None)
            except Exception as error:
                _log(error)

    def release_in_soft_shutdown(self) -> None:
        """Release the leases of tasks that have ended while the worker's loop stands still; in another thread."""
        for request, pending in self._running.copy().items():
            try:
                if self._worker.pool.has_ended(request):
                    self._leases.end(pending.run_id)
            except Exception as error:
                _log(error)

    def watch(self) -> None:
        """Look for the ends of tasks from now on: not every pool reports each end."""
        if self._running and self._cancel_poll is None:
            self._cancel_poll = self._worker.timers.call_after(END_POLL_INTERVAL, self._poll_ends)

    def close(self) -> None:
        """The connection is lost, or the worker stops. What runs keeps its leases, and :meth:`watch` looks for it."""
        if self._cancel_poll is not None:
            self._cancel_poll()
            self._cancel_poll = None
        self._listener.close()
        self._listens = False

    def _poll_ends(self) -> None:
        self._cancel_poll = None
        for request in [each for each in self._running if not self._worker.pool.has(each)]:
            self._on_end(request)
        self.watch()

    # -- Notifications ---------------------------------------------------------------------------------------------

    def _channel_of(self, limit_queue: LimitQueue) -> str:
        """Where a queue is notified; empty: a notification would not be heard now."""
        if not self._listens and self._worker.timers.call_soon_wakes_loop:
            self._listens = True
            self._listener.listen()
        return f"{self._channel}.{limit_queue.number}" if self._listener.is_up else ""

    def _wake(self, number: str | None) -> None:
        """A lease may be free for the queue of that number; ``None``: for any, as notifications may have been lost."""
        waiting = [each for each in self._queues if each.channel and number in (None, str(each.number))]
        for limit_queue in waiting:
            limit_queue.next_acquire = 0.0
        if waiting:
            self._on_free(waiting)


def release_and_acquire(
    asker: StoreRunner, demands: Sequence[LimitRequest], asking: LeaseRequests, ended: Sequence[LeasesToRelease]
) -> list[Decision]:
    """Release the leases of ended runs, and decide requests for leases, in one script.

    Returns a decision for each request, in their order, until the first one that gets neither a lease nor a slot. On a
    cluster, where no script sees all leases, several scripts: then only the first request is decided.
    """
    core, ids = asker.core, asking.ids
    if not core.takes_one_script([*demands, *[place for each in ended for place in each.places]]):
        asker.release(ended)
        how = {"horizon": asking.horizon / 1e6 if asking.most > 0 else -1.0, "claim": asking.claim / 1e6}
        return [asker.ask(demands, id=ids[0], lease_id=(asking.lease_ids or ids)[0], **how)]
    call = core.calls.of_release_and_acquire(tuple(demands), asking, ended)
    return asker.drive(core.decide_each(core.scripts.release_and_acquire, call, demands, ids))


def _log(error: Exception) -> None:
    logger.error("Leases are released later: %r", error, exc_info=error)
