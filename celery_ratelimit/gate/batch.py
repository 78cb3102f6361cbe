"""Those that stand behind others that are parked: one script parks those that have come in together, and, where it is
long until their turns, also those that come in one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from .._celery import Worker
from ..limiter.durations import microseconds
from ..limiter.outage import Outage
from ..parking.attendant import Attendant
from ..parking.lot import ToPark
from ..parking.parked import Bucket
from .clock import monotonic
from .held import HeldRequest, State
from .line import LEAST_PAUSE, Line
from .verdict import Park

__all__ = ["Batch", "Leaving"]

#: Requests that wait for others: as many as come in together.
MOST = 12


class Leaving(NamedTuple):
    """A request that is parked in a moment, with others; ``since``: when that was decided."""

    line: Line
    held: HeldRequest
    verdict: Park
    packed: ToPark
    since: float = 0.0


class Batch:
    """The requests that are parked in a moment.

    Args:
        worker: the worker.
        attendant: parks.
        outage: of the store.

    Attributes:
        is_open: those that have come in together are moved on: who stands behind others is parked in a moment.
        on_wait: called when somebody waits for others that come later.
    """

    def __init__(self, worker: Worker, attendant: Attendant, outage: Outage) -> None:
        self._worker, self._attendant, self._outage = worker, attendant, outage
        self._leaving: dict[Bucket, list[Leaving]] = {}
        self._since = 0.0  # when the first of them came
        self.is_open = False
        self.on_wait: Callable[[], None] = lambda: None

    @contextmanager
    def open(self) -> Iterator[None]:
        self.is_open = True
        try:
            yield
        finally:
            self.is_open = False

    def takes(self, bucket: Bucket, packed: ToPark) -> bool:
        """Whether a newcomer of this lot is parked together with others: not one that may go before them."""
        goes_behind = packed.order >= 0 and packed.share is None
        return self.is_open or (goes_behind and self._attendant.occupied.gathers(bucket) > 0)

    def add(self, leaving: Leaving) -> None:
        demand = leaving.verdict.demand
        leaving.line.park_soon(leaving.held)
        now = monotonic()
        if not self._leaving:
            self._since = now
        self._leaving.setdefault((demand.name, demand.key), []).append(leaving._replace(since=now))
        if not self.is_open:
            self.on_wait()

    def pause(self) -> float:
        """Seconds for which they wait for others; 0.0: they are to be parked now, or nobody is here."""
        number = sum(map(len, self._leaving.values()))
        if not number or number >= MOST or self._worker.intake.is_full:
            return 0.0
        rest = self._since + min(map(self._attendant.occupied.gathers, self._leaving)) - monotonic()
        return rest if rest >= LEAST_PAUSE else 0.0

    def park(self, done: Callable[[Leaving, int | None], None]) -> list[Line]:
        """Park them all.

        Args:
            done: is called with each, and what the store says of it; ``None``: no answer came.

        Returns:
            The lines that they were in. Whoever is left there asks: in an outage, or if nobody is parked any more.
        """
        batch, self._leaving = self._leaving, {}
        everybody = [each for together in batch.values() for each in together]
        try:
            for part in self._attendant.parking.parts(batch):
                leaving = {bucket: [each for each in batch[bucket] if not each.held.gone] for bucket in part}
                leaving = {bucket: together for bucket, together in leaving.items() if together}
                if leaving and not self._outage:
                    pairs = {bucket: _packed(those) for bucket, those in leaving.items()}
                    said_of = self._outage.ask(partial(self._attendant.park, pairs, only_behind=True), None)
                    for bucket, those in leaving.items():
                        answers: Sequence[int | None] = said_of[bucket] if said_of else [None] * len(those)
                        for each, answer in zip(those, answers, strict=True):
                            done(each, answer)
        finally:
            for each in everybody:
                if each.held.state is State.IS_PARKED:
                    each.line.ask(each.held)
        return list(dict.fromkeys(each.line for each in everybody))


def _packed(those: Sequence[Leaving]) -> list[tuple[HeldRequest, ToPark]]:
    """Each with its message. Who has waited here has the place that it would have without waiting."""
    now, before, packed = monotonic(), float("inf"), []
    for each in those:
        before = min(before - 1, microseconds(now - each.since))
        aged = each.packed.since == 0 and before > 0
        packed.append((each.held, each.packed._replace(since=-int(before)) if aged else each.packed))
    return packed
