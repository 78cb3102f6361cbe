"""Requests that nothing holds up: without limits, or with none but limits in shadow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .._celery import requests
from ..limiter.demand import Demand
from .clock import monotonic
from .pool_scheduler import PoolScheduler
from .reporting import Reporter, permit_of
from .request import Unlimited

__all__ = ["UnlimitedAdmission"]


class UnlimitedAdmission:
    """Lets requests pass.

    Args:
        pool_scheduler: to the pool.
        numbers: of the worker's requests.
        reporter: is told of those that pass limits in shadow.
        run: moves lines on.
    """

    def __init__(
        self, pool_scheduler: PoolScheduler, numbers: Iterator[int], reporter: Reporter, run: Callable[[], None]
    ) -> None:
        self._pool_scheduler, self._numbers, self._reporter, self._run = pool_scheduler, numbers, reporter, run

    def let(self, request: Any, queue: str, shadow: tuple[Demand, ...] = ()) -> None:
        """It passes, unless others wait for a process, or are about to have their turn."""
        requests.restore(request)
        waiting = Unlimited(request, queue, next(self._numbers), monotonic())
        if shadow:
            waiting.permit = permit_of(queue, request.id, 0, shadow)
            waiting.on_start = lambda: self._reporter.passed(waiting, shadow)
        self._pool_scheduler.add(waiting)
        if len(self._pool_scheduler) == 1:  # else the next one that ends moves them on
            self._run()
        self._pool_scheduler.suspend_if_last(waiting)
