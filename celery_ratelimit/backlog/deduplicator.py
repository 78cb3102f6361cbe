"""What comes back from a lot: the store is told, and says which copy of a message may run.

It is told when one of those that have come asks for its permit, in the same script; if none of them asks for long, by a
script of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from .._celery import Worker
from .._celery.saved_message import copy_in, marker_in
from ..limiter.calls import Along
from ..limiter.demand import Demand
from ..limiter.outage import Outage
from .backlog import Backlog
from .messages import Bucket

__all__ = ["ArrivalCheck", "Deduplicator"]

#: Seconds after which it is told which messages have come, if none of them has asked: they wait for their slots, which
#: are no further away than a second, or for a process. Less than the time after which who is not told of is sent anew.
TELL = 2.0
#: Seconds after which it is told in an outage, if that is over then.
IN_AN_OUTAGE = 0.2


class Arrived(Protocol):
    """A request in the gate: what the store knows it by, what it asks, and how often it was sent anew since it was not
    known whether it was parked.
    """

    request: Any
    id: str
    demands: tuple[Demand, ...]
    shadow: tuple[Demand, ...]
    unconfirmed_parks: int


class ArrivalCheck:
    """Copies of which the store is told with a question for permits, and what it has said of them.

    Attributes:
        along: what it is told.
        may: of each copy whether it may run; empty as long as there is no answer.
        answered: how many of those that ask have an answer.
    """

    def __init__(self, along: Along) -> None:
        self.along = along
        self.may: Sequence[bool] = ()
        self.answered = 0


class Deduplicator:
    """Messages that have come back to one worker.

    Args:
        worker: the worker.
        parking: the lots.
        outage: while it lasts nobody asks the store.
    """

    def __init__(self, worker: Worker, parking: Backlog, outage: Outage) -> None:
        self._worker, self._parking, self._outage = worker, parking, outage
        self._arriving: dict[Bucket, dict[str, int]] = {}
        self._since: dict[Bucket, float] = {}  # when the first of them came
        self._barred: set[tuple[str, int]] = set()
        self._beside: set[tuple[str, int]] = set()  # copies that came while another one of their tasks was untold
        self._telling = threading.Lock()
        self._at_once = False
        self._cancel_telling: Callable[[], None] | None = None

    def on_message(self, message: Any) -> None:
        """A message has come in. If it comes from a lot, the store is told, together with those that come now."""
        copy = copy_in(message)
        if copy:
            name, key = copy["lot"]
            self._note((name, key), {str(copy["id"]): int(copy["copy"])})
            self._since.setdefault((name, key), time.monotonic())
            if self._cancel_telling is None:
                self._cancel_telling = self._worker.timers.call_after(TELL, self._tell)

    def asks_along(self, held: Arrived) -> bool:
        """Whether the store is told of a request when that asks for its permit, and says then whether it may run."""
        if self._telling.locked():  # where greenlets switch, the answer is on its way
            return False
        request = held.request
        copy, again = copy_in(request.message), marker_in(request.message).get("again")
        if not copy or request.delivery_info.get("redelivered") or again:
            return False
        name, key = copy["lot"]
        has_come = self._arriving.get((name, key), {}).get(held.id) == int(copy["copy"])
        return has_come and self._parking.can_park and self._parking.copies.can_be_told_along(held.demands, (name, key))

    @contextmanager
    def told_along(self, asking: Sequence[Arrived]) -> Iterator[ArrivalCheck | None]:
        """Requests that ask the same ask now: who has come from their lots is told with that. ``None``: nobody has."""
        those = [held for held in asking if self.asks_along(held)]
        if not those:
            yield None
            return
        pairs = [(held.id, int(copy_in(held.request.message).get("copy", 0))) for held in asking]
        lots = dict.fromkeys(tuple(copy_in(held.request.message)["lot"]) for held in those)
        with self._telling:
            copies_of = {lot: self._take(lot) for lot in lots}
            told = ArrivalCheck(self._parking.copies.along(copies_of, pairs))
            try:
                yield told
            finally:
                if told.may:
                    self._bar(copies_of, told.may)
                    self._barred.difference_update(pairs[: told.answered])  # they have heard it
                else:
                    self._put_back(copies_of)

    def may_run(self, held: Arrived) -> bool:
        """Whether a request is the one copy of its task that may run.

        Raises what the store raises, where it has to be asked.
        """
        request = held.request
        said = copy_in(request.message)
        copy = int(said.get("copy", 0))
        if request.delivery_info.get("redelivered") or marker_in(request.message).get("again"):
            # It may have been parked before its worker was killed, or before the store's answer was lost; in the lot of
            # any of its limits.
            buckets = [(demand.name, demand.key) for demand in (*held.demands, *held.shadow)]
            return not any(
                self._parking.copies.arrive(bucket, {held.id: copy}, held.unconfirmed_parks) for bucket in buckets
            )
        if copy and (self._telling.locked() or any(held.id in copies for copies in self._arriving.values())):
            self._tell_all()
        if (held.id, copy) in self._barred:
            self._barred.discard((held.id, copy))
            return False
        if (held.id, copy) in self._beside:
            name, key = said["lot"]
            may = not self._parking.copies.arrive((name, key), {held.id: copy})
            self._beside.discard((held.id, copy))
            return may
        return True

    def tell_soon(self) -> None:
        """After an outage: a worker that looks at the lots might send once more what has come meanwhile."""
        self._at_once = bool(self._arriving)
        if self._arriving and self._cancel_telling is None:
            self._cancel_telling = self._worker.timers.call_after(0, self._tell)

    def _tell(self) -> None:
        self._cancel_telling = None
        if self._outage:
            self._cancel_telling = self._worker.timers.call_after(IN_AN_OUTAGE, self._tell)
            return
        rest = min(self._since.values(), default=float("inf")) + TELL - time.monotonic()
        if 0 < rest <= TELL and not self._at_once:
            self._cancel_telling = self._worker.timers.call_after(rest, self._tell)
        elif self._parking.can_park:
            self._at_once = False
            self._outage.ask(self._tell_all, None)

    def _tell_all(self) -> None:
        with self._telling:  # where greenlets switch, others come in while the store is being told
            while self._arriving:
                copies_of = {bucket: self._take(bucket) for bucket in self._parking.parts(self._arriving)[0]}
                try:
                    barred = self._parking.copies.arrive_all(copies_of)
                except BaseException:
                    self._put_back(copies_of)
                    raise
                every = [(bucket, id) for bucket, copies in copies_of.items() for id in copies]
                self._bar(copies_of, [each not in barred for each in every])

    def _put_back(self, copies_of: Mapping[Bucket, Mapping[str, int]]) -> None:
        """No answer has come."""
        for bucket, copies in copies_of.items():
            came, self._arriving[bucket] = self._arriving.get(bucket, {}), dict(copies)
            self._note(bucket, came)
            self._since.setdefault(bucket, time.monotonic())

    def _note(self, bucket: Bucket, copies: Mapping[str, int]) -> None:
        """They have come. Of two copies of a task the one that came first is told of; the other one asks for itself."""
        arriving = self._arriving.setdefault(bucket, {})
        for id, copy in copies.items():
            if arriving.setdefault(id, copy) != copy:
                self._beside.add((id, copy))

    def _take(self, bucket: Bucket) -> dict[str, int]:
        """Those of one lot, to be told now."""
        self._since.pop(bucket, None)
        return self._arriving.pop(bucket)

    def _bar(self, copies_of: Mapping[Bucket, Mapping[str, int]], may: Sequence[bool]) -> None:
        every = [pair for copies in copies_of.values() for pair in copies.items()]
        self._barred.difference_update(every)  # of a task that was sent again there is a copy of each number once more
        self._barred.update(pair for pair, runs in zip(every, may, strict=True) if not runs)

    def close(self) -> None:
        if self._cancel_telling is not None:
            self._cancel_telling()
            self._cancel_telling = None
        self._arriving.clear()
        self._beside.clear()
        self._since.clear()
