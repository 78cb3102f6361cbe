"""Tasks that hold places while they run: they are given back when the task ends, however that is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._celery import Worker
from .lease_handover import LeaseHandover
from .request import PendingRequest

__all__ = ["LOOK_FOR_ENDS", "RunningLeases"]

#: Seconds after which places are given back whose tasks have ended untold.
LOOK_FOR_ENDS = 0.25


class RunningLeases:
    """Who runs with a place under :class:`~celery_ratelimit.Concurrency`.

    Args:
        worker: the worker.
        handover: gets the places back.
        on_end: called with the request of a task that has ended untold.
    """

    def __init__(self, worker: Worker, handover: LeaseHandover, on_end: Callable[[Any], None]) -> None:
        self._worker, self._handover, self._on_end = worker, handover, on_end
        self._held: dict[Any, PendingRequest] = {}
        self._cancel: Callable[[], None] | None = None

    def __contains__(self, request: Any) -> bool:
        return request in self._held

    def begin(self, pending: PendingRequest) -> None:
        self._held[pending.request] = pending
        self.watch()

    def end(self, request: Any) -> PendingRequest | None:
        """A task has ended. Returns what it was, if it held places: they go on to others, soon."""
        pending = self._held.pop(request, None)
        if pending is not None:
            self._handover.add(pending.id)
        return pending

    def give_back(self, pending: PendingRequest) -> None:
        """What it holds is free: now, or when the leases' thread comes to it. Raises nothing: its task goes its way."""
        self._handover.add(pending.id)
        self._handover.release_remaining()

    def watch(self) -> None:
        """Tasks end in ways that a pool does not tell."""
        if self._held and self._cancel is None:
            self._cancel = self._worker.timers.call_after(LOOK_FOR_ENDS, self._look)

    def close(self) -> None:
        """The connection is lost, or the worker stops. What runs runs on, and is looked for when there is another."""
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    def _look(self) -> None:
        self._cancel = None
        for request in [each for each in self._held if not self._worker.pool.has(each)]:
            self._on_end(request)
        self.watch()
