"""Hands tasks that are parked, or on their way back, to the queues that they were sent to, as they were sent."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from celery import Celery

from .._celery import fetch_messages, message_count, publish_on
from .._celery.saved_message import Parcel, as_sent, marker_in, parcel_in, unconfirmed_parks_in
from .backlog import Backlog
from .backlog_queries import PAGE
from .messages import Bucket, Parked, marker_of, read_parcel

__all__ = ["Handed", "HandingBack"]

logger = logging.getLogger("celery_ratelimit")


class Handed(NamedTuple):
    """What was handed back.

    Attributes:
        tasks: how many tasks.
        queues: to which queues.
        missing: queues that the broker does not have: what is for them stays where it is.
    """

    tasks: int
    queues: frozenset[str]
    missing: frozenset[str]

    def __add__(self, other: object) -> Handed:
        assert isinstance(other, Handed)
        return Handed(self.tasks + other.tasks, self.queues | other.queues, self.missing | other.missing)


NOTHING = Handed(0, frozenset(), frozenset())


class HandingBack:
    """A way to the broker, for as long as the block lasts.

    At least once: a process that is killed between two steps may leave a task twice, and none is lost.

    Args:
        app: the app; its broker is where tasks go.
        parking: its parking lots.
    """

    def __init__(self, app: Celery, parking: Backlog) -> None:
        self._app, self._parking = app, parking
        self._stack = ExitStack()

    def __enter__(self) -> HandingBack:
        self._from = self._stack.enter_context(self._app.connection_for_read())
        self._to = self._stack.enter_context(self._app.connection_for_write())
        self._channel: Any = self._stack.enter_context(self._to.channel())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def limit(self, name: str, queues: Sequence[str] = (), *, overdue: float = 0.0) -> Handed:
        """What is parked for a limit now. See :meth:`Backlog.hand_back`."""
        handed, until = NOTHING, 0
        for keys in self._parking.contents.keys(name, aside=bool(queues)):
            for key in keys:
                sent, leaving = NOTHING, True
                while leaving:
                    until, some = self._hand_back((name, key), queues, until, overdue)
                    leaving = bool(some.tasks)
                    sent += some
                handed += sent
        return handed

    def return_queue(self, name: str, queue: str) -> Handed:
        """What is on its way back to ``queue``, whose return queue is called ``name``, and no worker has."""
        handed, remaining = NOTHING, message_count(self._from, name)
        while remaining > 0:
            with fetch_messages(self._from, name, min(remaining, PAGE)) as messages:
                ours = [message for message in messages if marker_in(message) and not self._ends(message)]
                some = self._publish([as_sent(parcel_in(message), marker_in(message)) for message in ours])
                for message in ours:
                    if marker_in(message)["queue"] not in some.missing:
                        message.ack()
                handed += some
                remaining -= len(messages)
            if not messages or not all(message.acknowledged for message in messages):
                break  # the others are in the queue again, before those behind them
        return handed

    def _hand_back(self, bucket: Bucket, queues: Sequence[str], until: int, overdue: float) -> tuple[int, Handed]:
        now, leaving = self._parking.contents.hand_back(bucket, queues, until, overdue=overdue)
        readable = [(each, parcel) for each in leaving if (parcel := _parcel(each))]
        handed = self._publish([as_sent(parcel, marker_of(bucket, each)) for each, parcel in readable])
        sent = [each for each, parcel in readable if as_sent(parcel)["to"] not in handed.missing]
        if sent:
            self._parking.published({bucket: sent})
        return until or now, handed

    def _publish(self, parcels: Sequence[Parcel]) -> Handed:
        if not parcels:
            return NOTHING
        missing = publish_on(self._channel, [(parcel, 0.0, {}) for parcel in parcels])
        sent = [parcel["to"] for parcel in parcels if parcel["to"] not in missing]
        return Handed(len(sent), frozenset(sent), frozenset(missing))

    def _ends(self, message: Any) -> bool:
        """Whether another copy of a message that has come back may run, or is parked: this one ends here."""
        marker = marker_in(message)
        if "lot" in marker:
            name, key = marker["lot"]
            copy = {str(marker["id"]): int(marker["copy"])}
            ends = bool(self._parking.copies.arrive((name, key), copy, unconfirmed_parks_in(message)))
        elif unconfirmed_parks_in(message):
            names = list(self._parking.register.seen((), ()).limits)
            places = self._parking.contents.find(names, [str(message.headers.get("id"))])
            ends = any(marker.get("id") in ids for found in places for ids in found.values())
        else:
            return False
        if ends:
            message.ack()
        return ends


def _parcel(parked: Parked) -> Parcel:
    parcel = read_parcel(parked)
    if not parcel:
        logger.warning("What is parked as %s cannot be read: it stays", parked.id)
    return parcel
