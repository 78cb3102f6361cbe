"""Makes the keys of the backlog agree again, after the store has lost some of them: evicted, or restored in part."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import NamedTuple

from ..store.resp import text
from .messages import Bucket
from .scripts import Scripts

__all__ = ["Reconciled", "Reconciliation"]

logger = logging.getLogger("celery_ratelimit")

#: Entries of an index that one step reads, entries of a lot that one script compares, and scripts of one step: a
#: millisecond of the store's time for each.
PAGE, COMPARED, SCRIPTS = 50, 250, 20
#: Limits that one review compares.
REVIEWED = 10


class Reconciled(NamedTuple):
    """What a step has changed.

    Attributes:
        again: tasks that had lost their place, and are parked again.
        removed: places that had lost their messages, and are removed: these tasks are lost.
    """

    again: int
    removed: int


class Reconciliation:
    """Compares the lots of limits, some at a time. Two workers may do so at once.

    A lot is found by either of two indexes. If both are lost, a lot with a key is found when a task is parked there.

    Args:
        scripts: of the lots.
        memory: microseconds for which the broker may hand out an older copy of a message.
    """

    def __init__(self, scripts: Scripts, memory: int) -> None:
        self._scripts, self._memory = scripts, memory
        self._cursors: dict[str, tuple[int, int]] = {}
        self._positions: dict[Bucket, tuple[int, str]] = {}  # of lots that are not compared to their end

    def review(self, names: Sequence[str]) -> None:
        """Take a step with some of these limits, and log what the store has lost."""
        for name in random.sample(names, min(REVIEWED, len(names))):
            again, removed = self.step(name)
            if again or removed:
                logger.error(
                    "The store has lost keys of the limit %r: %d tasks are parked again, %d parked tasks are lost. "
                    "Does it evict keys (maxmemory-policy), or was it restored in part?",
                    *(name, again, removed),
                )

    def step(self, name: str) -> Reconciled:
        """Compare the next lots of a limit, and go on from there the next time."""
        entries = self._next_lots(name)
        again = removed = 0
        for _ in range(SCRIPTS):
            lots = list(entries)[:PAGE]
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
        return Reconciled(again, removed)

    def _compare(self, lots: Sequence[Bucket], entries: dict[Bucket, list[str]]) -> Sequence[Sequence[bytes]]:
        arguments: list[str | int] = [self._memory, COMPARED]
        for bucket in lots:
            arguments += [bucket[1], *self._positions.get(bucket, (0, "0")), len(entries[bucket]), *entries[bucket]]
        reply: Sequence[Sequence[bytes]] = self._scripts.of_lots("reconcile", lots, *arguments)
        return reply

    def _next_lots(self, name: str) -> dict[Bucket, list[str]]:
        """The lots that come next in the indexes, each with entries of ``where``; and those that are not done."""
        lots, _, where, *_ = self._scripts.shared_keys(name)
        at_lots, at_where = self._cursors.get(name, (0, 0))
        at_lots, keys = self._scripts.command("zscan", lots, at_lots, None, PAGE)
        at_where, places = self._scripts.command("zscan", where, at_where, None, PAGE)
        self._cursors[name] = at_lots, at_where
        entries: dict[Bucket, list[str]] = {bucket: [] for bucket in self._positions if bucket[0] == name}
        for key in ["", *[text(key) for key, _ in keys]]:
            entries.setdefault((name, key), [])
        for place in [text(place) for place, _ in places]:
            entries.setdefault((name, place.split("\0", 2)[2]), []).append(place)
        return entries
