"""Returns parked tasks, and messages in return queues, to the queues that they were sent to."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from celery import Celery

from .._celery import fetch_messages, message_count, publish_on
from .._celery.saved_message import Parcel, as_sent, marker_in, parcel_in
from .backlog import Backlog
from .backlog_contents import PAGE
from .messages import Bucket, Parked, marker_of, read_parcel

__all__ = ["QueueReturner", "Returned"]

logger = logging.getLogger("celery_ratelimit")


class Returned(NamedTuple):
    """Tasks that were returned to their queues.

    Attributes:
        tasks: how many.
        queues: to which queues.
        missing: queues that the broker does not have; tasks for these stay where they are.
    """

    tasks: int = 0
    queues: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()

    def __add__(self, other: Returned) -> Returned:  # type: ignore[override]
        return Returned(self.tasks + other.tasks, self.queues | other.queues, self.missing | other.missing)


class QueueReturner:
    """Returns parked tasks to the queues that they were sent to, as they were sent. A context manager.

    At least once: a process that is killed between two steps may leave a task twice, and none is lost.

    Args:
        app: the app; tasks go to its broker.
        backlog: its parked tasks.
    """

    def __init__(self, app: Celery, backlog: Backlog) -> None:
        self._app, self._backlog, self._stack = app, backlog, ExitStack()

    def __enter__(self) -> QueueReturner:
        self._read = self._stack.enter_context(self._app.connection_for_read())
        write = self._stack.enter_context(self._app.connection_for_write())
        self._channel: Any = self._stack.enter_context(write.channel())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def limit(self, name: str, queues: Sequence[str] = (), *, overdue: float = 0.0) -> Returned:
        """Return the tasks that are parked for a limit now. See :meth:`BacklogContents.return_to_queue`."""
        returned, until = Returned(), 0
        for keys in self._backlog.contents.keys(name, aside=bool(queues)):
            for key in keys:
                stuck: set[str] = set()  # tasks that could not be published: they leave again, behind the others
                while True:
                    now, page = self._backlog.contents.return_to_queue((name, key), queues, until, overdue=overdue)
                    until = until or now
                    if all(each.id in stuck for each in page):
                        break
                    returned += self._publish_parked((name, key), page, stuck)
        return returned

    def return_queue(self, name: str, queue: str) -> Returned:
        """Return to ``queue`` the messages in its return queue ``name``."""
        returned = Returned()
        with fetch_messages(self._read, name, message_count(self._read, name)) as messages:
            while page := list(itertools.islice(messages, PAGE)):
                ours = [message for message in page if marker_in(message) and not self._drop_duplicate(message)]
                some = self._publish([as_sent(parcel_in(message), marker_in(message)) for message in ours])
                for message in ours:
                    if marker_in(message)["queue"] not in some.missing:
                        message.ack()
                returned += some
        return returned

    def _publish_parked(self, bucket: Bucket, page: Sequence[Parked], stuck: set[str]) -> Returned:
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

    def _publish(self, parcels: Sequence[Parcel]) -> Returned:
        if not parcels:
            return Returned()
        missing = publish_on(self._channel, [(parcel, 0.0, {}) for parcel in parcels])
        sent = [parcel["to"] for parcel in parcels if parcel["to"] not in missing]
        return Returned(len(sent), frozenset(sent), frozenset(missing))

    def _drop_duplicate(self, message: Any) -> bool:
        """Acknowledge a returned message if another copy of it may run, or is parked."""
        marker = marker_in(message)
        if "lot" in marker:
            name, key = marker["lot"]
            copy = {str(marker["id"]): int(marker["copy"])}
            is_duplicate = bool(self._backlog.copies.arrive((name, key), copy))
        elif marker.get("again") and self._backlog.can_park:
            names = list(self._backlog.register.seen((), ()).limits)
            places = self._backlog.contents.find(names, [str(message.headers.get("id"))])
            is_duplicate = any(marker.get("id") in ids for found in places for ids in found.values())
        else:
            return False
        if is_duplicate:
            message.ack()
        return is_duplicate
