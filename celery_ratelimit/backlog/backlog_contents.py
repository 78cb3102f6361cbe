"""Finds, lists and counts the tasks in the parking lots, and takes tasks out before their turn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ..limiter.durations import microseconds
from ..store.keys import lots_key
from ..store.resp import bulk, text
from .messages import Bucket, Lot, Parked, Position, decoded, encoded, several
from .scripts import Scripts

__all__ = ["AGAIN", "BYTES", "FOUND", "LOTS", "PAGE", "BacklogContents"]

#: Bytes of messages after which one script's reply ends: a connection transfers so many in a moment.
BYTES = 512_000
#: Seconds after which a returned task is published once more, unless its message was reported to be at the broker.
AGAIN = 10.0
#: Parking lots that one script processes.
LOTS = 100
#: Returned, unconfirmed tasks of a parking lot that one command scans.
LEAVING = 500
#: Limits for which one script counts tasks.
COUNTED = 500
#: Tasks that one script takes out or lists, and look-ups of one script.
PAGE, FOUND = 75, 200


class BacklogContents:
    """The tasks in the parking lots of one fleet.

    Args:
        scripts: the scripts for its parking lots.
        memory: microseconds during which the broker may deliver an older copy of a message.
    """

    def __init__(self, scripts: Scripts, memory: int) -> None:
        self._scripts, self._memory = scripts, memory

    def occupied(self, names: Sequence[str]) -> list[str]:
        """The limits that have parked tasks."""
        found: list[str] = []
        for part in self._scripts.that_go_together(names):
            keys = [lots_key(self._scripts.prefix, name, self._scripts.fleet) for name in part]
            reply = self._scripts.call("count_lots", (), len(keys), len(keys), [bulk(*keys)]) if keys else ()
            found += [name for name, some in zip(part, reply, strict=True) if int(some)]
        return found

    def counts(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        """For each limit that has parking lots: how many, and how many tasks are parked in them."""
        found: dict[str, tuple[int, int]] = {}
        for part in [
            some[first : first + COUNTED]
            for some in self._scripts.that_go_together(names)
            for first in range(0, len(some), COUNTED)
        ]:
            keys = [key for name in part for key in self._scripts.shared_keys(name)[:3:2]]
            replies = iter(self._scripts.call("count_lots", (), len(keys), len(keys), [bulk(*keys)]))
            for name, lots, parked in zip(part, replies, replies, strict=False):
                if lots:
                    found[name] = int(lots), int(parked)
        return found

    def find(self, names: Sequence[str], tasks: Sequence[str]) -> Iterator[dict[Bucket, dict[str, str]]]:
        """Find parked tasks by id. Each step runs one script, and yields by bucket: the store's id -> the task's id."""
        together = self._scripts.that_go_together(names)
        for part in [those[i : i + FOUND] for those in together for i in range(0, len(those), FOUND)]:
            keys = [self._scripts.shared_keys(name)[2] for name in part]
            size = max(1, FOUND // len(part))
            for first in range(0, len(tasks), size):
                asked = tasks[first : first + size]
                arguments = bulk(*keys, *map(encoded, asked))
                reply = self._scripts.call("locate", (), len(keys), len(keys) + len(asked), [arguments])
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
                arguments = self._scripts.lot_keys(bucket)[2], cursor or 0, b"*%b*" % pattern, LEAVING
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
        """The parking lots of these limits that are not empty, without tasks. A script reads :data:`LOTS` of them."""
        for part in self._scripts.that_go_together(self.occupied(names)):
            buckets: list[Bucket] = []
            for page in self._buckets(part):
                buckets += page
                while len(buckets) >= LOTS:
                    yield from self._lots(buckets[:LOTS], None)
                    del buckets[:LOTS]
            if buckets:
                yield from self._lots(buckets, None)

    def _buckets(self, names: Sequence[str]) -> Iterator[list[Bucket]]:
        """The buckets of these limits that have parking lots. A round trip reads one page of each of some limits."""
        cursors, seen = dict.fromkeys(names, 0), set[Bucket]()
        while cursors:
            asked = list(cursors)[:LOTS]
            calls = [(self._scripts.shared_keys(name)[0], cursors[name], None, LOTS) for name in asked]
            for name, (cursor, page) in zip(asked, self._scripts.commands("zscan", calls), strict=True):
                found = [bucket for key, _ in page if (bucket := (name, text(key))) not in seen]
                seen.update(found)
                yield found
                cursors[name] = int(cursor)
                if not cursors[name]:
                    del cursors[name]

    def keys(self, name: str, *, aside: bool = False) -> Iterator[list[str]]:
        """Pages of the keys of a limit's buckets that have parking lots; ``aside``: that have tasks set aside."""
        lots, _, _, asides, *_ = self._scripts.shared_keys(name)
        seen, cursor = set[str](), None
        while cursor != 0:
            cursor, page = self._scripts.command("zscan", asides if aside else lots, cursor or 0, None, LOTS)
            keys = [key for key in dict.fromkeys([text(key) for key, _ in page]) if key not in seen]
            seen.update(keys)
            yield keys

    def lot(self, bucket: Bucket, first: int, last: int) -> Lot:
        """The parking lot of one bucket, with its tasks from ``first`` to ``last``, counted from 0; -1: the last one.

        The list ends earlier if the messages are longer than one reply may be.
        """
        return self._lots([bucket], (first, last))[0]

    def _lots(self, buckets: Sequence[Bucket], which: tuple[int, int] | None) -> list[Lot]:
        asked: list[str] = []
        for bucket in buckets:
            parked, messages, leaving, _, _, _, aside, _, _, _, _, costs, *_ = self._scripts.lot_keys(bucket)
            asked += [parked, leaving, messages, aside, costs]
        arguments = (*(which or ("", "")), BYTES, *[key for _, key in buckets])
        number = len(asked)
        _, *found = self._scripts.call("list_lots", (), number, number + len(arguments), [bulk(*asked, *arguments)])
        return [
            Lot(*bucket, int(parked), int(leaving), int(float(oldest)) / 1e6, int(cost), tuple(several(tasks)))
            for bucket, (parked, leaving, oldest, cost, *tasks) in zip(buckets, found, strict=True)
        ]

    # -- To take it out --------------------------------------------------------------------------------------------

    def remove(self, bucket: Bucket, ids: Sequence[str], *, purge: bool) -> tuple[int, list[Parked], Sequence[str]]:
        """Take tasks out before their turn. The caller publishes them; with ``purge`` they are deleted.

        Returns:
            How many tasks were taken out, their messages (none with ``purge``), and the ids that were not processed.
        """
        _, came, taken, _, _, *leaving = self._remove(bucket, purge, 0, "", 0, "", *ids[:PAGE])
        return int(taken), several(leaving), ids[int(came) :]

    def remove_all(self, bucket: Bucket, *, purge: bool) -> Iterator[tuple[int, list[Parked]]]:
        """Take out all tasks that are parked now, in their order. Each step runs one script."""
        until, since, last = 0, "0", ""
        while since:
            now, _, taken, following, last_id, *leaving = self._remove(bucket, purge, PAGE, since, until, last)
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
        numbers = (microseconds(AGAIN), self._memory, bucket[1], BYTES, PAGE, until, microseconds(overdue))
        now, *leaving = self._scripts.run("return_to_queue", bucket, *numbers, *map(encoded, queues))
        return int(now), several(leaving)

    def _remove(self, bucket: Bucket, purge: bool, *which: str | int) -> Any:
        numbers = (int(purge), microseconds(AGAIN), self._memory, bucket[1], BYTES)
        return self._scripts.run("remove", bucket, *numbers, *which)
