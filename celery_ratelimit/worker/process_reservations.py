"""Processes of one worker's pool that are reserved for permits. Times are of ``time.monotonic``."""

from __future__ import annotations

from bisect import insort

from .._celery import Pool
from .request import AcquireCall
from .request_queue import ASK_EARLY

__all__ = ["ProcessReservations"]


class ProcessReservations:
    """For permits that were taken, or are being asked for. Tasks that are short may have one process, one after the
    other.

    Args:
        pool: knows how long tasks take.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._grants: list[tuple[float, float]] = []  # when, and the share of a process until the next may begin
        self._acquiring: dict[AcquireCall, float] = {}

    @property
    def times(self) -> list[float]:
        """When the permits are good."""
        return [at for at, _ in self._grants]

    def add(self, at: float, name: str) -> None:
        """A permit was taken for a task of this name that is held; it is good at that time."""
        insort(self._grants, (at, self._share(name)))

    def take_back(self, at: float) -> None:
        """Undo :meth:`add`: the task starts, or does not."""
        self._grants.remove(next(each for each in self._grants if each[0] == at))

    def acquire(self, call: AcquireCall, name: str) -> None:
        """Permits are asked for, for tasks of this name."""
        self._acquiring[call] = len(call.requests) * self._share(name)

    def end_acquiring(self, call: AcquireCall) -> None:
        """Undo :meth:`acquire`."""
        self._acquiring.pop(call, None)

    def by(self, until: float) -> float:
        """Processes for permits that are good by then, or are being asked for."""
        promised = sum(self._acquiring.values(), 0.0)
        for at, share in self._grants:
            if at > until:
                break
            promised += share
        return promised

    def after(self, until: float) -> int:
        """Permits that are good later."""
        return sum(at > until for at, _ in self._grants)

    def clear(self) -> None:
        self._grants.clear()
        self._acquiring.clear()

    def _share(self, name: str) -> float:
        """Of a process, until the next task may begin."""
        return min(1.0, self._pool.mean_runtime(name) / ASK_EARLY)
