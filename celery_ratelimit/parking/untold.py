"""What one worker has yet to tell the store of its lots: it goes with what is sent next, or after a while by itself."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from .parked import Bucket, Parked

__all__ = ["Untold"]


class Untold:
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
        for bucket, those in leaving.items():
            self.published.setdefault(bucket, []).extend(those)
            self._noted_at.setdefault(bucket, time.monotonic())

    @contextmanager
    def telling(self, buckets: Iterable[Bucket]) -> Iterator[Mapping[Bucket, Sequence[str]]]:
        """Messages that were acknowledged are told within; nobody else tells of them meanwhile. If it fails, later."""
        told = {bucket: self.acknowledged.get(bucket, []) for bucket in buckets}
        self.was_told({bucket: len(ids) for bucket, ids in told.items()}, {})
        try:
            yield told
        except BaseException:
            for bucket, ids in told.items():
                for id in ids:
                    self.note_acknowledged(bucket, id)
            raise

    def was_told(self, acknowledged: Mapping[Bucket, int], published: Mapping[Bucket, int]) -> None:
        """The first so many of each lot; others may have been noted meanwhile."""
        for bucket in {**acknowledged, **published}:
            self.acknowledged[bucket] = self.acknowledged.get(bucket, [])[acknowledged.get(bucket, 0) :]
            self.published[bucket] = self.published.get(bucket, [])[published.get(bucket, 0) :]
            for noted in (self.acknowledged, self.published):
                if not noted[bucket]:
                    del noted[bucket]
            if bucket not in self.acknowledged and bucket not in self.published:
                self._noted_at.pop(bucket, None)
