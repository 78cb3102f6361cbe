"""Those that have come in together, and stand behind others that are parked: one script parks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from ..limiter.outage import Outage
from ..parking.attendant import Attendant
from ..parking.lot import ToPark
from ..parking.parked import Bucket
from .held import HeldRequest, State
from .line import Line
from .verdict import Park

__all__ = ["Batch", "Leaving"]


class Leaving(NamedTuple):
    """A request that is parked in a moment, with others."""

    line: Line
    held: HeldRequest
    verdict: Park
    packed: ToPark


class Batch:
    """The requests that have come in together.

    Args:
        attendant: parks.
        outage: of the store.

    Attributes:
        is_open: they are moved on: who stands behind others is parked in a moment.
    """

    def __init__(self, attendant: Attendant, outage: Outage) -> None:
        self._attendant, self._outage = attendant, outage
        self._leaving: dict[Bucket, list[Leaving]] = {}
        self.is_open = False

    @contextmanager
    def open(self) -> Iterator[None]:
        self.is_open = True
        try:
            yield
        finally:
            self.is_open = False

    def add(self, leaving: Leaving) -> None:
        demand = leaving.verdict.demand
        leaving.line.park_soon(leaving.held)
        self._leaving.setdefault((demand.name, demand.key), []).append(leaving)

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
            for part in self._attendant.parts(batch):
                leaving = {bucket: [each for each in batch[bucket] if not each.held.gone] for bucket in part}
                leaving = {bucket: together for bucket, together in leaving.items() if together}
                if leaving and not self._outage:
                    pairs = {bucket: [(each.held, each.packed) for each in those] for bucket, those in leaving.items()}
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
