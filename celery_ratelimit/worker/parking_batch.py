"""Those that stand behind others that are parked: one script parks those that have come in together, and, where it is
long until their turns, also those that come in one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from .._celery import Worker
from ..limiter.demand import Demand
from ..limiter.durations import microseconds
from ..limiter.outage import Outage
from ..parking.asks import Ended, asked, go_on
from ..parking.attendant import Attendant, ToBeParked
from ..parking.lot import ToPark
from ..parking.parked import Bucket
from .clock import monotonic
from .request import PendingRequest, State
from .request_queue import LEAST_PAUSE, LimitQueue
from .rules import Park
from .store_calls import StoreCalls

__all__ = ["ParkingBatch", "PendingPark"]

#: Requests that wait for others: as many as come in together.
MOST = 12
#: Requests that wait for an answer to others, and bytes of their messages, up to which more come in: some milliseconds
#: of the store's.
MOST_BEHIND, BYTES = 48, 200_000
#: Seconds after which those are looked at in any case who wait for an answer to others, that these are parked.
ON_THEIR_WAY = 0.1
#: Seconds for which they are parked one by one, after something that nobody has foreseen.
ALONE = 1.0


class PendingPark(NamedTuple):
    """A request that is parked in a moment, with others; ``since``: when that was decided."""

    limit_queue: LimitQueue
    pending: PendingRequest
    action: Park
    packed: ToPark
    since: float = 0.0

    @property
    def bucket(self) -> Bucket:
        return self.action.demand.name, self.action.demand.key


class ParkingBatch:
    """The requests that are parked in a moment.

    Args:
        worker: the worker.
        attendant: parks.
        outage: of the store.
        store_calls: to a store that is some way off.
        widen: makes room for another message in the place of one that has come.

    Attributes:
        store_calls: park those while the worker goes on.
        is_open: those that have come in together are moved on: who stands behind others is parked in a moment.
        on_wait: called when somebody waits for others that come later.
    """

    def __init__(
        self,
        worker: Worker,
        attendant: Attendant,
        outage: Outage,
        store_calls: StoreCalls,
        widen: Callable[[PendingRequest], None],
    ) -> None:
        self._worker, self._attendant, self._outage, self.store_calls = worker, attendant, outage, store_calls
        self._widen = widen
        self._leaving: dict[Bucket, list[PendingPark]] = {}
        self._on_their_way: list[dict[Bucket, list[PendingPark]]] = []
        self._alone_until = 0.0
        self._since = 0.0  # when the first of them came
        self.is_open = False
        self.on_wait: Callable[[], None] = lambda: None

    @contextmanager
    def collecting(self) -> Iterator[None]:
        self.is_open = True
        try:
            yield
        finally:
            self.is_open = False

    def accepts(self, bucket: Bucket, packed: ToPark, *, only_behind: bool) -> bool:
        """Whether a request of this lot is parked together with others. Where the worker waits for that, not one that
        may go before them, nor one that has been refused.
        """
        if self.store_calls.use_threads:
            return monotonic() >= self._alone_until
        goes_behind = packed.order >= 0 and packed.share is None
        return only_behind and (self.is_open or (goes_behind and self._attendant.occupied.gathers(bucket) > 0))

    def refusing_demand(self, demands: Sequence[Demand]) -> Demand | None:
        """The demand that has refused one that is parked in a moment: a request that comes now stands behind it."""
        each = demands if self._leaving or self._on_their_way else ()
        return next((demand for demand in each if self._is_closed((demand.name, demand.key))), None)

    def _is_closed(self, bucket: Bucket) -> bool:
        there = [batch[bucket] for batch in (self._leaving, *self._on_their_way) if bucket in batch]
        return any(not each.action.only_behind and not each.pending.gone for those in there for each in those)

    def add(self, leaving: PendingPark) -> None:
        leaving.limit_queue.park_soon(leaving.pending)
        now = monotonic()
        if not self._leaving:
            self._since = now
        self._leaving.setdefault(leaving.bucket, []).append(leaving._replace(since=now))
        if self._on_their_way and self._number <= MOST_BEHIND and self._bytes < BYTES:
            self._widen(leaving.pending)
        if not self.is_open:
            self.on_wait()

    def flush_delay(self) -> float:
        """Seconds for which they wait for others; 0.0: they are to be parked now, or nobody is here."""
        number = self._number
        if number and self._on_their_way:
            return ON_THEIR_WAY
        if not number or number >= MOST or self._worker.intake.is_full:
            return 0.0
        rest = self._since + min(map(self._attendant.occupied.gathers, self._leaving)) - monotonic()
        return rest if rest >= LEAST_PAUSE else 0.0

    @property
    def _number(self) -> int:
        return sum(map(len, self._leaving.values()))

    @property
    def _bytes(self) -> int:
        return sum(len(each.packed.message) for those in self._leaving.values() for each in those)

    def flush(
        self, done: Callable[[PendingPark, int | None], None], after: Callable[[list[LimitQueue]], None]
    ) -> list[LimitQueue]:
        """Park them all. Not while others are on their way, or they could be there first (:meth:`flush_delay`).

        Args:
            done: is called with each, and what the store says of it; ``None``: no answer came.
            after: is called with lines whose answers come later, as the worker has not waited for them.

        Returns:
            The lines of the others. Whoever is left there asks: in an outage, or if nobody is parked any more.
        """
        batch, self._leaving = self._leaving, {}
        heard = [each for together in batch.values() for each in together]
        try:
            with self._what_fails_together_goes_alone():
                for only_behind, part in self._parts(batch):
                    leaving = {bucket: [each for each in batch[bucket] if not each.pending.gone] for bucket in part}
                    leaving = {bucket: together for bucket, together in leaving.items() if together}
                    if not leaving or self._outage:
                        continue
                    pairs = {bucket: _packed(those) for bucket, those in leaving.items()}
                    if self.store_calls.use_threads and self._send(
                        leaving, pairs, done, after, only_behind=only_behind
                    ):
                        heard = [each for each in heard if each.bucket not in leaving]
                        continue
                    asks = self._attendant.parks(pairs, only_behind=only_behind)
                    said_of = self._outage.ask(partial(asked, asks), None)
                    _tell(leaving, said_of, done)
        finally:
            queues = _ask(heard)
        return queues

    def clear(self) -> None:
        """The connection is lost, or the worker stops: the broker has them all."""
        self._leaving.clear()
        self._on_their_way.clear()
        self.store_calls.close()

    @contextmanager
    def _what_fails_together_goes_alone(self) -> Iterator[None]:
        """For a while: whatever nobody has foreseen ends the request at which it is raised then, and no other."""
        try:
            yield
        except Exception:
            self._alone_until = monotonic() + ALONE
            raise

    def _parts(self, batch: Mapping[Bucket, Sequence[PendingPark]]) -> Iterator[tuple[bool, list[Bucket]]]:
        """Lots that go together; and whether those alone are parked that stand behind others: nobody was refused."""
        behind = {bucket: all(each.action.only_behind for each in those) for bucket, those in batch.items()}
        for only_behind in (False, True):
            for part in self._attendant.parking.parts(bucket for bucket in batch if behind[bucket] is only_behind):
                yield only_behind, part

    def _send(
        self,
        leaving: dict[Bucket, list[PendingPark]],
        pairs: ToBeParked,
        done: Callable[[PendingPark, int | None], None],
        after: Callable[[list[LimitQueue]], None],
        *,
        only_behind: bool,
    ) -> bool:
        """Park them, and go on. Not in an outage."""
        asks = self._attendant.parks(pairs, only_behind=only_behind)
        question = self._outage.ask(lambda: go_on(asks), None)
        if question is None or isinstance(question, Ended):
            return False

        def is_back(reply: Callable[[], Any], _: float) -> None:
            self._on_their_way = [each for each in self._on_their_way if each is not leaving]
            is_lost = False
            try:
                with self._what_fails_together_goes_alone():
                    said = self._outage.hear(lambda: go_on(asks, reply), None)
                    _tell(leaving, said.result if isinstance(said, Ended) else None, done)
            except self._worker.broker.connection_errors:
                is_lost = True  # Celery connects anew, and the broker has them all: nobody asks
                raise
            finally:
                if not is_lost:
                    after(_ask([each for those in leaving.values() for each in those]))

        self._on_their_way.append(leaving)
        self.store_calls.run(question, is_back)
        return True


def _tell(
    leaving: Mapping[Bucket, Sequence[PendingPark]],
    said_of: Mapping[Bucket, Sequence[int]] | None,
    done: Callable[[PendingPark, int | None], None],
) -> None:
    for bucket, those in leaving.items():
        admission: Sequence[int | None] = said_of[bucket] if said_of else [None] * len(those)
        for each, answer in zip(those, admission, strict=True):
            if not each.pending.gone:
                done(each, answer)


def _ask(everybody: Sequence[PendingPark]) -> list[LimitQueue]:
    """Those that are not parked. Returns the lines of all."""
    for each in everybody:
        if each.pending.state is State.PARKING:
            each.limit_queue.ask(each.pending)
    return list(dict.fromkeys(each.limit_queue for each in everybody))


def _packed(those: Sequence[PendingPark]) -> list[tuple[PendingRequest, ToPark]]:
    """Each with its message. Who has waited here has the place that it would have without waiting."""
    now, before, packed = monotonic(), float("inf"), []
    for each in those:
        before = min(before - 1, microseconds(now - each.since))
        aged = each.packed.since == 0 and before > 0
        packed.append((each.pending, each.packed._replace(since=-int(before)) if aged else each.packed))
    return packed
