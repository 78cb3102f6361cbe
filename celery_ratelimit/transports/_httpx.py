"""Transports of httpx that take a permit for every call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import Literal

import httpx

from ..feedback import MAX_PAUSE
from ..limiter.async_limiter import AsyncLimiter
from ..limiter.limit_request import Limits
from ..limiter.limiter import Limiter
from .per_request import Asked, PerRequest, RequestKey
from .reports import ResponseReports

__all__ = ["AsyncLimitedTransport", "LimitedTransport"]


class LimitedTransport(httpx.BaseTransport):
    """Takes a permit for every request, then sends it by another transport.

    >>> client = httpx.Client(transport=LimitedTransport(limiter, "stripe"))
    >>> client = httpx.Client(transport=LimitedTransport(limiter, Limit("10/s", name="crawl", key="{host}")))

    Every request counts, also each request of a redirect. A lease of a :class:`Concurrency` limit is held until the
    response has been read or closed.

    Args:
        limiter: acquires the permits.
        limits: as in :meth:`Limiter.acquire`.
        key: the bucket of every request, as in :meth:`Limiter.acquire`.
        key_template: replaces the limits' own keys: a template over ``host``, ``method`` and ``path``, or a callable
            that gets the request. Limits without keys stay single buckets. If no limit has a key, it applies
            to the :class:`Limit` objects.
        cost: permits that a request takes. Default: each limit's own cost.
        max_wait: seconds that a request may wait for its slot; ``None``, the default: for ever. The timeouts of httpx
            do not include this time.
        on_429: ``"pause"``: a refusal (429; or 403, 503 or 529 with ``Retry-After``) pauses the limits of its request,
            as :meth:`Limiter.report` does. Default: it changes nothing.
        read_headers: every response is reported to the limits of its request, so that these hold no more than the
            upstream has left. A mapping ``{"tokens": "tokens"}``: to these limits alone, by the unit of each.
        max_pause: seconds; the longest pause.
        transport: sends the requests. Default: ``httpx.HTTPTransport()``.

    Raises:
        ConfigurationError: an unknown quota, or a key that a request does not have.
        Throttled: by every call of the client whose slot is further away than ``max_wait``. Not an ``httpx.HTTPError``.

    *Warning*: a client that is given a transport passes none of its own options (``verify``, ``http2``, ``limits``, …)
    to it: give them to ``transport=httpx.HTTPTransport(…)``.
    """

    def __init__(
        self,
        limiter: Limiter,
        limits: Limits,
        *,
        key: str | None = None,
        key_template: RequestKey | None = None,
        cost: int | None = None,
        max_wait: float | None = None,
        on_429: Literal["pause"] | None = None,
        read_headers: bool | Mapping[str, str] = False,
        max_pause: float = MAX_PAUSE,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._limiter, self._max_wait = limiter, max_wait
        self._each = PerRequest(limiter, limits, key, key_template, cost)
        self._reports = ResponseReports(self._each.limits, on_429, read_headers, max_pause)
        self._transport = transport or httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        with ExitStack() as held:
            permit = self._limiter.permit(**_asked(self._each, request), max_wait=self._max_wait)
            decision = held.enter_context(permit)
            response = self._transport.handle_request(request)
            self._reports.report(self._limiter, decision, response)
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
        key: str | None = None,
        key_template: RequestKey | None = None,
        cost: int | None = None,
        max_wait: float | None = None,
        on_429: Literal["pause"] | None = None,
        read_headers: bool | Mapping[str, str] = False,
        max_pause: float = MAX_PAUSE,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._limiter, self._max_wait = limiter, max_wait
        self._each = PerRequest(limiter, limits, key, key_template, cost)
        self._reports = ResponseReports(self._each.limits, on_429, read_headers, max_pause)
        self._transport = transport or httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        permit = self._limiter.permit(**_asked(self._each, request), max_wait=self._max_wait)
        async with AsyncExitStack() as held:
            decision = await held.enter_async_context(permit)
            response = await self._transport.handle_async_request(request)
            await self._reports.report_async(self._limiter, decision, response)
            if not response.is_closed and isinstance(response.stream, httpx.AsyncByteStream):
                response.stream = _AsyncStream(response.stream, held.pop_all())
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


def _asked(each: PerRequest, request: httpx.Request) -> Asked:
    return each.asks(request, request.url.host, request.method, request.url.path)


class _Stream(httpx.SyncByteStream):
    """A response's body, which releases the permit's leases when it is closed."""

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
