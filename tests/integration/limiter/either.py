"""A plain limiter and one for asyncio behind one face: each test that takes one runs with both."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from celery_ratelimit import AsyncLimiter, Decision, Limiter

KINDS = (Limiter, AsyncLimiter)


class EitherLimiter:
    def __init__(self, limiter: Any, run: Callable[[Any], Any]) -> None:
        self.limiter, self._run, self.is_async = limiter, run, isinstance(limiter, AsyncLimiter)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.limiter, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.wait_for(value(*args, **kwargs))

        return call

    def wait_for(self, answer: Any) -> Any:
        return self._run(answer) if inspect.isawaitable(answer) else answer

    def at_once(self, method: str, callers: int, *args: Any, **options: Any) -> list[Any]:
        """The results or errors of so many simultaneous calls."""
        call = getattr(self.limiter, method)
        if self.is_async:

            async def together() -> list[Any]:
                return await asyncio.gather(*[call(*args, **options) for _ in range(callers)], return_exceptions=True)

            results: list[Any] = self._run(together())
            return results
        barrier = threading.Barrier(callers)

        def meet_and_call(_: int) -> Any:
            barrier.wait()
            try:
                return call(*args, **options)
            except Exception as error:
                return error

        with ThreadPoolExecutor(callers) as threads:
            return list(threads.map(meet_and_call, range(callers)))

    @contextmanager
    def block(self, limits: Any, **options: Any) -> Iterator[Decision]:
        """A block under ``permit``."""
        permit = self.limiter.permit(limits, **options)
        if not self.is_async:
            with permit as decision:
                yield decision
            return
        decision = self._run(permit.__aenter__())
        try:
            yield decision
        except BaseException as error:
            self._run(permit.__aexit__(type(error), error, error.__traceback__))
            raise
        self._run(permit.__aexit__(None, None, None))

    def limited(self, limits: Any, **options: Any) -> Callable[[Any], Callable[..., Any]]:
        """``limited`` for a plain function, which the asyncio limiter gets as a coroutine function."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            if not self.is_async:
                made: Callable[..., Any] = self.limiter.limited(limits, **options)(function)
                return made

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                return function(*args, **kwargs)

            wrapped = self.limiter.limited(limits, **options)(awaited)
            return functools.wraps(function)(lambda *args, **kwargs: self._run(wrapped(*args, **kwargs)))

        return decorate


@contextmanager
def opened(kind: Any, make: Callable[[Any], Any]) -> Iterator[EitherLimiter]:
    """A limiter that ``make(kind)`` returns, closed at the end."""
    loop = asyncio.new_event_loop()
    limiter = make(kind)
    try:
        yield EitherLimiter(limiter, loop.run_until_complete)
    finally:
        if kind is Limiter:
            limiter.close()
        else:
            loop.run_until_complete(limiter.aclose())
            assert not asyncio.all_tasks(loop), "nothing is left in the loop"
        loop.close()
