"""Requests that wait in a worker and expire: each ends within a second of that, wherever it is in its queue."""

from __future__ import annotations

import time
from collections.abc import Callable

from .._celery import Worker
from .._celery.saved_message import expires_at
from .request import PendingRequest, State
from .request_queue import LimitQueue

__all__ = ["Expirations"]

#: Seconds between two looks while requests wait that may expire.
POLL_INTERVAL = 0.5


class Expirations:
    """The requests of one worker that expire.

    Args:
        worker: has the timers.
        dispatch: called with the queues whose first requests have expired.
    """

    def __init__(self, worker: Worker, dispatch: Callable[[list[LimitQueue]], None]) -> None:
        self._worker, self._dispatch = worker, dispatch
        self._waiting: list[tuple[float, LimitQueue, PendingRequest]] = []
        self._cancel: Callable[[], None] | None = None

    def watch(self, limit_queue: LimitQueue, pending: PendingRequest) -> None:
        """End the request soon after it has expired, if it still waits then."""
        at = expires_at(pending.request)
        if at is not None:
            self._waiting.append((at, limit_queue, pending))
            self._poll_later()

    def clear(self) -> None:
        """The connection is lost, or the worker stops."""
        self._waiting.clear()
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    def _poll_later(self) -> None:
        if self._waiting and self._cancel is None:
            self._cancel = self._worker.timers.call_after(POLL_INTERVAL, self._poll)

    def _poll(self) -> None:
        """An expired request asks before all others of its queue, and a request that asks ends if it has expired."""
        self._cancel, now = None, time.time()
        self._waiting = [each for each in self._waiting if not each[2].gone]
        first: dict[LimitQueue, None] = {}
        for at, limit_queue, pending in self._waiting:
            if at < now and limit_queue.acquire is None and pending.state in (State.QUEUED, State.DEFERRED):
                limit_queue.enqueue(pending, first=True)
                first[limit_queue] = None
        self._poll_later()
        if first:
            self._dispatch(list(first))
