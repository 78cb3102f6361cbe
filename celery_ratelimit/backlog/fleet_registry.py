"""Who attends to what: workers say which queues they consume and which limits they have, for a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ..limiter.durations import microseconds
from ..store.keys import attendance_keys, failures_key, seen_keys
from ..store.resp import bulk
from .messages import text
from .scripts import Scripts

__all__ = ["UNATTENDED", "WOKEN", "Attendance", "FleetRegistry", "PublishFailure", "Unseen"]

#: Seconds for which a queue is known that nobody consumes. Where no worker has ever said so, it is not known.
KNOWN = 30 * 86_400.0
#: Seconds after which nobody attends to a limit or a return queue, at the soonest: workers say so every twenty.
UNATTENDED = 60.0
#: Seconds for which a limit or a return queue is known that nobody attends to: what waits there is not to be forgotten.
REMEMBERED = 365 * 86_400.0
#: Workers from which on each tells less often what it has counted, and seconds from one time to the next at the most.
MANY, COUNTS_APART = 100, 2.0
#: Seconds for which a failure to publish is kept that no worker reports again; failures that are kept.
FAILURE_KEPT, MAX_FAILURES = 600.0, 1000
#: Lots that are told in one step that they may be due sooner.
WOKEN = 500


class Attendance(NamedTuple):
    """Queues that somebody in the fleet consumes, and those that nobody does any more."""

    attended: frozenset[str]
    absent: frozenset[str]


class Unseen(NamedTuple):
    """What no worker has said for some time that it attends to; each with the seconds since somebody did.

    Attributes:
        limits: by name.
        returns: return queues, each with the queue whose tasks come back by it.
        queues: that nobody consumes.
    """

    limits: dict[str, float]
    returns: dict[tuple[str, str], float]
    queues: dict[str, float]


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
    """What the workers of one fleet have said.

    Args:
        scripts: of its lots.

    Attributes:
        workers: how many there are, at the least; 1 as long as nobody has said.
    """

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self.workers = 1

    @property
    def counts_apart(self) -> float:
        """Seconds after which one of so many workers tells what it has counted: what is told each second is even."""
        return min(COUNTS_APART, max(1.0, self.workers / MANY))

    def attend(self, worker: str, queues: Sequence[str], given_up: Sequence[str], lasts: float) -> Attendance:
        """Which queues somebody consumes, and which nobody does.

        Args:
            worker: who asks.
            queues: which it consumes.
            given_up: which it does not consume any more.
            lasts: seconds for which it may be taken for alive; 0.0: the worker ends.
        """
        keys = attendance_keys(self._scripts.prefix, self._scripts.fleet)
        numbers = (microseconds(lasts), microseconds(KNOWN), len(queues))
        arguments: list[str | int] = [worker, *numbers, *queues, *given_up]
        reply = self._scripts.call("attend", (), len(keys), len(keys) + len(arguments), [bulk(*keys, *arguments)])
        attended, absent = [frozenset([text(queue) for queue in each]) for each in reply[:2]]
        self.workers = max(1, int(reply[2]))
        return Attendance(attended | set(queues), absent - set(queues))

    def seen(
        self,
        limits: Sequence[str],
        returns: Sequence[tuple[str, str]],
        forget: Sequence[str] = (),
        *,
        after: float = 0.0,
        most: int = -1,
    ) -> Unseen:
        """A worker attends to these limits and return queues. Which were not seen to for ``after`` seconds?

        Args:
            limits: by name.
            returns: return queues, each with the queue whose tasks come back by it.
            forget: limits, and return queues with their queues, in which nothing waits.
            after: seconds.
            most: how many of each kind; -1: all.
        """
        keys = seen_keys(self._scripts.prefix, self._scripts.fleet)
        numbers = (microseconds(REMEMBERED), microseconds(after), most, len(limits), len(returns))
        arguments: list[str | int] = [*numbers, *limits, *["\0".join(each) for each in returns], *forget]
        reply = self._scripts.call("seen", (), len(keys), len(keys) + len(arguments), [bulk(*keys, *arguments)])
        of_limits, of_returns, of_queues = [
            {text(name): int(us) / 1e6 for name, us in zip(each[::2], each[1::2], strict=True)} for each in reply
        ]
        pairs = {tuple(name.split("\0", 1)): ago for name, ago in of_returns.items()}
        return Unseen(of_limits, {(to, queue): ago for (to, queue), ago in pairs.items()}, of_queues)

    def publish_failures(
        self,
        failed: Mapping[tuple[str, str, str], str] = MappingProxyType({}),
        published: Sequence[tuple[str, ...]] = (),
    ) -> dict[str, list[PublishFailure]]:
        """Report failures of this worker; returns those of all workers, by limit.

        Args:
            failed: the errors by limit, queue and the task's id; no id: all tasks for that queue.
            published: the same without an error: they were published again.
        """
        key = failures_key(self._scripts.prefix, self._scripts.fleet)
        arguments: list[str | int] = [microseconds(FAILURE_KEPT), MAX_FAILURES, len(published)]
        arguments += ["\0".join(each) for each in published]
        arguments += [value for each, error in failed.items() for value in ("\0".join(each), error)]
        reply = self._scripts.call("publish_failures", (), 1, 1 + len(arguments), [bulk(key, *arguments)])
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
        """A queue is consumed again: lots of a limit in which tasks are aside are due. In steps.

        Args:
            name: of the limit.
            after: up to which bucket's key the step before has come; ``None``: the first step.
            offset: how many lots there were before.

        Returns:
            The same for the next step; ``None``: there is none.
        """
        lots, _, _, asides, _ = self._scripts.shared_keys(name)
        first = "-" if after is None else f"({after}"
        reply = self._scripts.call("recall", (), 2, 5, [bulk(lots, asides, first, offset, WOKEN)])
        return (text(reply[-1]) if len(reply) == WOKEN else None), offset + len(reply)
