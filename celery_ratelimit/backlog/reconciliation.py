"""Repairs the keys of the backlog after the store has lost some: it evicted keys, or was restored in part."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import NamedTuple

from ..store.resp import text
from . import tuning
from .messages import Bucket
from .scripts import Scripts

__all__ = ["Reconciled", "Reconciliation"]

logger = logging.getLogger("celery_ratelimit")


class Reconciled(NamedTuple):
    """The changes of one step.

    Attributes:
        again: number of tasks that had lost their places. They are parked again.
        removed: number of places that had lost their messages. They are removed: these tasks are lost.
    """

    again: int
    removed: int


class Reconciliation:
    """Compares the keys of parking lots, some at a time. Two workers may do so at once.

    Either of two indexes leads to a parking lot. If both are lost, a parking lot with a key is found when the next task
    is parked there.

    Args:
        scripts: the scripts for the parking lots.
        memory: microseconds during which the broker may deliver an older copy of a message.
    """

    def __init__(self, scripts: Scripts, memory: int) -> None:
        self._scripts, self._memory = scripts, memory
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

    def step(self, name: str) -> Reconciled:
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
        return Reconciled(again, removed)

    def _compare(self, lots: Sequence[Bucket], entries: dict[Bucket, list[str]]) -> Sequence[Sequence[bytes]]:
        arguments: list[str | int] = [self._memory, tuning.COMPARED]
        for bucket in lots:
            arguments += [bucket[1], *self._positions.get(bucket, (0, "0")), len(entries[bucket]), *entries[bucket]]
        reply: Sequence[Sequence[bytes]] = self._scripts.of_lots("reconcile", lots, *arguments)
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
