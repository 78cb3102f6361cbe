"""What operators do: list, release, purge and drain parked tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import chain, islice
from math import inf
from typing import Any

from celery import Celery

from .._celery import BrokerDidNotAnswer, publish_on, query_workers
from .._celery.broker import broker_problem
from ..app.app_limits import limits_of_app
from ..app.settings import settings_of
from ..backlog.backlog import backlog_of
from ..backlog.messages import Bucket, Parked, decoded, marker_of, read_parcel
from ..backlog.publisher import OriginalQueueReturner
from ..backlog.tuning import PAGE, PUBLISH_TIMEOUT
from ..errors import ConfigurationError, RateLimitError, shown
from ..limits.any_limit import AnyLimit
from ..name_suggestions import no_such_limit
from .backlogs import weights_of
from .overview import overview
from .read_parking_lots import ParkingLot, lots_of, read_lots, tasks_in_order
from .task_lookup import PATIENCE, Explanation, explain

__all__ = ["ParkedTask", "ParkingLot", "ParkingLots", "parked_page", "take_out"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Workers that an error names.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class ParkedTask:
    """A task in a parking lot.

    Attributes:
        id: the task's id.
        task: its name; ``""``: the stored message cannot be read.
        args, kwargs: as logs show them.
        queue: to which it was sent.
        since: when it was throttled first, in seconds since 1970.
        share: of a fair limit; ``""``: the limit was not fair when it was parked.
    """

    id: str
    task: str
    args: str
    kwargs: str
    queue: str
    since: float
    share: str = ""


class ParkingLots:
    """The parking lots of an app's limits.

    >>> lots = ParkingLots(app)
    >>> for lot in lots.lots():
    ...     print(lot.name, lot.key, lot.parked, lot.drains_in)

    Args:
        app: the app; released tasks are published to its broker.

    Attributes:
        limits: of the app's tasks and queues, by name.
    """

    def __init__(self, app: Celery) -> None:
        self._app, self._backlog = app, backlog_of(app)
        self.limits: dict[str, AnyLimit] = limits_of_app(app)

    def lots(self, *names: str, force: bool = False) -> list[ParkingLot]:
        """The lots in which tasks are parked. A hundred lots cost two or three scripts.

        Args:
            names: of limits; default: all limits of the app's tasks and queues, and all that workers had.
            force: accept unknown names.

        Raises:
            ConfigurationError: a name is not known; says which names there are.
        """
        self._check(names, force)
        return lots_of(self._app, names)

    def tasks(
        self, name: str, key: str = "", *, first: int = 0, number: int = 100, force: bool = False
    ) -> list[ParkedTask]:
        """Tasks that are parked for one bucket, in the order of their turns.

        Args:
            name: of the limit.
            key: of the bucket.
            first: how many to leave out.
            number: how many at most.
            force: see :meth:`lots`.
        """
        self._check((name,), force)
        found: list[ParkedTask] = []
        lot, limit = self._backlog.contents.lot((name, key), 0, 0), self.limits.get(name)
        while len(found) < number:
            page = tasks_in_order(self._app, limit, lot, first + len(found), min(PAGE, number - len(found)))
            if not page:
                break
            found += map(_task, page)
        return found

    def release(self, name: str, key: str | None = "", ids: Sequence[str] | None = None, *, force: bool = False) -> int:
        """Publish parked tasks to the broker now. They still need permits, behind the tasks that wait for these.

        Args:
            name: of the limit.
            key: of the bucket; ``None``: all buckets.
            ids: of the tasks; default: all that are parked now.
            force: see :meth:`lots`.

        Returns:
            How many were published. A task stays parked if the broker does not have its queue (RabbitMQ), or if the
            stored message cannot be read.
        """
        self._check((name,), force)
        released = 0
        with self._app.connection_for_write() as connection, connection.channel() as channel:
            for bucket, _, leaving in self._taken_out(name, key, ids, purge=False):
                readable = [(each, parcel) for each in leaving if (parcel := read_parcel(each))]
                messages = [(parcel, 0.0, marker_of(bucket, each)) for each, parcel in readable]
                missing = publish_on(channel, messages) if messages else set()
                sent = [each for each, parcel in readable if parcel["to"] not in missing]
                if sent:
                    self._backlog.published({bucket: sent})
                released += len(sent)
        return released

    def purge(self, name: str, key: str | None = "", ids: Sequence[str] | None = None, *, force: bool = False) -> int:
        """Delete parked tasks, as ``celery purge`` deletes messages in a queue: their senders are not told.

        Args:
            name, key, ids, force: see :meth:`release`.

        Returns:
            How many were deleted.
        """
        self._check((name,), force)
        return sum(taken for _, taken, _ in self._taken_out(name, key, ids, purge=True))

    def explain(self, id: str) -> Explanation:
        """Where a task is, which limit it waits for, and when it will start: a value, and a text (``str``).

        The lots are searched first. Then the workers have a second to answer, and then the result backend is asked.

        *Warning*: a message in a queue of the broker cannot be found, nor can one in a worker that does not answer. The
        forecast is for one limit at a rate that does not change, and workers that start tasks as they did lately.

        Raises:
            ConfigurationError: this cannot be an id.
        """
        if not id or any("\ud800" <= each <= "\udfff" for each in id):
            raise ConfigurationError(f"{shown(id)} cannot be a task's id")
        return explain(self._app, self._backlog, id)

    def drain(self, *, force: bool = False) -> int:
        """Return all tasks that are parked, or in a return queue, to the queues that they were sent to.

        The messages are as they were sent: a worker without this package runs them. Stop the workers that have this
        package first, with SIGTERM: they would park the tasks again, and a task on its way through a worker could run
        twice. What a killed worker held comes back when the broker redelivers it: call ``drain`` once more then.

        Args:
            force: although workers with this package answer: for a fleet of which a part is stopped.

        Returns:
            How many tasks were returned. Tasks for a queue that the broker does not have (RabbitMQ) stay parked, and a
            warning names the queue.

        Raises:
            RateLimitError: workers answer, or could not be asked; nothing was returned.
        """
        seen, return_queue_for = self._backlog.register.seen(), settings_of(self._app).return_queue_for
        if not force:
            self._refuse_while_workers_run()
        queues = {*self._app.amqp.queues, *seen.queues}
        returns = {*seen.returns, *[(to, queue) for queue in queues if (to := return_queue_for(queue)) != queue]}
        with OriginalQueueReturner(self._app, self._backlog) as returner:
            of_queues = [returner.return_queue(*pair) for pair in sorted(returns)]
            names = sorted({*self.limits, *seen.limits})
            returned = of_queues + [returner.limit(name, overdue=2 * PUBLISH_TIMEOUT) for name in names]
        missing = frozenset().union(*[each.missing for each in returned])
        if missing:
            logger.warning("The broker has no queue %s: the tasks for it stay parked", ", ".join(sorted(missing)))
        return sum(each.tasks for each in returned)

    def _refuse_while_workers_run(self) -> None:
        try:
            replies = query_workers(self._app, "ratelimits", PATIENCE)
        except BrokerDidNotAnswer as error:
            problem = broker_problem(self._app, error) or f"workers cannot be asked whether they run: {error}"
            raise RateLimitError(f"{problem} (force=True does not ask)") from error
        running = sorted(worker for worker, reply in replies.items() if isinstance(reply, dict) and "version" in reply)
        if running:
            more = f" and {len(running) - _NAMED} more" if len(running) > _NAMED else ""
            raise RateLimitError(
                f"workers run: {', '.join(running[:_NAMED])}{more} would park the tasks again, and some tasks could "
                "run twice. Stop the workers first (SIGTERM); force=True is for a fleet of which a part is stopped"
            )

    def _check(self, names: Sequence[str], force: bool) -> None:
        unknown = [name for name in names if name not in self.limits]
        if force or not unknown:
            return
        known = {*self.limits, *self._backlog.register.seen().limits, *self._backlog.contents.counts(unknown)}
        for name in unknown:
            if name not in known:
                raise ConfigurationError(no_such_limit(name, known))

    def _taken_out(
        self, name: str, key: str | None, ids: Sequence[str] | None, *, purge: bool
    ) -> Iterator[tuple[Bucket, int, Sequence[Parked]]]:
        """In steps of one script. A retried task has a stored id for each attempt."""
        contents = self._backlog.contents
        if ids is None:
            keys = [key] if key is not None else list(chain.from_iterable(contents.keys(name)))
            for bucket in [(name, each) for each in keys]:
                for taken, leaving in contents.remove_all(bucket, purge=purge):
                    yield bucket, taken, leaving
            return
        for found in contents.find([name], list(dict.fromkeys(ids))):
            for bucket, of_tasks in found.items():
                stored: Sequence[str] = list(of_tasks) if key in (None, bucket[1]) else ()
                while stored:
                    taken, leaving, stored = contents.remove(bucket, stored, purge=purge)
                    yield bucket, taken, leaving


def _task(parked: Parked) -> ParkedTask:
    headers: dict[str, Any] = read_parcel(parked).get("headers", {})
    return ParkedTask(
        str(headers.get("id", parked.id)),
        str(headers.get("task", "")),
        str(headers.get("argsrepr", "")),
        str(headers.get("kwargsrepr", "")),
        parked.queue,
        parked.since / 1e6,
        decoded(parked.share),
    )


def take_out(
    app: Celery, verb: str, name: str, ids: Sequence[str], key: str | None = None, *, force: bool = False
) -> int:
    """Release or purge (``verb``) the parked tasks with these ids, or all; of one key, or of all. Returns how many.

    Raises:
        RateLimitError: the broker does not answer.
    """
    try:
        lots = ParkingLots(app)
        return (lots.purge if verb == "purge" else lots.release)(name, key, list(ids) or None, force=force)
    except RateLimitError:
        raise
    except Exception as error:
        if problem := broker_problem(app, error):
            raise RateLimitError(problem) from error
        raise


def parked_page(
    app: Celery, name: str, key: str | None, first: int, number: int, *, force: bool = False
) -> tuple[int, list[dict[str, Any]]]:
    """How many tasks are parked for a limit, and some of them, with the time at which each is about to start.

    ``key``: of the bucket; ``None``: all buckets. For the others see :meth:`ParkingLots.tasks`.
    """
    lots, rows = ParkingLots(app), list[dict[str, Any]]()
    lots._check((name,), force)
    limit = lots.limits.get(name)
    limits = overview(app, name, force=True, ask_broker=False, max_lots=inf)
    found = {lot.parked.key: lot for lot in read_lots(app, limits) if key in (None, lot.parked.key)}
    held = {decoded(share) for share, weight in weights_of(app, {name: limit})[name].items() if not weight}
    of_lots: dict[str, list[tuple[int, float]]] = {}
    for seconds, each, place in islice(merge(*[lot.turns() for lot in found.values()]), first, first + number):
        of_lots.setdefault(each, []).append((place, seconds))
    for each, places in of_lots.items():
        now = found[each].standing.now
        tasks = lots.tasks(name, each, first=places[0][0], number=len(places), force=True)
        for (place, seconds), task in zip(places, tasks, strict=False):
            turn = now + seconds if seconds < inf and task.share not in held else None
            rows.append({"place": place + 1, "key": each, "turn": turn, "task": task, "now": now})
    rows.sort(key=lambda row: row["turn"] or inf)
    return sum(lot.parked.parked for lot in found.values()), rows
