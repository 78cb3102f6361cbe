"""All request queues of one worker, their timers, one for each queue, and their requests that expire."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from time import monotonic

from .._celery import Worker
from .._celery.saved_message import expires_at
from ..app.plan import Buckets
from .expected_turns import ExpectedTurns
from .request import PendingRequest, State
from .request_queue import LimitQueue, task_name

__all__ = ["Expirations", "QueueTimers", "RequestQueues"]

#: Seconds between two looks while requests wait that may expire: each ends within a second of that.
EXPIRY_POLL_INTERVAL = 0.5


class RequestQueues:
    """The request queues, by the buckets that their requests ask.

    Attributes:
        needing_process: queues that wait for a process, in the order in which they began to wait.
    """

    def __init__(self) -> None:
        self.needing_process: dict[Buckets, None] = {}
        self._by_key: dict[Buckets, LimitQueue] = {}
        self._by_bucket: dict[tuple[str, str], dict[Buckets, None]] = {}
        self._numbers = itertools.count()

    def __iter__(self) -> Iterator[LimitQueue]:
        return iter(list(self._by_key.values()))

    def get(self, key: Buckets) -> LimitQueue | None:
        return self._by_key.get(key)

    def get_or_create(self, key: Buckets) -> LimitQueue:
        """The queue of requests that ask these buckets; a new one if there is none."""
        limit_queue = self._by_key.get(key)
        if limit_queue is None:
            limit_queue = self._by_key[key] = LimitQueue(key, next(self._numbers))
            for bucket in key:
                self._by_bucket.setdefault(bucket, {})[key] = None
        return limit_queue

    def holds(self, id: str) -> bool:
        """Whether the task of that id waits here."""
        return any(pending.request.id == id for limit_queue in self for pending in limit_queue)

    def asking(self, buckets: Iterable[tuple[str, str]]) -> list[LimitQueue]:
        """The queues that ask any of these buckets."""
        keys = dict.fromkeys(itertools.chain.from_iterable(self._by_bucket.get(bucket, ()) for bucket in buckets))
        return [self._by_key[key] for key in keys]

    def end(self, limit_queue: LimitQueue) -> None:
        """The queue is empty: forget it."""
        if limit_queue.cancel is not None:
            limit_queue.cancel()
        self.needing_process.pop(limit_queue.key, None)
        del self._by_key[limit_queue.key]
        for bucket in limit_queue.key:
            del self._by_bucket[bucket][limit_queue.key]
            if not self._by_bucket[bucket]:
                del self._by_bucket[bucket]

    def update_need(self, limit_queue: LimitQueue) -> None:
        """The queue waits for a process, behind the others that do; or not any more."""
        if limit_queue.needs_process:
            self.needing_process[limit_queue.key] = None
        else:
            self.needing_process.pop(limit_queue.key, None)

    def clear(self) -> list[PendingRequest]:
        """The connection is lost, or the worker stops. Returns the requests that were here."""
        gone: list[PendingRequest] = []
        for limit_queue in self._by_key.values():
            if limit_queue.cancel is not None:
                limit_queue.cancel()
            gone += limit_queue.clear()
        self._by_key.clear()
        self._by_bucket.clear()
        self.needing_process.clear()
        return gone


class QueueTimers:
    """The timers of one worker's request queues.

    Args:
        turns: learns when the first request of a queue has its turn.
        lead_time: seconds before its turn that a queue asks.
    """

    def __init__(
        self,
        worker: Worker,
        turns: ExpectedTurns,
        lead_time: Callable[[], float],
        dispatch: Callable[[list[LimitQueue]], None],
    ) -> None:
        self._worker, self._turns, self._lead_time, self._dispatch = worker, turns, lead_time, dispatch

    def set(self, limit_queue: LimitQueue) -> None:
        """Dispatch the queue when its first request has its turn, or may ask; in any case within ``max_hold``."""
        now = monotonic()
        turn, alarm = limit_queue.times(now, self._worker.broker.max_hold())
        self._note_turn(limit_queue, turn, now)
        if limit_queue.cancel is not None:
            if limit_queue.alarm <= alarm:
                return
            limit_queue.cancel()
        limit_queue.alarm = alarm
        limit_queue.cancel = self._worker.timers.call_after(max(0.0, alarm - now), lambda: self._goes_off(limit_queue))

    def end(self, limit_queue: LimitQueue) -> None:
        """No request is in the queue any more."""
        self._turns.pop(_turn_id(limit_queue))

    def _note_turn(self, limit_queue: LimitQueue, turn: float, now: float) -> None:
        id = _turn_id(limit_queue)
        self._turns.pop(id)
        if limit_queue.needs_process or limit_queue.acquire is not None:  # its turn may be told by the store's reply
            self._turns.note_ready(id, task_name(limit_queue))
        elif turn:
            self._turns.expect_queue(id, task_name(limit_queue), turn + self._lead_time(), now)

    def _goes_off(self, limit_queue: LimitQueue) -> None:
        limit_queue.cancel = None
        self._dispatch([limit_queue])


def _turn_id(limit_queue: LimitQueue) -> str:
    return f"queue {limit_queue.number}"


class Expirations:
    """The requests of one worker that expire, wherever they are in their queues.

    Args:
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
            self._cancel = self._worker.timers.call_after(EXPIRY_POLL_INTERVAL, self._poll)

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
