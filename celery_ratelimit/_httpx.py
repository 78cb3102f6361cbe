"""Transports of httpx that take a permit for every call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack

import httpx

from .asking import Limits
from .async_limiter import AsyncLimiter
from .limiter import Limiter

__all__ = ["AsyncLimitedTransport", "LimitedTransport"]

#: Which bucket a request uses: one for all, or what a callable says, as ``lambda request: request.url.host``.
RequestKey = str | Callable[[httpx.Request], str]


class LimitedTransport(httpx.BaseTransport):
    """Takes a permit for every request, then sends it by another transport.

    >>> client = httpx.Client(transport=LimitedTransport(limiter, "stripe"))
    >>> client = httpx.Client(transport=LimitedTransport(limiter, PER_HOST, key=lambda request: request.url.host))

    Every request counts: each one that a redirect leads to, too. A place under :class:`Concurrency` is held until the
    response has been read or closed.

    Args:
        limiter: who is asked.
        limits: as in :meth:`Limiter.acquire`.
        key: the bucket, for limits that are kept by key: a text, or a callable that gets the request.
        cost: permits that a request takes; default: what each limit says.
        max_wait: seconds that a request may wait for its turn. Default: as long as it takes; the timeouts of httpx do
            not count that time.
        transport: what sends. Default: ``httpx.HTTPTransport()``.

    Raises:
        Throttled: by every call of the client whose turn is further away than ``max_wait``. Not an ``httpx.HTTPError``.

    *Warning*: a client that is given a transport passes none of its own options (``verify``, ``http2``, ``limits``, …)
    to it: give them to ``transport=httpx.HTTPTransport(…)``.
    """

    def __init__(
        self,
        limiter: Limiter,
        limits: Limits,
        *,
        key: RequestKey | None = None,
        cost: int | None = None,
        max_wait: float | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._limiter, self._limits, self._key, self._cost, self._max_wait = limiter, limits, key, cost, max_wait
        self._transport = transport or httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        key = self._key(request) if callable(self._key) else self._key
        with ExitStack() as held:
            held.enter_context(self._limiter.permit(self._limits, key=key, cost=self._cost, max_wait=self._max_wait))
            response = self._transport.handle_request(request)
            if not response.is_closed and isinstance(response.stream, httpx.SyncByteStream):
                response.stream = _Stream(response.stream, held.pop_all())
        return response

    def close(self) -> None:
        self._transport.close()


class AsyncLimitedTransport(httpx.AsyncBaseTransport):
    """:class:`LimitedTransport` for ``httpx.AsyncClient``, with an :class:`~celery_ratelimit.AsyncLimiter`.

    >>> client = httpx.AsyncClient(transport=AsyncLimitedTransport(limiter, "stripe"))
    """

    def __init__(
        self,
        limiter: AsyncLimiter,
        limits: Limits,
        *,
        key: RequestKey | None = None,
        cost: int | None = None,
        max_wait: float | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._limiter, self._limits, self._key, self._cost, self._max_wait = limiter, limits, key, cost, max_wait
        self._transport = transport or httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        key = self._key(request) if callable(self._key) else self._key
        permit = self._limiter.permit(self._limits, key=key, cost=self._cost, max_wait=self._max_wait)
        async with AsyncExitStack() as held:
            await held.enter_async_context(permit)
            response = await self._transport.handle_async_request(request)
            if not response.is_closed and isinstance(response.stream, httpx.AsyncByteStream):
                response.stream = _AsyncStream(response.stream, held.pop_all())
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


class _Stream(httpx.SyncByteStream):
    """A response's body, which gives the permit's places back when it is closed."""

    def __init__(self, stream: httpx.SyncByteStream, held: ExitStack) -> None:
        self._stream, self._held = stream, held

    def __iter__(self) -> Iterator[bytes]:
        yield from self._stream

    def close(self) -> None:
        with self._held:
            self._stream.close()


class _AsyncStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, held: AsyncExitStack) -> None:
        self._stream, self._held = stream, held

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        async with self._held:
            await self._stream.aclose()
