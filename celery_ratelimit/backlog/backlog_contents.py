"""Finds, lists and counts the tasks in the parking lots, and takes tasks out before their turn."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

from ..limiter.limit_request import microseconds
from ..store.resp import text
from . import tuning
from .messages import Bucket, Lot, Parked, Position, decoded, encoded, several
from .scripts import Scripts

__all__ = ["BacklogContents"]

_T = TypeVar("_T")
#: The keys of a parking lot that ``lua/list_lots.lua`` reads: parked, leaving, messages, aside, costs.
_LISTED = (0, 2, 1, 6, 11)


class BacklogContents:
    """The tasks in the parking lots of one fleet.

    Args:
        scripts: the scripts for its parking lots.
    """

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def occupied(self, names: Sequence[str]) -> list[str]:
        """The limits that have parked tasks."""
        return list(self.counts(names))

    def counts(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        """For each limit that has parking lots: how many, and how many tasks are parked in them."""
        parts = list(_pages(self._scripts.that_go_together(names), tuning.SCANNED_AT_ONCE))
        keys = [[key for name in part for key in self._scripts.shared_keys(name)[:3:2]] for part in parts]
        found: dict[str, tuple[int, int]] = {}
        for part, reply in zip(parts, self._scripts.each_with_keys("count_lots", keys), strict=True):
            for name, lots, parked in zip(part, reply[::2], reply[1::2], strict=True):
                if lots:
                    found[name] = int(lots), int(parked)
        return found

    def find(self, names: Sequence[str], tasks: Sequence[str]) -> Iterator[dict[Bucket, dict[str, str]]]:
        """Find parked tasks by id. Each step runs one script, and yields by bucket: the store's id -> the task's id."""
        for part in _pages(self._scripts.that_go_together(names), tuning.LOOKUPS):
            keys = [self._scripts.shared_keys(name)[2] for name in part]
            for asked in _pages([tasks], max(1, tuning.LOOKUPS // len(part))):
                reply = self._scripts.with_keys("locate", keys, *map(encoded, asked))
                found: dict[Bucket, dict[str, str]] = {}
                for name, places in zip(part, reply, strict=True):
                    for place in places:
                        task, id, key = text(place).split("\0", 2)
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
        """The position of a task in a parking lot.

        Args:
            bucket: of the parking lot.
            id: the store's id of the task.
            weights: the weights in the code, written by :func:`~celery_ratelimit.backlog.scripts.weights_text`.
        """
        now, where, before, number, cost, stored, weight, tasks = self._scripts.run(
            "position", bucket, id, bucket[1], weights
        )
        (parked,) = several([id, 0, stored])
        position = Position(int(now), text(where), int(before), int(number), int(cost), parked)
        if float(weight) < 0:
            return position
        return position._replace(before=int(tasks), weight=float(weight))

    def lots(self, names: Sequence[str]) -> Iterator[Lot]:
        """The parking lots of these limits that are not empty, without tasks."""
        buckets = list(chain.from_iterable(self._buckets(self.occupied(names))))
        for some in _pages([buckets], tuning.READ_AT_ONCE):
            yield from self._lots(some, None)

    def keys(self, name: str, *, aside: bool = False) -> Iterator[list[str]]:
        """Pages of the keys of a limit's buckets that have parking lots; ``aside``: that have tasks set aside."""
        return ([key for _, key in page] for page in self._buckets([name], aside=aside))

    def _buckets(self, names: Sequence[str], *, aside: bool = False) -> Iterator[list[Bucket]]:
        """The buckets of these limits that have parking lots. A round trip reads one page of each of some limits."""
        cursors, seen, most = dict.fromkeys(names, 0), set[Bucket](), tuning.READ_AT_ONCE
        while cursors:
            asked = list(cursors)[:most]
            calls = [(self._scripts.shared_keys(name)[3 if aside else 0], cursors[name], None, most) for name in asked]
            for name, (cursor, page) in zip(asked, self._scripts.commands("zscan", calls), strict=True):
                found = [bucket for key, _ in page if (bucket := (name, text(key))) not in seen]
                seen.update(found)
                yield list(dict.fromkeys(found))
                cursors[name] = int(cursor)
                if not cursors[name]:
                    del cursors[name]

    def lot(self, bucket: Bucket, first: int, last: int) -> Lot:
        """The parking lot of one bucket, with its tasks from ``first`` to ``last``, counted from 0; -1: the last one.

        The list ends earlier if the messages are longer than one reply may be.
        """
        return self._lots([bucket], (first, last))[0]

    def _lots(self, buckets: Sequence[Bucket], page: tuple[int, int] | None) -> list[Lot]:
        by_name: dict[str, list[Bucket]] = {}
        for bucket in buckets:
            by_name.setdefault(bucket[0], []).append(bucket)
        together = self._scripts.that_go_together(list(by_name))
        parts = [[bucket for name in names for bucket in by_name[name]] for names in together]
        keys, arguments = [], []
        for part in parts:
            lots = [self._scripts.lot_keys(bucket) for bucket in part]
            keys.append([lot[which] for lot in lots for which in _LISTED])
            arguments.append((*(page or ("", "")), tuning.MAX_REPLY_BYTES, *[key for _, key in part]))
        return [
            Lot(*bucket, int(parked), int(leaving), int(float(oldest)) / 1e6, int(cost), tuple(several(tasks)))
            for part, (_, *found) in zip(parts, self._scripts.each_with_keys("list_lots", keys, arguments), strict=True)
            for bucket, (parked, leaving, oldest, cost, *tasks) in zip(part, found, strict=True)
        ]

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

    def return_to_queue(
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
        now, *leaving = self._scripts.run("return_to_queue", bucket, *times, bucket[1], *bounds, *map(encoded, queues))
        return int(now), several(leaving)

    def _remove(self, bucket: Bucket, purge: bool, *which: str | int) -> Any:
        numbers = (int(purge), microseconds(tuning.PUBLISH_TIMEOUT), self._scripts.memory)
        return self._scripts.run("remove", bucket, *numbers, bucket[1], tuning.MAX_REPLY_BYTES, *which)


def _pages(several: Iterable[Sequence[_T]], size: int) -> Iterator[Sequence[_T]]:
    """Each of these, in parts of that size at most."""
    return (each[first : first + size] for each in several for first in range(0, len(each), size))
