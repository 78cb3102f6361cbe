"""Finds, lists and counts the tasks in the parking lots, and takes tasks out before their turn.

:class:`OccupiedBucketCache` is what one worker remembers of that.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from .._celery.saved_message import marker_in
from ..limiter.argument_checks import microseconds
from ..limiter.limit_request import LimitRequest
from ..limiter.operation import Operation, batches
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from ..store.resp import text
from . import tuning
from .messages import Bucket, LotSnapshot, Parked, Position, decoded, encoded, several
from .scripts import Scripts

__all__ = ["BacklogContents", "LotCounts", "OccupiedBucketCache"]

_T = TypeVar("_T")
#: The keys of a parking lot that ``lua/list_parked.lua`` reads: parked, in_flight, payloads, suspended, costs.
_LISTED = (0, 2, 1, 6, 11)


class LotCounts(NamedTuple):
    """How many parking lots a limit has, and how many tasks are parked in them.

    Attributes:
        keys: of the buckets with these lots; none, if there are more than were asked for.
    """

    lots: int
    parked: int
    keys: Sequence[str]


class BacklogContents:
    """The tasks in the parking lots of one fleet."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def counts(self, names: Sequence[str]) -> dict[str, LotCounts]:
        """The counts of each limit that has parking lots."""
        return self._scripts.asker.drive(self.asking_counts(names))

    def asking_counts(self, names: Sequence[str], keys: int = 0) -> Operation[dict[str, LotCounts]]:
        """:meth:`counts` as an operation; ``keys``: how many keys one script may list."""
        parts = list(_pages(self._scripts.that_go_together(names), tuning.SCANNED_AT_ONCE))
        replies = yield from self._scripts.asking(
            "locate", *[(_indexes(self._scripts, part), [keys]) for part in parts]
        )
        pairs = zip(chain.from_iterable(parts), chain.from_iterable(replies), strict=True)
        return {name: LotCounts(lots, parked, list(map(text, found))) for name, (lots, parked, found) in pairs if lots}

    def find(self, names: Sequence[str], tasks: Sequence[str]) -> Iterator[dict[Bucket, dict[str, str]]]:
        """Find parked tasks by id. Each step runs one script, and yields by bucket: the store's id -> the task's id."""
        for part in _pages(self._scripts.that_go_together(names), tuning.LOOKUPS):
            for asked in _pages([tasks], max(1, tuning.LOOKUPS // len(part))):
                reply = self._scripts.with_keys("locate", _indexes(self._scripts, part), 0, *map(encoded, asked))
                found: dict[Bucket, dict[str, str]] = {}
                for name, (_, _, _, *entries) in zip(part, reply, strict=True):
                    for entry in entries:
                        task, id, key = text(entry).split("\0", 2)
                        found.setdefault((name, key), {})[id] = decoded(task)
                yield found

    def find_leaving(self, names: Sequence[str], task: str) -> Iterator[tuple[Bucket, str]]:
        """Find returned tasks, not confirmed to be at the broker, that have ``task`` in their stored ids.

        No index has such tasks, so this reads all parking lots of these limits. Call it if :meth:`find` finds nothing.
        """
        pattern = re.sub(r"([*?\[\\])", r"\\\1", task).encode(errors="surrogatepass")
        for lot in self.lots(names):
            bucket, cursor = (lot.name, lot.key), None
            while lot.leaving and cursor != 0:
                arguments = self._scripts.lot_keys(bucket)[2], cursor or 0, b"*%b*" % pattern, tuning.SCANNED_AT_ONCE
                cursor, page = self._scripts.command("zscan", *arguments)
                yield from [(bucket, text(id)) for id, _ in page]

    def position(self, bucket: Bucket, id: str, weights: str = "") -> Position:
        """The position of a task, by its id in the store; ``weights``: see :func:`.weights_text`."""
        now, where, before, number, cost, stored, weight, tasks, in_share = self._scripts.run(
            "position", bucket, id, bucket[1], weights
        )
        (parked,) = several([id, 0, stored])
        position = Position(int(now), text(where), int(before), int(number), int(cost), parked)
        if float(weight) < 0:
            return position
        return position._replace(before=int(tasks), weight=float(weight), in_share=int(in_share))

    def lots(self, names: Sequence[str]) -> list[LotSnapshot]:
        """The parking lots of these limits, without tasks."""
        counts = self._scripts.asker.drive(self.asking_counts(names, tuning.KEYS_READ_AT_ONCE))
        return self._scripts.asker.drive(self.asking_lots(self.buckets(counts)))

    def buckets(self, counts: Mapping[str, LotCounts]) -> list[Bucket]:
        """The buckets with parking lots of these limits; asks the store where not all keys are listed in ``counts``."""
        listed = [(name, key) for name, each in counts.items() for key in each.keys]
        others = [name for name, each in counts.items() if not each.keys]
        return [*listed, *chain.from_iterable(self._buckets(others))]

    def keys(self, name: str, *, aside: bool = False) -> Iterator[list[str]]:
        """Pages of the keys of a limit's buckets that have parking lots; ``aside``: that have tasks set aside."""
        return ([key for _, key in page] for page in self._buckets([name], aside=aside))

    def _buckets(self, names: Sequence[str], *, aside: bool = False) -> Iterator[list[Bucket]]:
        """The buckets of these limits that have parking lots. A round trip reads one page of each of some limits."""
        cursors, seen, most = dict.fromkeys(names, 0), set[Bucket](), tuning.KEYS_READ_AT_ONCE
        while cursors:
            asked = list(cursors)[: tuning.READ_AT_ONCE]
            calls = [(self._scripts.shared_keys(name)[3 if aside else 0], cursors[name], None, most) for name in asked]
            for name, (cursor, page) in zip(asked, self._scripts.commands("zscan", calls), strict=True):
                found = [bucket for key, _ in page if (bucket := (name, text(key))) not in seen]
                seen.update(found)
                yield list(dict.fromkeys(found))
                cursors[name] = int(cursor)
                if not cursors[name]:
                    del cursors[name]

    def lot(self, bucket: Bucket, first: int, last: int) -> LotSnapshot:
        """The parking lot of one bucket, with its tasks from ``first`` to ``last``, counted from 0; -1: the last one.

        The list ends earlier if the messages are longer than one reply may be.
        """
        (lot,) = self._scripts.asker.drive(self.asking_lots([bucket], (first, last)))
        return lot

    def asking_lots(
        self, buckets: Sequence[Bucket], page: tuple[int | str, int | str] = ("", "")
    ) -> Operation[list[LotSnapshot]]:
        """:meth:`lots` of these buckets as an operation; ``page``: the first and the last task that is listed."""
        by_name: dict[str, list[Bucket]] = {}
        for bucket in buckets:
            by_name.setdefault(bucket[0], []).append(bucket)
        together = self._scripts.that_go_together(list(by_name))
        parts = list(_pages([[b for name in names for b in by_name[name]] for names in together], tuning.READ_AT_ONCE))
        lots: list[LotSnapshot] = []
        for some in batches(False, parts, len(parts), tuning.LOTS_AT_ONCE, len):
            calls = []
            for part in some:
                keys = [self._scripts.lot_keys(bucket) for bucket in part]
                arguments = (*page, tuning.MAX_REPLY_BYTES, *[key for _, key in part])
                calls.append(([lot[which] for lot in keys for which in _LISTED], arguments))
            for part, (_, *found) in zip(some, (yield from self._scripts.asking("list_parked", *calls)), strict=True):
                for bucket, (parked, leaving, oldest, cost, *tasks) in zip(part, found, strict=True):
                    since = int(float(oldest)) / 1e6
                    lots.append(LotSnapshot(*bucket, parked, leaving, since, int(cost), tuple(several(tasks))))
        return lots

    # -- To take it out --------------------------------------------------------------------------------------------

    def remove(self, bucket: Bucket, ids: Sequence[str], *, purge: bool) -> tuple[int, list[Parked], Sequence[str]]:
        """Take tasks out before their turn. The caller publishes them; with ``purge`` they are deleted.

        Returns:
            How many tasks were taken out, their messages (none with ``purge``), and the ids that were not processed.
        """
        _, came, taken, _, _, *leaving = self._remove(bucket, purge, 0, "", 0, "", *ids[: tuning.PAGE])
        return int(taken), several(leaving), ids[int(came) :]

    def remove_all(self, bucket: Bucket, *, purge: bool) -> Iterator[tuple[int, list[Parked]]]:
        """Take out all tasks that are parked now, in their order. Each step runs one script."""
        until, since, last = 0, "0", ""
        while since:
            now, _, taken, following, last_id, *leaving = self._remove(bucket, purge, tuning.PAGE, since, until, last)
            yield int(taken), several(leaving)
            until, since, last = until or int(now), text(following), text(last_id)

    def take_for_original_queues(
        self, bucket: Bucket, queues: Sequence[str] = (), until: int = 0, *, overdue: float = 0.0
    ) -> tuple[int, list[Parked]]:
        """Return some tasks to the queues that they were sent to. The caller publishes them as they were sent.

        Args:
            bucket: of the parking lot.
            queues: only tasks that are set aside for one of these queues; empty: all tasks, in their order.
            until: microseconds since 1970, the store's clock: only tasks parked by then; 0: now.
            overdue: seconds. Without ``queues``, also returned tasks that would be returned once more within that time.

        Returns:
            The store's clock in microseconds since 1970, and the returned tasks; no tasks: none are left.
        """
        bounds = (tuning.MAX_REPLY_BYTES, tuning.PAGE, until, microseconds(overdue))
        times = (microseconds(tuning.PUBLISH_TIMEOUT), self._scripts.memory)
        now, *leaving = self._scripts.run(
            "take_for_original_queues", bucket, *times, bucket[1], *bounds, *map(encoded, queues)
        )
        return int(now), several(leaving)

    def _remove(self, bucket: Bucket, purge: bool, *which: str | int) -> Any:
        numbers = (int(purge), microseconds(tuning.PUBLISH_TIMEOUT), self._scripts.memory)
        return self._scripts.run("take_out", bucket, *numbers, bucket[1], tuning.MAX_REPLY_BYTES, *which)


class OccupiedBucketCache:
    """The buckets that have parked tasks, as far as one worker knows: a new request goes behind these tasks.

    Args:
        limits: by name. The cache has no turns of concurrency limits: a lease may be released earlier than expected.
    """

    def __init__(self, limits: Mapping[str, AnyLimit]) -> None:
        self._limits = limits
        self._occupied: OrderedDict[Bucket, None] = OrderedDict()
        self._turns: OrderedDict[Bucket, float] = OrderedDict()  # of the last task that left

    def note(self, bucket: Bucket) -> None:
        """Remember that tasks are parked in a bucket."""
        _remember(self._occupied, bucket, None)

    def note_turn(self, bucket: Bucket, at: float) -> None:
        """Remember the turn of a returned task, by the monotonic clock: tasks that are parked now have later turns."""
        limit = self._limits.get(bucket[0])
        if limit is not None and not isinstance(limit, Concurrency):
            _remember(self._turns, bucket, max(at, self._turns.get(bucket, 0.0)))

    def note_coming(self, message: Any, seconds: float) -> None:
        """Remember the turn of a message that has just left the backlog, and is due in that many seconds."""
        marker = marker_in(message)
        if "lot" in marker and not marker.get("again"):  # else it was sent back for another reason
            name, key = marker["lot"]
            self.note_turn((name, key), time.monotonic() + min(seconds, tuning.RETURN_AHEAD))

    def is_closed(self, bucket: Bucket) -> bool:
        """Whether a new request has no turn soon: returned tasks have earlier turns, even if no task is parked."""
        return self._turns.get(bucket, 0.0) - time.monotonic() > tuning.CLOSED_AHEAD

    def forget_turns(self, names: Container[str]) -> None:
        """Forget the turns of these limits, which have changed."""
        for bucket in [bucket for bucket in self._turns if bucket[0] in names]:
            del self._turns[bucket]

    def forget(self, bucket: Bucket) -> None:
        self._occupied.pop(bucket, None)

    def clear(self) -> None:
        self._occupied.clear()

    def lot_of(self, demands: Sequence[LimitRequest]) -> LimitRequest | None:
        """The first demand with parked tasks, or without a turn soon, in its bucket: a new request is parked there."""
        for demand in demands if self._occupied or self._turns else ():
            bucket = demand.name, demand.key
            if bucket in self._occupied or self.is_closed(bucket):
                return demand
        return None

    def looks_in(self, bucket: Bucket) -> float:
        """Seconds until a poll after a task is parked in an empty bucket."""
        turn = self._turns.get(bucket, 0.0) - time.monotonic()
        return min(
            tuning.POLL_INTERVAL,
            max(tuning.FIRST_POLL_DELAY, tuning.FIRST_POLL_SHARE * (turn - tuning.RETURN_DURATION)),
        )


def _remember(known: OrderedDict[Bucket, Any], bucket: Bucket, value: Any) -> None:
    known[bucket] = value
    known.move_to_end(bucket)
    if len(known) > tuning.MAX_KNOWN_BUCKETS:
        known.popitem(last=False)


def _indexes(scripts: Scripts, names: Sequence[str]) -> list[str]:
    """The keys of each limit that hold its parking lots and its tasks."""
    return [key for name in names for key in scripts.shared_keys(name)[:3:2]]


def _pages(several: Iterable[Sequence[_T]], size: int) -> Iterator[Sequence[_T]]:
    """Each of these, in parts of that size at most."""
    return (each[first : first + size] for each in several for first in range(0, len(each), size))
