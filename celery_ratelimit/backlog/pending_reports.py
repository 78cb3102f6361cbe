"""Collects reports of one worker to the store. The worker sends them with its next call, or after some time alone."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from .messages import Bucket, Parked

__all__ = ["PendingReports"]


class PendingReports:
    """Reports of messages that were acknowledged after a park, and of returned tasks that were published.

    Attributes:
        acknowledged: an id and a token for each message, by the parking lot's bucket.
        published: tasks, by the parking lot's bucket.
    """

    def __init__(self) -> None:
        self.acknowledged: dict[Bucket, list[str]] = {}
        self.published: dict[Bucket, list[Parked]] = {}
        self._noted_at: dict[Bucket, float] = {}  # when the first report of a bucket was noted

    @property
    def lots(self) -> list[Bucket]:
        return list(self._noted_at)

    def waits(self, seconds: float) -> bool:
        """Whether a report has been pending for that many seconds."""
        return min(self._noted_at.values(), default=float("inf")) <= time.monotonic() - seconds

    def note_acknowledged(self, bucket: Bucket, *names: str) -> None:
        """Note messages that were acknowledged: an id and a token for each."""
        self.acknowledged.setdefault(bucket, []).extend(names)
        self._noted_at.setdefault(bucket, time.monotonic())

    def note_published(self, leaving: Mapping[Bucket, Sequence[Parked]]) -> None:
        for bucket, tasks in leaving.items():
            self.published.setdefault(bucket, []).extend(tasks)
            self._noted_at.setdefault(bucket, time.monotonic())

    @contextmanager
    def telling(
        self, buckets: Iterable[Bucket], *, published: bool = False
    ) -> Iterator[tuple[Mapping[Bucket, Sequence[str]], Mapping[Bucket, Sequence[Parked]]]]:
        """Take out the acknowledged messages, and with ``published`` the published tasks. An error keeps them."""
        told, left = {}, {}
        for bucket in buckets:
            told[bucket] = self.acknowledged.pop(bucket, [])
            left[bucket] = self.published.pop(bucket, []) if published else []
            if bucket not in self.published:
                self._noted_at.pop(bucket, None)
        try:
            yield told, left
        except BaseException:
            for bucket, names in told.items():
                if names:
                    self.note_acknowledged(bucket, *names)
            self.note_published({bucket: tasks for bucket, tasks in left.items() if tasks})
            raise
