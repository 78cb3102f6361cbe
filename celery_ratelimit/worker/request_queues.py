"""The lines of one worker's gate: by what they ask, and in the order in which they have their turns."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from ..app.plan import Buckets
from .request import PendingRequest
from .request_queue import LimitQueue

__all__ = ["RequestQueues"]


class RequestQueues:
    """All lines.

    Attributes:
        needing_process: lines that wait for a process, in the order of their turns to ask.
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

    def asking(self, buckets: Iterable[tuple[str, str]]) -> list[LimitQueue]:
        """The lines that ask any of these buckets."""
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
        """It waits for a process, behind the others that do; or not any more."""
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
