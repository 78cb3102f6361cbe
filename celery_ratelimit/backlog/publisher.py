"""Publishes tasks that have left the backlog: for their slots, or as they were sent to their queues.

A task that cannot be published stays parked, and does not keep the others.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from celery import Celery

from .._celery import Worker, fetch_messages, message_count, publish_on
from .._celery.saved_message import Parcel, as_sent, marker_in, marker_in_headers, parcel_in
from ..limiter.argument_checks import microseconds
from ..store_calls.store_clock import StoreClock
from . import tuning
from .backlog import Backlog
from .messages import Bucket, Parked, marker_of, read_parcel

__all__ = ["OriginalQueueReturner", "Publisher", "ReturnSummary"]

#: Tasks with their buckets; and a limit, a queue, and a task's id or nothing: what cannot be published.
Tasks = Sequence[tuple[Bucket, Parked]]
Failing = tuple[str, str, str]

logger: logging.Logger = logging.getLogger("celery_ratelimit")


class Publisher:
    """Publishes tasks that have left the backlog, in one worker.

    Args:
        on_return_queue: called with the queue that a task is published to, and the queue that it was sent to.
        clock: the store's clock, in whose time a task's slot is passed to the worker that it returns to.
    """

    def __init__(
        self, worker: Worker, parking: Backlog, on_return_queue: Callable[[str, str], None], clock: StoreClock
    ) -> None:
        self._worker, self._parking, self._on_return_queue, self._clock = worker, parking, on_return_queue, clock
        self._apart: set[str] = set()  # tasks that failed with others: each is published by itself
        self._failing: dict[Failing, float] = {}  # since when

    def publish(self, leaving: Mapping[Bucket, Sequence[Parked]]) -> None:
        """Publish tasks that have left the backlog. The store hears some time later that they are at the broker."""
        tasks = [(bucket, each) for bucket, several in leaving.items() for each in several]
        parcels = {each.id: self._worker.return_addresses.usable(read_parcel(each)) for _, each in tasks}
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
        failed = [pair for pair in tasks if parcels[pair[1].id]["to"] in missing]
        if failed:
            logger.warning("The broker has no queue %s: parked tasks stay parked", ", ".join(sorted(missing)))
            failing_as = {each.id: (bucket[0], parcels[each.id]["to"], "") for bucket, each in failed}
            self._note_failed(failed, failing_as, "the broker has no such queue")
        self._note_published([pair for pair in tasks if parcels[pair[1].id]["to"] not in missing], parcels)

    def _note_failed(self, tasks: Tasks, failing_as: Mapping[str, Failing], error: str) -> None:
        """Wait before the next try for as long as the tries have failed, and let operators see the error."""
        now, pauses_of = time.monotonic(), dict[Bucket, dict[str, float]]()
        for bucket, each in tasks:
            seconds = now - self._failing.setdefault(failing_as[each.id], now)
            pause = min(tuning.MAX_PUBLISH_PAUSE, max(tuning.PUBLISH_TIMEOUT, seconds))
            pauses_of.setdefault(bucket, {})[each.id] = pause
        for bucket, pauses in pauses_of.items():
            until = [value for id, pause in pauses.items() for value in (id, microseconds(pause))]
            self._parking.scripts.confirm([bucket], bucket[1], 0, len(pauses), 0, *until)
        self._parking.register.publish_failures({failing_as[each.id]: error for _, each in tasks})

    def _note_published(self, tasks: Tasks, parcels: Mapping[str, Parcel]) -> None:
        published: dict[Bucket, list[Parked]] = {}
        for bucket, each in tasks:
            parcel = parcels[each.id]
            self._on_return_queue(parcel["to"], marker_in_headers(parcel["headers"])["queue"])
            published.setdefault(bucket, []).append(each)
        if published:
            self._parking.untold.note_published(published)
        self._apart.difference_update([each.id for _, each in tasks])
        if self._failing:
            fields = [(bucket[0], parcels[each.id]["to"], id) for bucket, each in tasks for id in ("", each.id)]
            if ended := [field for field in dict.fromkeys(fields) if self._failing.pop(field, None) is not None]:
                self._parking.register.publish_failures(published=ended)


class ReturnSummary(NamedTuple):
    """Tasks that were returned to their queues.

    Attributes:
        tasks: how many.
        queues: to which queues.
        missing: queues that the broker does not have; tasks for these stay where they are.
    """

    tasks: int = 0
    queues: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()

    def __add__(self, other: ReturnSummary) -> ReturnSummary:  # type: ignore[override]
        return ReturnSummary(self.tasks + other.tasks, self.queues | other.queues, self.missing | other.missing)


class OriginalQueueReturner:
    """Returns parked tasks to the queues that they were sent to, as they were sent. A context manager.

    At least once: a process that is killed between two steps may leave a task twice, and none is lost.
    """

    def __init__(self, app: Celery, backlog: Backlog) -> None:
        self._app, self._backlog, self._stack = app, backlog, ExitStack()

    def __enter__(self) -> OriginalQueueReturner:
        self._read = self._stack.enter_context(self._app.connection_for_read())
        write = self._stack.enter_context(self._app.connection_for_write())
        self._channel: Any = self._stack.enter_context(write.channel())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def limit(self, name: str, queues: Sequence[str] = (), *, overdue: float = 0.0) -> ReturnSummary:
        """Return the tasks that are parked for a limit now. See :meth:`BacklogContents.take_for_original_queues`."""
        returned, until = ReturnSummary(), 0
        for keys in self._backlog.contents.keys(name, aside=bool(queues)):
            for key in keys:
                stuck: set[str] = set()  # tasks that could not be published: they leave again, behind the others
                while True:
                    now, page = self._backlog.contents.take_for_original_queues(
                        (name, key), queues, until, overdue=overdue
                    )
                    until = until or now
                    if all(each.id in stuck for each in page):
                        break
                    returned += self._publish_parked((name, key), page, stuck)
        return returned

    def return_queue(self, name: str, queue: str) -> ReturnSummary:
        """Return to ``queue`` the messages in its return queue ``name``."""
        returned = ReturnSummary()
        with fetch_messages(self._read, name, message_count(self._read, name)) as messages:
            while page := list(itertools.islice(messages, tuning.PAGE)):
                ours = [message for message in page if marker_in(message) and not self._drop_duplicate(message)]
                some = self._publish([as_sent(parcel_in(message), marker_in(message)) for message in ours])
                for message in ours:
                    if marker_in(message)["queue"] not in some.missing:
                        message.ack()
                returned += some
        return returned

    def _publish_parked(self, bucket: Bucket, page: Sequence[Parked], stuck: set[str]) -> ReturnSummary:
        """Publish tasks that have left the backlog; adds the ids of the others to ``stuck``."""
        parcels = {each.id: as_sent(parcel, marker_of(bucket, each)) for each in page if (parcel := read_parcel(each))}
        returned = self._publish([*parcels.values()])
        sent = [each for each in page if each.id in parcels and parcels[each.id]["to"] not in returned.missing]
        if sent:
            self._backlog.published({bucket: sent})
        for each in page:
            if each.id not in parcels and each.id not in stuck:
                logger.warning("What is parked as %s cannot be read: it stays", each.id)
        stuck.update({each.id for each in page}.difference([each.id for each in sent]))
        return returned

    def _publish(self, parcels: Sequence[Parcel]) -> ReturnSummary:
        if not parcels:
            return ReturnSummary()
        missing = publish_on(self._channel, [(parcel, 0.0, {}) for parcel in parcels])
        sent = [parcel["to"] for parcel in parcels if parcel["to"] not in missing]
        return ReturnSummary(len(sent), frozenset(sent), frozenset(missing))

    def _drop_duplicate(self, message: Any) -> bool:
        """Acknowledge a returned message if another copy of it may run, or is parked."""
        marker = marker_in(message)
        if "lot" in marker:
            name, key = marker["lot"]
            copy = {str(marker["id"]): int(marker["copy"])}
            is_duplicate = bool(self._backlog.copies.arrive((name, key), copy))
        elif marker.get("again") and self._backlog.can_park:
            names = list(self._backlog.register.seen().limits)
            places = self._backlog.contents.find(names, [str(message.headers.get("id"))])
            is_duplicate = any(marker.get("id") in ids for found in places for ids in found.values())
        else:
            return False
        if is_duplicate:
            message.ack()
        return is_duplicate
