"""What one worker has yet to report to the store: with its next call, or after a while by itself."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from .messages import Bucket, Parked

__all__ = ["PendingReports"]


class PendingReports:
    """Messages that were acknowledged when their tasks were parked; and messages of tasks that have left, published.

    Attributes:
        acknowledged: ids, by lot.
        published: tasks, by lot.
    """

    def __init__(self) -> None:
        self.acknowledged: dict[Bucket, list[str]] = {}
        self.published: dict[Bucket, list[Parked]] = {}
        self._noted_at: dict[Bucket, float] = {}  # when the first of these was

    @property
    def lots(self) -> list[Bucket]:
        return list(self._noted_at)

    def waits(self, seconds: float) -> bool:
        """Whether something was noted so long ago."""
        return min(self._noted_at.values(), default=float("inf")) <= time.monotonic() - seconds

    def note_acknowledged(self, bucket: Bucket, id: str) -> None:
        self.acknowledged.setdefault(bucket, []).append(id)
        self._noted_at.setdefault(bucket, time.monotonic())

    def note_published(self, leaving: Mapping[Bucket, Sequence[Parked]]) -> None:
        for bucket, tasks in leaving.items():
            self.published.setdefault(bucket, []).extend(tasks)
            self._noted_at.setdefault(bucket, time.monotonic())

    @contextmanager
    def telling(
        self, buckets: Iterable[Bucket], *, published: bool = False
    ) -> Iterator[tuple[Mapping[Bucket, Sequence[str]], Mapping[Bucket, Sequence[Parked]]]]:
        """Take out the acknowledged ids, and with ``published`` the published tasks. An error keeps them."""
        told, left = {}, {}
        for bucket in buckets:
            told[bucket] = self.acknowledged.pop(bucket, [])
            left[bucket] = self.published.pop(bucket, []) if published else []
            if bucket not in self.published:
                self._noted_at.pop(bucket, None)
        try:
            yield told, left
        except BaseException:
            for bucket, ids in told.items():
                for id in ids:
                    self.note_acknowledged(bucket, id)
            self.note_published({bucket: tasks for bucket, tasks in left.items() if tasks})
            raise
