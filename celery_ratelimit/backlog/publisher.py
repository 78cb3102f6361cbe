"""Publishes what has left a lot. What cannot be published stays parked, and keeps nothing else from going out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from .._celery import Worker
from .._celery.saved_message import marker_in_headers
from ..limiter.store_clock import StoreClock
from .backlog import Backlog
from .messages import Bucket, Parked, marker_of, read_parcel
from .reaper import Reaper

__all__ = ["LEAD", "Publisher"]

logger = logging.getLogger("celery_ratelimit")

#: Seconds before its slot at which a task should be back: what brokers and timers are usually late.
LEAD = 0.05


class Publisher:
    """The way out of the lots, by one worker.

    Args:
        worker: publishes.
        parking: the lots.
        reaper: hears which return queues are used.
        clock: of the store: by that a task's slot is told to the worker that it returns to.
    """

    def __init__(self, worker: Worker, parking: Backlog, reaper: Reaper, clock: StoreClock) -> None:
        self._worker, self._parking, self._reaper, self._clock = worker, parking, reaper, clock
        self._apart: set[str] = set()  # those with which a publish failed: each is published by itself

    def publish(self, leaving: Mapping[Bucket, Sequence[Parked]]) -> None:
        """Publish tasks that have left their lots. The store hears some time later that they are at the broker."""
        each_of = [(bucket, each) for bucket, several in leaving.items() for each in several]
        parcels = {each.id: read_parcel(each) for _, each in each_of}
        self._apart.update(id for id, parcel in parcels.items() if not parcel)
        together = [pair for pair in each_of if pair[1].id not in self._apart]
        for some in [together, *[[pair] for pair in each_of if pair[1].id in self._apart]]:
            if not some:
                continue
            now_us = self._clock.now_us()
            try:
                missing = self._worker.republisher.publish(
                    [
                        (parcels[each.id], max(0.0, each.wait - LEAD), marker_of(bucket, each, now_us))
                        for bucket, each in some
                    ]
                )
            except self._worker.broker.connection_errors:
                raise  # Celery connects anew
            except Exception as error:
                # Nothing is lost: a worker that looks at the lot in some seconds publishes them once more, as other
                # copies; each by itself, lest one that cannot be published keeps the others.
                self._apart.update(each.id for _, each in some)
                ids = ", ".join(each.id for _, each in some[:5])
                logger.warning("%d parked tasks (%s) could not be published (%r): tried again", len(some), ids, error)
            else:
                self._apart.difference_update(each.id for _, each in some)
                for _, each in some:
                    self._reaper.note_return_queue(
                        parcels[each.id]["to"], marker_in_headers(parcels[each.id]["headers"])["queue"]
                    )
                if missing:
                    logger.warning("The broker has no queue %s: parked tasks stay parked", ", ".join(sorted(missing)))
                published: dict[Bucket, list[Parked]] = {}
                for bucket, each in some:
                    if parcels[each.id]["to"] in missing:
                        continue
                    published.setdefault(bucket, []).append(each)
                if published:
                    self._parking.untold.note_published(published)
