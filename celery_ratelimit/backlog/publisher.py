"""Publishes what has left a lot. What cannot be published stays parked, and keeps nothing else from going out."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from .._celery import Worker
from .._celery.saved_message import Parcel, marker_in_headers
from ..limiter.store_clock import StoreClock
from . import tuning
from .backlog import Backlog
from .messages import Bucket, Parked, marker_of, read_parcel
from .reaper import Reaper

__all__ = ["Publisher"]

#: Tasks with their buckets; and a limit, a queue, and a task's id or nothing: what cannot be published.
Tasks = Sequence[tuple[Bucket, Parked]]
Failing = tuple[str, str, str]

logger = logging.getLogger("celery_ratelimit")


class Publisher:
    """Publishes tasks that have left the backlog, in one worker.

    Args:
        worker: publishes.
        parking: the backlog.
        reaper: hears which return queues are used.
        clock: of the store: by that a task's slot is told to the worker that it returns to.
    """

    def __init__(self, worker: Worker, parking: Backlog, reaper: Reaper, clock: StoreClock) -> None:
        self._worker, self._parking, self._reaper, self._clock = worker, parking, reaper, clock
        self._apart: set[str] = set()  # tasks that failed with others: each is published by itself
        self._failing: dict[Failing, float] = {}  # since when

    def publish(self, leaving: Mapping[Bucket, Sequence[Parked]]) -> None:
        """Publish tasks that have left the backlog. The store hears some time later that they are at the broker."""
        tasks = [(bucket, each) for bucket, several in leaving.items() for each in several]
        parcels = {each.id: read_parcel(each) for _, each in tasks}
        self._apart.update(id for id, parcel in parcels.items() if not parcel)
        together = [pair for pair in tasks if pair[1].id not in self._apart]
        for some in [together, *[[pair] for pair in tasks if pair[1].id in self._apart]]:
            if some:
                self._publish(some, parcels)

    def _publish(self, tasks: Tasks, parcels: Mapping[str, Parcel]) -> None:
        now_us = self._clock.now_us()
        try:
            missing = self._worker.republisher.publish(
                [
                    (parcels[each.id], max(0.0, each.wait - tuning.RETURN_EARLY), marker_of(bucket, each, now_us))
                    for bucket, each in tasks
                ]
            )
        except self._worker.broker.connection_errors:
            raise  # Celery connects anew
        except Exception as error:
            # Nothing is lost: tasks that have left are published once more, as other copies; each by itself, lest one
            # that cannot be published keeps the others.
            ids = ", ".join(each.id for _, each in tasks[:5])
            logger.warning("%d parked tasks (%s) could not be published (%r): tried again", len(tasks), ids, error)
            if len(tasks) == 1:
                ((bucket, each),) = tasks
                said = repr(error) if parcels[each.id] else "what is parked cannot be read"
                self._note_failed(tasks, {each.id: (bucket[0], parcels[each.id].get("to", ""), each.id)}, said)
            self._apart.update(each.id for _, each in tasks)
            return
        failing_as = {each.id: (bucket[0], parcels[each.id]["to"], "") for bucket, each in tasks}
        failed = [pair for pair in tasks if parcels[pair[1].id]["to"] in missing]
        if failed:
            logger.warning("The broker has no queue %s: parked tasks stay parked", ", ".join(sorted(missing)))
            self._note_failed(failed, failing_as, "the broker has no such queue")
        self._note_published([pair for pair in tasks if parcels[pair[1].id]["to"] not in missing], parcels)

    def _note_failed(self, tasks: Tasks, failing_as: Mapping[str, Failing], error: str) -> None:
        """Wait before the next try for as long as the tries have failed, and let operators see the error."""
        now, pauses_of = time.monotonic(), dict[Bucket, dict[str, float]]()
        for bucket, each in tasks:
            pause = min(
                tuning.MAX_PUBLISH_PAUSE,
                max(tuning.PUBLISH_TIMEOUT, now - self._failing.setdefault(failing_as[each.id], now)),
            )
            pauses_of.setdefault(bucket, {})[each.id] = pause
        for bucket, pauses in pauses_of.items():
            self._parking.copies.postpone(bucket, pauses)
        self._parking.register.publish_failures({failing_as[each.id]: error for _, each in tasks})

    def _note_published(self, tasks: Tasks, parcels: Mapping[str, Parcel]) -> None:
        published: dict[Bucket, list[Parked]] = {}
        for bucket, each in tasks:
            parcel = parcels[each.id]
            self._reaper.note_return_queue(parcel["to"], marker_in_headers(parcel["headers"])["queue"])
            published.setdefault(bucket, []).append(each)
        if published:
            self._parking.untold.note_published(published)
        self._apart.difference_update([each.id for _, each in tasks])
        if self._failing:
            fields = [(bucket[0], parcels[each.id]["to"], id) for bucket, each in tasks for id in ("", each.id)]
            if ended := [field for field in dict.fromkeys(fields) if self._failing.pop(field, None) is not None]:
                self._parking.register.publish_failures(published=ended)
