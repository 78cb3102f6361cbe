"""Returns tasks to their queues if no worker has their limit or queue for the time of a grace; repairs lost keys.

A limit, a quota or a queue that was renamed or removed leaves tasks in the store and in return queues. Workers report
what they have (:class:`UnattendedTaskWatcher`, a timer). The worker that hears of unreported limits and queues reviews
them (:class:`UnattendedTaskReturner`, a thread). The review also compares the keys of the backlog, in case the store
has lost some (:class:`LostKeyRepair`): it evicted keys, or was restored in part.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from celery import Celery

from .._celery import Worker, message_count
from ..limits.any_limit import AnyLimit
from ..store.resp import text
from ..store_calls.outage import Outage
from . import tuning
from .backlog import Backlog
from .fleet_registry import UnattendedLimitsAndQueues
from .messages import Bucket
from .publisher import OriginalQueueReturner
from .scripts import Scripts

__all__ = ["LostKeyRepair", "UnattendedTaskWatcher"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")


class RepairCounts(NamedTuple):
    """What one step of the repair has changed.

    Attributes:
        again: number of tasks that had lost their places. They are parked again.
        removed: number of places that had lost their messages. They are removed: these tasks are lost.
    """

    again: int
    removed: int


class LostKeyRepair:
    """Compares the keys of parking lots, some at a time, and repairs them. Two workers may do so at once.

    Either of two indexes leads to a parking lot. If both are lost, a parking lot with a key is found when the next task
    is parked there.
    """

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._cursors: dict[str, tuple[int, int]] = {}
        self._positions: dict[Bucket, tuple[int, str]] = {}  # of parking lots that are compared in part

    def review(self, names: Sequence[str]) -> None:
        """Compare some parking lots of some of these limits, and log an error if the store has lost keys."""
        for name in random.sample(names, min(tuning.REVIEWED, len(names))):
            again, removed = self.step(name)
            if again or removed:
                logger.error(
                    "The store has lost keys of the limit %r: %d tasks are parked again, %d parked tasks are lost. "
                    "Does it evict keys (maxmemory-policy), or was it restored in part?",
                    *(name, again, removed),
                )

    def step(self, name: str) -> RepairCounts:
        """Compare the next parking lots of a limit. The next step continues behind them."""
        entries = self._next_lots(name)
        again = removed = 0
        for _ in range(tuning.COMPARISONS):
            lots = list(entries)[: tuning.STEP_BUDGET]
            if not lots:
                break
            for bucket, each in zip(lots, self._compare(lots, entries), strict=True):
                part, cursor, some, others = int(each[0]), text(each[1]), int(each[2]), int(each[3])
                again, removed = again + some, removed + others
                del entries[bucket]
                self._positions.pop(bucket, None)
                if part:
                    self._positions[bucket] = part, cursor
                    entries[bucket] = []
        return RepairCounts(again, removed)

    def _compare(self, lots: Sequence[Bucket], entries: dict[Bucket, list[str]]) -> Sequence[Sequence[bytes]]:
        arguments: list[str | int] = [self._scripts.memory, tuning.COMPARED]
        for bucket in lots:
            arguments += [bucket[1], *self._positions.get(bucket, (0, "0")), len(entries[bucket]), *entries[bucket]]
        reply: Sequence[Sequence[bytes]] = self._scripts.of_lots("repair_lost_keys", lots, *arguments)
        return reply

    def _next_lots(self, name: str) -> dict[Bucket, list[str]]:
        """The next parking lots of the indexes, each with its entries of ``where``; and the partly compared ones."""
        lots, _, where, *_ = self._scripts.shared_keys(name)
        at_lots, at_where = self._cursors.get(name, (0, 0))
        at_lots, keys = self._scripts.command("zscan", lots, at_lots, None, tuning.STEP_BUDGET)
        at_where, places = self._scripts.command("zscan", where, at_where, None, tuning.STEP_BUDGET)
        self._cursors[name] = at_lots, at_where
        entries: dict[Bucket, list[str]] = {bucket: [] for bucket in self._positions if bucket[0] == name}
        for key in ["", *[text(key) for key, _ in keys]]:
            entries.setdefault((name, key), [])
        for place in [text(place) for place, _ in places]:
            entries.setdefault((name, place.split("\0", 2)[2]), []).append(place)
        return entries


class UnattendedTaskReturner:
    """Returns the tasks of limits and queues without a worker, in a thread with its own ``backlog``.

    Attributes:
        empty: limits, and return queues with their queues, without tasks for a long time: they may be forgotten.
    """

    def __init__(self, app: Celery, backlog: Backlog, grace: float) -> None:
        self._app, self._backlog, self._grace = app, backlog, grace
        self._key_repair = LostKeyRepair(backlog.scripts)
        self.empty: set[str] = set()
        self._warned: dict[str, float] = {}

    def run(self, unseen: UnattendedLimitsAndQueues, names: Sequence[str], *, repairs_keys: bool) -> None:
        """Return what has no worker, and compare the keys of some limits (``repairs_keys``).

        Raises what broker and store raise.

        Args:
            unseen: limits, return queues and queues without a worker.
            names: limits of this worker.
            repairs_keys: whether it is this worker's turn to compare: one of the fleet does every ten seconds.
        """
        if repairs_keys:
            self._key_repair.review(names)
        if not any(unseen):
            return
        counts = self._backlog.contents.counts([*unseen.limits, *names])
        for name, ago in unseen.limits.items():
            if name in counts:
                self._review_limit(name, ago, counts[name][1])
            elif ago >= self._grace + tuning.EMPTY_KNOWN:
                self.empty.add(name)
        absent = [queue for queue, ago in unseen.queues.items() if ago >= self._grace]
        for name in counts.keys() & names if absent else ():
            if any(self._backlog.contents.keys(name, aside=True)):
                self._return_limit(f"of the limit {name!r} whose queue no worker consumes", name, absent)
        if unseen.returns:
            self._review_return_queues(unseen.returns)

    def _review_limit(self, name: str, ago: float, parked: int) -> None:
        if self._may_warn(f"limit {name}"):
            logger.warning(
                "%d tasks are parked for the limit %r, which no worker has had for %.0f s: was it renamed or removed? "
                "%g s after the last one (ratelimit_orphans_after) they go back to their queues, as they were sent",
                *(parked, name, ago, self._grace),
            )
        if ago >= self._grace:
            self._return_limit(f"of the limit {name!r}, which no worker has", name, [])

    def _review_return_queues(self, returns: Mapping[tuple[str, str], float]) -> None:
        with self._app.connection_for_read() as connection:
            counts = {pair: message_count(connection, pair[0]) for pair in returns}
        for (to, queue), ago in returns.items():
            if not counts[to, queue]:
                if ago >= self._grace + tuning.EMPTY_KNOWN:
                    self.empty.add(f"{to}\0{queue}")
                continue
            if self._may_warn(f"queue {to}"):
                logger.warning(
                    "%d messages are in the return queue %r, which no worker has consumed for %.0f s: was the queue %r "
                    "renamed? %g s after the last one (ratelimit_orphans_after) they go back to it, as they were sent",
                    *(counts[to, queue], to, ago, queue, self._grace),
                )
            if ago >= self._grace:
                with OriginalQueueReturner(self._app, self._backlog) as returner:
                    what = f"of the return queue {to!r}, which no worker consumes"
                    self._log(what, *returner.return_queue(to, queue))

    def _return_limit(self, what: str, name: str, queues: Sequence[str]) -> None:
        with OriginalQueueReturner(self._app, self._backlog) as returner:
            self._log(what, *returner.limit(name, queues))

    def _log(self, what: str, tasks: int, queues: frozenset[str], missing: frozenset[str]) -> None:
        if tasks:
            logger.warning("%d tasks %s, are in their queues again: %s", tasks, what, ", ".join(sorted(queues)))
        if missing and self._may_warn(f"missing {sorted(missing)}"):
            logger.warning("Tasks %s, stay: the broker has no queue %s", what, ", ".join(sorted(missing)))

    def _may_warn(self, what: str) -> bool:
        may = time.monotonic() >= self._warned.get(what, float("-inf")) + tuning.WARNING_INTERVAL
        if may:
            self._warned[what] = time.monotonic()
        return may


class UnattendedTaskWatcher:
    """Reports the limits and return queues that one worker has, and starts reviews of what no worker has.

    ``grace``: seconds without a worker after which tasks are returned: a rolling deploy has workers of both kinds.
    """

    def __init__(
        self, worker: Worker, backlog: Backlog, limits: Mapping[str, AnyLimit], grace: float, outage: Outage
    ) -> None:
        self._worker, self._limits, self._outage = worker, limits, outage
        self._backlog, self._grace = backlog, grace
        self._returner = UnattendedTaskReturner(worker.app, backlog.another(), grace)
        self._pause = max(1.0, min(tuning.REST_INTERVAL, grace / tuning.MISSED_REPORTS))
        self._reported: set[str] = set()
        self._return_queues: set[tuple[str, str]] = set()
        self._new_return_queues: set[tuple[str, str]] = set()
        self._cancel: Callable[[], None] | None = None
        self._reviewed_at, self._repaired_at = float("-inf"), time.monotonic()
        self._thread: threading.Thread | None = None

    def report_now(self) -> None:
        """Report now, and again after a pause. Called before the worker parks a task, and when its queues change."""
        self.close()
        self._cancel = self._worker.timers.call_after(self._pause, self.report_now)
        names = self._outage.ask(self._report, None) if self._backlog.can_park else None
        if names is not None:
            self._reported = set(names)
            self._find_return_queues()

    def _find_return_queues(self) -> None:
        """Consume return queues that other workers of the same queues have declared."""
        addresses = self._worker.return_addresses
        if len(addresses.attended()) < len(self._worker.consumption.queues):
            seen = self._outage.ask(self._backlog.register.seen, None)
            for name, _ in seen.returns if seen is not None else ():
                addresses.note_use(name)

    def close(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    def ensure_reported(self, name: str) -> None:
        """Report the limits unless this one was reported. Raises what the store raises."""
        if name not in self._reported:
            self._reported.update(self._report())

    def note_return_queue(self, return_queue: str, queue: str) -> None:
        """A task is published to a return queue, which another worker may consume, or none."""
        if (return_queue, queue) not in self._return_queues and return_queue != queue:
            self._return_queues.add((return_queue, queue))
            self._new_return_queues.add((return_queue, queue))

    def _report(self) -> list[str]:
        names = list(self._limits)
        forget, self._returner.empty = self._returner.empty, set()
        returns = self._worker.return_addresses.attended() | self._new_return_queues
        after = tuning.MISSED_REPORTS * self._pause
        unseen = self._backlog.register.seen(
            names, sorted(returns), sorted(forget), after=after, most=tuning.READ_AT_ONCE
        )
        self._new_return_queues -= returns
        now, pause = time.monotonic(), min(tuning.REVIEW_INTERVAL, self._grace)
        repairs_keys = now >= self._repaired_at + pause * self._backlog.register.workers
        is_due = repairs_keys or (any(unseen) and now >= self._reviewed_at + pause)
        if is_due and not (self._thread is not None and self._thread.is_alive()):
            self._reviewed_at = now
            if repairs_keys:
                self._repaired_at = now
            self._thread = threading.Thread(
                target=self._run_review,
                args=(unseen, names, repairs_keys),
                name="celery_ratelimit-orphans",
                daemon=True,
            )
            self._thread.start()
        return names

    def _run_review(self, unseen: UnattendedLimitsAndQueues, names: Sequence[str], repairs_keys: bool) -> None:
        try:
            self._outage.ask(lambda: self._returner.run(unseen, names, repairs_keys=repairs_keys), None, quietly=True)
        except Exception as error:  # of the broker
            logger.warning(
                "Tasks without a worker could not be returned (%r); next try in %g s", error, tuning.REVIEW_INTERVAL
            )
