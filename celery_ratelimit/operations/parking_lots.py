"""The parking lots of an app, for people: what waits where, since when, and how to let it out or throw it away."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from celery import Celery
from kombu.utils.json import dumps, loads

from .._celery import publish_on
from .._celery.saved_message import marker_in_headers
from ..app.plan import limits_of_app
from ..app.settings import settings_of
from ..app.state import limiter_of
from ..backlog.backlog import backlog_of
from ..backlog.backlog_queries import AGAIN, PAGE
from ..backlog.fleet_registry import UNATTENDED
from ..backlog.messages import Bucket, Lot, Parked, marker_of
from ..backlog.queue_returner import QueueReturner
from ..errors import ConfigurationError
from ..names import listed, near

if TYPE_CHECKING:
    from .task_lookup import Explanation

__all__ = ["ParkedTask", "ParkingLot", "ParkingLots"]

logger = logging.getLogger("celery_ratelimit")

#: Tasks that are looked for at once in a lot that is read from end to end.
_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class ParkingLot:
    """What is parked for one bucket.

    Attributes:
        name: of the limit.
        key: of the bucket; ``""``: the limit has only one.
        parked: how many tasks wait here.
        oldest: when the first of them was throttled, in seconds since 1970.
        drains_in: seconds until all have had their turn, at the rate that is in force; ``None``: that is not known, as
            under :class:`~celery_ratelimit.Concurrency`. The dearer tasks are, the longer it takes. What
            older versions have parked counts as one permit each.
        cost: permits that they cost.
        attended: whether some worker has this limit. Else its tasks go back to the queues that they were sent to, as
            they were, ``ratelimit_orphans_after`` seconds after the last one had it.
    """

    name: str
    key: str
    parked: int
    oldest: float
    drains_in: float | None
    attended: bool = True
    cost: int = 0


@dataclass(frozen=True, slots=True)
class ParkedTask:
    """A task that waits in a parking lot.

    Attributes:
        id: the task's id.
        task: its name.
        args, kwargs: as they are shown in logs.
        queue: where it was sent to.
        since: when it was throttled first, in seconds since 1970.
    """

    id: str
    task: str
    args: str
    kwargs: str
    queue: str
    since: float


class ParkingLots:
    """The parking lots of an app's limits.

    >>> lots = ParkingLots(app)
    >>> for lot in lots.lots():
    ...     print(lot.name, lot.key, lot.parked, lot.drains_in)

    Args:
        app: the app; its broker is where tasks that are let out are published to.

    Attributes:
        limits: of the app's tasks and queues, by name.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._limiter = limiter_of(app)
        self._parking = backlog_of(app)
        self.limits = limits_of_app(app)

    def lots(self, *names: str, force: bool = False) -> list[ParkingLot]:
        """The lots in which tasks are parked.

        Args:
            names: of limits; default: of all limits of the app's tasks and queues, and of those that workers had and
                have no more.
            force: ask for names that nobody knows, too.

        Raises:
            ConfigurationError: nobody knows a limit of that name; says which there are.
        """
        self._check(names, force)
        seen = self._parking.register.seen((), ()).limits
        known = names or sorted({*self.limits, *seen})
        return [self._lot(lot, seen.get(lot.name, inf)) for lot in self._parking.contents.lots(known) if lot.parked]

    def tasks(
        self, name: str, key: str = "", *, first: int = 0, number: int = 100, force: bool = False
    ) -> list[ParkedTask]:
        """Tasks that are parked for one bucket, in the order of their turns; where the limit is fair, in that in which
        they came (:meth:`explain` says when one has its turn).

        Args:
            name: of the limit.
            key: of the bucket.
            first: how many to leave out.
            number: how many at most.
            force: see :meth:`lots`.
        """
        self._check((name,), force)
        return [_task(parked) for parked in self._list((name, key), first, number)]

    def release(self, name: str, key: str = "", ids: Sequence[str] | None = None, *, force: bool = False) -> int:
        """Send parked tasks back to the broker now. They still have to ask their limits, behind those who wait there.

        Args:
            name: of the limit.
            key: of the bucket.
            ids: of the tasks; default: all that are parked now.
            force: see :meth:`lots`.

        Returns:
            How many were sent. Whose queue is not at the broker (RabbitMQ) stays parked: no worker consumes it.
        """
        self._check((name,), force)
        bucket = name, key
        with self._app.connection_for_write() as connection, connection.channel() as channel:
            released = 0
            for _, leaving in self._take_out(bucket, ids, purge=False):
                parcels = [(loads(each.message), 0.0, marker_of(bucket, each)) for each in leaving]
                missing = publish_on(channel, parcels) if parcels else set()
                sent = [each for each, to in zip(leaving, parcels, strict=True) if to[0]["to"] not in missing]
                if sent:
                    self._parking.published({bucket: sent})
                released += len(sent)
            return released

    def purge(self, name: str, key: str = "", ids: Sequence[str] | None = None, *, force: bool = False) -> int:
        """Throw parked tasks away, as ``celery purge`` does with those in a queue: nobody hears of it.

        Args:
            name: of the limit.
            key: of the bucket.
            ids: of the tasks; default: all that are parked now.
            force: see :meth:`lots`.

        Returns:
            How many there were.
        """
        self._check((name,), force)
        return sum(taken for taken, _ in self._take_out((name, key), ids, purge=True))

    def explain(self, id: str) -> Explanation:
        """Where a task is, which limit it waits for, and when it will start: a value, and a text for people (``str``).

        The lots are looked through first, by an index; then the workers are asked, which have a second to answer; then
        the result backend.

        Args:
            id: the task's.

        *Warning*: a message that waits in a queue of the broker cannot be found, nor can one in a worker that does not
        answer. The forecast is for one limit at a rate that stays what it is, and workers that keep up.
        """
        from .task_lookup import explain

        return explain(self._app, self._parking, id)

    def drain(self) -> int:
        """Hand back to the queues that they were sent to all tasks that are parked, or in a return queue.

        They are there as they were sent: a worker without this package runs them. Stop the workers that have it first,
        in order (SIGTERM), or they park them again; what a killed one has kept from the broker comes back when that
        redelivers, so call it once more then.

        Returns:
            How many tasks were handed back. What is for a queue that is not at the broker (RabbitMQ) stays, and a
            warning names the queue.
        """
        seen, return_queue_for = self._parking.register.seen((), ()), settings_of(self._app).return_queue_for
        queues = {*self._app.amqp.queues, *seen.queues}
        returns = {*seen.returns, *[(to, queue) for queue in queues if (to := return_queue_for(queue)) != queue]}
        with QueueReturner(self._app, self._parking) as returner:
            of_queues = [returner.return_queue(*pair) for pair in sorted(returns)]
            names = sorted({*self.limits, *seen.limits})
            handed = of_queues + [returner.limit(name, overdue=2 * AGAIN) for name in names]
        missing = frozenset().union(*[each.missing for each in handed])
        if missing:
            logger.warning("The broker has no queue %s: what is for it stays parked", ", ".join(sorted(missing)))
        return sum(each.tasks for each in handed)

    def _check(self, names: Sequence[str], force: bool) -> None:
        unknown = [name for name in names if name not in self.limits]
        if force or not unknown:
            return
        known = {*self.limits, *self._parking.register.seen((), ()).limits, *self._parking.contents.occupied(unknown)}
        for name in unknown:
            if name not in known:
                hint = near(name, known) or f"{listed(known)}."
                raise ConfigurationError(
                    f"no task, queue or worker has a limit {name!r}, and nothing is parked for one: {hint} "
                    "(force=True asks the store all the same)"
                )

    def _list(self, bucket: Bucket, first: int, number: int) -> Iterator[Parked]:
        last = first + number - 1
        while first <= last:
            page = self._parking.contents.lot(bucket, first, min(last, first + PAGE - 1)).tasks
            if not page:
                return
            yield from page
            first += len(page)

    def _take_out(
        self, bucket: Bucket, ids: Sequence[str] | None, *, purge: bool
    ) -> Iterator[tuple[int, Sequence[Parked]]]:
        """In steps of one script: of a task that is tried again the store knows the attempts by ids of their own."""
        if ids is None:
            yield from self._parking.contents.pick_all(bucket, purge=purge)
            return
        missing = dict.fromkeys(ids)
        for found in self._parking.contents.find([bucket[0]], list(missing)):
            here = found.get(bucket, {})
            yield from self._pick(bucket, list(here), purge)
            for task in here.values():
                missing.pop(task, None)
        # A version before this one may have parked them: it told nobody where.
        asked = list(missing)
        for first in range(0, len(asked), _AT_ONCE):
            written = [dumps(id)[1:-1] for id in asked[first : first + _AT_ONCE]]
            scanned = [each for page in self._parking.contents.scan(bucket, written) for each in page]
            yield from self._pick(bucket, [each.id for each in scanned if _task(each).id in missing], purge)

    def _pick(self, bucket: Bucket, stored: Sequence[str], purge: bool) -> Iterator[tuple[int, Sequence[Parked]]]:
        while stored:
            taken, leaving, stored = self._parking.contents.pick(bucket, stored, purge=purge)
            yield taken, leaving

    def _lot(self, lot: Lot, unseen: float) -> ParkingLot:
        config = self._limiter.config(self.limits.get(lot.name, lot.name), key=lot.key or None, force=True)
        interval = config.in_force.interval if config.in_force is not None else 0.0
        drains_in = config.paused + lot.cost * interval if interval else None
        return ParkingLot(lot.name, lot.key, lot.parked, lot.oldest, drains_in, unseen < UNATTENDED, lot.cost)


def _task(parked: Parked) -> ParkedTask:
    headers: dict[str, Any] = loads(parked.message)["headers"]
    return ParkedTask(
        str(headers.get("id")),
        str(headers.get("task")),
        str(headers.get("argsrepr", "")),
        str(headers.get("kwargsrepr", "")),
        str(marker_in_headers(headers)["queue"]),
        parked.since / 1e6,
    )
