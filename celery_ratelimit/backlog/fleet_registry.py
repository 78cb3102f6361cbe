"""Which queues and limits the workers of a fleet have. A worker reports its own, which hold for a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from .._celery import Worker
from ..limiter.argument_checks import microseconds
from ..limiter.operation import Operation
from ..store.keys import attendance_keys, failures_key, seen_keys
from ..store.resp import text
from ..store_calls.store_calls import Asks
from . import tuning
from .scripts import Scripts

__all__ = ["FleetRegistry", "PublishFailure", "QueueHeartbeat", "UnattendedLimitsAndQueues"]


class UnattendedLimitsAndQueues(NamedTuple):
    """What no worker has reported for some time; each with the seconds since the last report.

    Attributes:
        limits: by name.
        returns: return queues, each with the queue whose tasks come back by it.
        queues: that no worker consumes. Below zero: a worker consumes it, until it has to report again.
    """

    limits: dict[str, float]
    returns: dict[tuple[str, str], float]
    queues: dict[str, float]

    def attends(self, limit: str) -> bool:
        """Whether a worker has reported this limit lately."""
        return self.limits.get(limit, inf) < tuning.UNATTENDED


class PublishFailure(NamedTuple):
    """Tasks that have left the backlog and could not be published.

    Attributes:
        queue: the queue that they were published to.
        task: the id of the one task; empty: all tasks for that queue.
        since: seconds since 1970: when it was noticed first.
        error: the broker's error.
    """

    queue: str
    task: str
    since: float
    error: str

    def __str__(self) -> str:
        what = f"task {self.task}" if self.task else "tasks"
        to = f" to queue {self.queue!r}" if self.queue else ""
        return f"{what} cannot be published{to}: {self.error}"


class FleetRegistry:
    """What the workers of one fleet have reported.

    Attributes:
        workers: how many there are; 1 until the first reply.
    """

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self.workers: int = 1

    @property
    def counts_apart(self) -> float:
        """Seconds between two reports of a worker's counts: longer where workers are many."""
        return min(tuning.MAX_COUNTS_INTERVAL, max(1.0, self.workers / tuning.MANY_WORKERS))

    def attend(self, worker: str, queues: Sequence[str], given_up: Sequence[str], lasts: float) -> frozenset[str]:
        """Report a worker's queues; returns the queues that no worker consumes any more.

        Args:
            worker: its name.
            queues: that it consumes.
            given_up: that it does not consume any more.
            lasts: seconds for which it may be taken for alive; 0.0: the worker ends.
        """
        keys = attendance_keys(self._scripts.prefix, self._scripts.fleet)
        numbers = (microseconds(lasts), microseconds(tuning.QUEUE_KNOWN), len(queues))
        absent, workers = self._scripts.with_keys("heartbeat_queues", keys, worker, *numbers, *queues, *given_up)
        self.workers = max(1, int(workers))
        return frozenset(map(text, absent)).difference(queues)

    def seen(
        self,
        limits: Sequence[str] = (),
        returns: Sequence[tuple[str, str]] = (),
        forget: Sequence[str] = (),
        *,
        after: float = 0.0,
        most: int = -1,
    ) -> UnattendedLimitsAndQueues:
        """Report a worker's limits and return queues; returns what was not reported for ``after`` seconds;
        below zero: also what is reported.

        Args:
            limits, returns: see :class:`UnattendedLimitsAndQueues`.
            forget: limits, and return queues with their queues, without tasks.
            most: how many of each kind; -1: all.
        """
        return self._scripts.asker.drive(self.asking_seen(limits, returns, forget, after=after, most=most))

    def asking_seen(
        self,
        limits: Sequence[str] = (),
        returns: Sequence[tuple[str, str]] = (),
        forget: Sequence[str] = (),
        *,
        after: float = 0.0,
        most: int = -1,
    ) -> Operation[UnattendedLimitsAndQueues]:
        """:meth:`seen` as an operation."""
        keys = seen_keys(self._scripts.prefix, self._scripts.fleet)
        numbers = (microseconds(tuning.LIMIT_KNOWN), microseconds(after), most, len(limits), len(returns))
        pairs = ["\0".join(each) for each in returns]
        (reply,) = yield from self._scripts.asking("heartbeat_limits", (keys, [*numbers, *limits, *pairs, *forget]))
        of_limits, of_returns, of_queues = [
            {text(name): int(us) / 1e6 for name, us in zip(each[::2], each[1::2], strict=True)} for each in reply
        ]
        found = {(to, queue): ago for name, ago in of_returns.items() for to, _, queue in [name.partition("\0")]}
        return UnattendedLimitsAndQueues(of_limits, found, of_queues)

    def publish_failures(
        self,
        failed: Mapping[tuple[str, str, str], str] = MappingProxyType({}),
        published: Sequence[tuple[str, ...]] = (),
    ) -> dict[str, list[PublishFailure]]:
        """Report failures of this worker; returns the failures of all workers, by limit.

        Args:
            failed: the errors by limit, queue and the task's id; no id: all tasks for that queue.
            published: the same without an error: they were published again.
        """
        return self._scripts.asker.drive(self.asking_publish_failures(failed, published))

    def asking_publish_failures(
        self,
        failed: Mapping[tuple[str, str, str], str] = MappingProxyType({}),
        published: Sequence[tuple[str, ...]] = (),
    ) -> Operation[dict[str, list[PublishFailure]]]:
        """:meth:`publish_failures` as an operation."""
        key = failures_key(self._scripts.prefix, self._scripts.fleet)
        arguments: list[str | int] = [microseconds(tuning.FAILURE_KEPT), tuning.MAX_FAILURES, len(published)]
        arguments += ["\0".join(each) for each in published]
        arguments += [value for each, error in failed.items() for value in ("\0".join(each), error)]
        (reply,) = yield from self._scripts.asking("report_publish_failures", ([key], arguments))
        found: dict[str, list[PublishFailure]] = {}
        for field, value in sorted(zip(map(text, reply[::2]), map(text, reply[1::2]), strict=True)):
            name, queue, task = field.split("\0", 2)
            since, _, error = value.split(" ", 2)
            found.setdefault(name, []).append(PublishFailure(queue, task, int(since) / 1e6, error))
        return found

    def consumed(self) -> set[str]:
        """The queues that some worker consumes, or has consumed in the last 30 days."""
        *_, queues = attendance_keys(self._scripts.prefix, self._scripts.fleet)
        return {text(queue) for queue in self._scripts.command("zrange", queues, 0, -1)}

    def recall(self, name: str, after: str | None, offset: int) -> tuple[str | None, int]:
        """A queue is consumed again: buckets of a limit in which tasks are aside are due. In steps.

        Args:
            name: of the limit.
            after: the bucket's key that the last step has reached; ``None``: the first step.
            offset: how many buckets there were before.

        Returns:
            The same for the next step; ``None``: there is none.
        """
        lots, _, _, asides, _ = self._scripts.shared_keys(name)
        first = "-" if after is None else f"({after}"
        reply = self._scripts.with_keys(
            "make_suspended_lots_due", (lots, asides), first, offset, tuning.SCANNED_AT_ONCE
        )
        return (text(reply[-1]) if len(reply) == tuning.SCANNED_AT_ONCE else None), offset + len(reply)


class QueueHeartbeat:
    """Reports the queues that one worker consumes, and knows which queues any worker consumes.

    Args:
        registry: of the fleet.
        on_new_queues: called when this worker consumes queues that it did not.
        recall: called when tasks may be aside for a queue that is consumed again.

    Attributes:
        absent: queues that no worker consumes, by the last reply; ``None``: there was none.
    """

    def __init__(
        self,
        worker: Worker,
        registry: FleetRegistry,
        on_new_queues: Callable[[], None],
        recall: Callable[[], None],
    ) -> None:
        self._worker, self._registry = worker, registry
        self._on_new_queues, self._recall = on_new_queues, recall
        self.absent: frozenset[str] | None = None
        self._queues: frozenset[str] = frozenset()
        self._reported_at = self._pause = self._recall_until = 0.0

    def _consumed_queues(self) -> frozenset[str]:
        """The queues whose tasks come here when they leave the backlog, by their return queues."""
        consumption = self._worker.consumption
        before, behind = consumption.return_queue_for("\0").split("\0")
        return frozenset(
            [
                queue[len(before) : len(queue) - len(behind)]
                if queue.startswith(before) and queue.endswith(behind) and len(queue) > len(before) + len(behind)
                else queue
                for queue in consumption.queues
            ]
        )

    def report(self, *, is_idle: bool) -> Asks[None]:
        """Report the queues if it is time to. Tasks whose queue no worker consumes get no slot."""
        queues = self._consumed_queues()
        pause = tuning.REST_INTERVAL if is_idle else tuning.HEARTBEAT
        if queues == self._queues and time.monotonic() < self._reported_at + min(pause, self._pause):
            return  # the last report holds for some of its own pauses, which may be shorter
        before, given_up = self.absent, sorted(self._queues - queues)
        attend = self._registry.attend
        lasts = tuning.MISSED_REPORTS * pause
        self.absent = yield partial(attend, self._worker.hostname, sorted(queues), given_up, lasts)
        has_new = queues - self._queues
        self._queues, self._reported_at, self._pause = queues, time.monotonic(), pause
        if has_new:  # a worker that has not heard of it may set their tasks aside anew, and end before it hears
            self._recall_until = self._reported_at + tuning.MISSED_REPORTS * tuning.HEARTBEAT
            self._on_new_queues()
        if before is None or before - self.absent or self._reported_at < self._recall_until:
            self._recall()

    def end(self) -> Callable[[], object]:
        """This worker ends, or connects anew. Returns the call that reports it."""
        given_up, self._queues, self.absent = sorted(self._queues), frozenset(), None
        return partial(self._registry.attend, self._worker.hostname, (), given_up, 0.0)
