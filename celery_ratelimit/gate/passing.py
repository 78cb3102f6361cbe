"""Requests that nothing holds up: without limits, or with none but limits in shadow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .._celery import requests
from ..limiter.demand import Demand
from .clock import monotonic
from .entrance import Entrance
from .held import Unlimited
from .said import Hook, permit_of

__all__ = ["Passing"]


class Passing:
    """Lets requests pass.

    Args:
        entrance: to the pool.
        numbers: of the worker's requests.
        hook: is told of those that pass limits in shadow.
        run: moves lines on.
    """

    def __init__(self, entrance: Entrance, numbers: Iterator[int], hook: Hook, run: Callable[[], None]) -> None:
        self._entrance, self._numbers, self._hook, self._run = entrance, numbers, hook, run

    def let(self, request: Any, queue: str, shadow: tuple[Demand, ...] = ()) -> None:
        """It passes, unless others wait for a process, or are about to have their turn."""
        requests.restore(request)
        waiting = Unlimited(request, queue, next(self._numbers), monotonic())
        if shadow:
            waiting.permit = permit_of(queue, request.id, 0, shadow)
            waiting.on_start = lambda: self._hook.passed(waiting, shadow)
        self._entrance.add(waiting)
        if len(self._entrance) == 1:  # else the next one that ends moves them on
            self._run()
        self._entrance.suspend_if_last(waiting)
