"""What is in the lots: which tasks are where, and how they are taken out before their turn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ..limiter.durations import microseconds
from ..store.keys import lots_key
from ..store.resp import bulk, text
from .messages import Bucket, FairPosition, Lot, Parked, several
from .scripts import Scripts

__all__ = ["AGAIN", "BYTES", "FOUND", "LOTS", "PAGE", "BacklogContents"]

#: Bytes of messages after which one script has no more: what a connection takes in a moment.
BYTES = 512_000
#: Seconds after which a task that has left the lot, and was not reported to be at the broker, is published once more.
AGAIN = 10.0
#: Lots that one script tells of.
LOTS = 100
#: Tasks on their way out of a lot that one command looks through.
LEAVING = 500
#: Limits whose tasks are counted in one go.
COUNTED = 500
#: Tasks that are taken out or listed in one script, and look-ups in one.
PAGE, FOUND = 75, 200


class BacklogContents:
    """The tasks in the lots of one fleet.

    Args:
        scripts: of its lots.
        memory: microseconds for which the broker may hand out an older copy of a message.
    """

    def __init__(self, scripts: Scripts, memory: int) -> None:
        self._scripts, self._memory = scripts, memory

    def occupied(self, names: Sequence[str]) -> list[str]:
        """Those of the limits that have lots in which somebody is parked."""
        found: list[str] = []
        for part in self._scripts.that_go_together(names):
            keys = [lots_key(self._scripts.prefix, name, self._scripts.fleet) for name in part]
            reply = self._scripts.call("count_lots", (), len(keys), len(keys), [bulk(*keys)]) if keys else ()
            found += [name for name, some in zip(part, reply, strict=True) if int(some)]
        return found

    def counts(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Of each limit that has lots how many there are, and how many tasks are parked in them."""
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
        """Where tasks are parked: of each that is, what the store knows it by, and its own id. One script a step."""
        together = self._scripts.that_go_together(names)
        for part in [those[i : i + FOUND] for those in together for i in range(0, len(those), FOUND)]:
            keys = [self._scripts.shared_keys(name)[2] for name in part]
            size = max(1, FOUND // len(part))
            for first in range(0, len(tasks), size):
                asked = tasks[first : first + size]
                reply = self._scripts.call("locate", (), len(keys), len(keys) + len(asked), [bulk(*keys, *asked)])
                found: dict[Bucket, dict[str, str]] = {}
                for name, places in zip(part, reply, strict=True):
                    for place in places:
                        task, id, key = text(place).split("\0", 2)
                        found.setdefault((name, key), {})[id] = task
                yield found

    def find_leaving(self, names: Sequence[str], task: str) -> Iterator[tuple[Bucket, str]]:
        """Tasks that have left their lots and are not known to be at the broker, whose ids have ``task`` in them.

        Such tasks are in no index: this reads all lots of these limits. To be called once ``find`` has found nothing.
        """
        pattern = re.sub(r"([*?\[\\])", r"\\\1", task).encode(errors="surrogatepass")
        for lot in self.lots(names):
            bucket, cursor = (lot.name, lot.key), None
            while lot.leaving and cursor != 0:
                arguments = self._scripts.lot_keys(bucket)[2], cursor or 0, b"*%b*" % pattern, LEAVING
                cursor, page = self._scripts.command("zscan", *arguments)
                yield from [(bucket, text(id)) for id, _ in page]

    def place(self, bucket: Bucket, id: str) -> tuple[int, str, int, int, int, bytes | str]:
        """Where in a lot a task is, by what the store knows it by: what ``lua/position.lua`` says."""
        now, where, before, number, cost, kept = self._scripts.run("position", bucket, id, bucket[1])
        return int(now), text(where), int(before), int(number), int(cost), kept

    def turn(self, bucket: Bucket, id: str, weights: str) -> FairPosition | None:
        """About how much comes before a task in a lot that is shared; ``None``: it is in no index.

        Args:
            bucket: whose lot.
            id: what the store knows the task by.
            weights: those in the code, as :func:`~celery_ratelimit.backlog.scripts.weights_text` has them.
        """
        said, tasks, permits = self._scripts.run("fair_position", bucket, id, bucket[1], weights)
        weight = float(said)
        if weight < 0:
            return None
        return FairPosition(int(tasks), float(permits) if weight else None, weight)

    def lots(self, names: Sequence[str]) -> Iterator[Lot]:
        """The lots of these limits that are not empty, without their tasks. One script for :data:`LOTS` of them."""
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
        """The buckets of these limits that have lots: a page of each of some limits in one round trip."""
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
        """Keys of the buckets of a limit that have lots, some at a time; ``aside``: in which somebody is aside."""
        lots, _, _, asides, *_ = self._scripts.shared_keys(name)
        seen, cursor = set[str](), None
        while cursor != 0:
            cursor, page = self._scripts.command("zscan", asides if aside else lots, cursor or 0, None, LOTS)
            keys = [key for key in dict.fromkeys([text(key) for key, _ in page]) if key not in seen]
            seen.update(keys)
            yield keys

    def lot(self, bucket: Bucket, first: int, last: int) -> Lot:
        """The lot of one bucket, with its tasks from ``first`` to ``last``, counted from 0; -1: the last one.

        As many of them as one reply may hold.
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
        """Take tasks out before their turn: to be published by whoever calls, or (``purge``) never.

        Returns:
            How many were parked, their messages unless they are thrown away, and the ids to which it did not come.
        """
        _, came, taken, _, _, *leaving = self._remove(bucket, purge, 0, "", 0, "", *ids[:PAGE])
        return int(taken), several(leaving), ids[int(came) :]

    def remove_all(self, bucket: Bucket, *, purge: bool) -> Iterator[tuple[int, list[Parked]]]:
        """The same with all that are parked now, in their order, one script a step."""
        until, since, last = 0, "0", ""
        while since:
            now, _, taken, following, last_id, *leaving = self._remove(bucket, purge, PAGE, since, until, last)
            yield int(taken), several(leaving)
            until, since, last = until or int(now), text(following), text(last_id)

    def return_to_queue(
        self, bucket: Bucket, queues: Sequence[str] = (), until: int = 0, *, overdue: float = 0.0
    ) -> tuple[int, list[Parked]]:
        """Let some out to the queues that they were sent to. Whoever calls publishes them, as they were sent.

        Args:
            bucket: whose lot.
            queues: only those that are aside for one of them; none: all, in their order.
            until: microseconds since 1970, the store's clock: those who were parked by then; 0: now.
            overdue: seconds; with all, those that have left and would be let out once more by then.

        Returns:
            The store's clock, and those who leave; none: there are no more.
        """
        numbers = (microseconds(AGAIN), self._memory, bucket[1], BYTES, PAGE, until, microseconds(overdue))
        now, *leaving = self._scripts.run("return_to_queue", bucket, *numbers, *queues)
        return int(now), several(leaving)

    def _remove(self, bucket: Bucket, purge: bool, *which: str | int) -> Any:
        numbers = (int(purge), microseconds(AGAIN), self._memory, bucket[1], BYTES)
        return self._scripts.run("remove", bucket, *numbers, *which)
