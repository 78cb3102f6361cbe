"""The limiter for asyncio: the same scripts and decisions as :mod:`~celery_ratelimit.limiter.limiter`, awaited."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from ..errors import ConfigurationError
from ..limits.decision import Decision
from ..limits.templates import Cost, Key
from ..store.keys import DEFAULT_PREFIX
from ..store.url import async_client_of, async_close_client, connection_wait_of
from .async_store import AsyncStoreRunner
from .blocking_acquire import throttled
from .call_requests import reader_of
from .charge_methods import ChargeMethods
from .leases import AsyncLeaseKeeper
from .limit_request import LimitRequest, Limits, leased
from .prepared_acquire import AsyncPermitMethods
from .report_counts import AsyncDecisionCounter
from .response_methods import ReportMethods

__all__ = ["AsyncLimiter"]

P = ParamSpec("P")
R = TypeVar("R")


def _memory_client(url: str) -> Any:
    from ..store.memory import async_memory_client

    return async_memory_client(url)


class AsyncLimiter(AsyncPermitMethods, ChargeMethods, ReportMethods):
    """:class:`~celery_ratelimit.Limiter` for asyncio: the same decisions, the same buckets, methods to be awaited.

    Arguments, results and errors are the same. A call that waits (``max_wait``) holds no connection. A cancelled call
    returns its slot, and what it can of a permit taken up to a second ahead without exceeding a limit; then the
    cancellation goes on.

    Args:
        client: a ``redis.asyncio`` client of any kind; :meth:`from_url` makes one with fitting timeouts.
        quotas: limits by name, so that calls can name them; each as in ``ratelimit_quotas``: a rate, a :class:`Limit`,
            a :class:`Concurrency`, or a mapping of its arguments.
        prefix: the start of every key in the store.
        lowest_first: for quotas with a ``priority_reserve``: whether the broker delivers the lowest priority first, as
            Redis does. :meth:`from_app` sets it.
        replace_includes: Lua includes by name, with the text to use instead; tests freeze the clock with it.
        counts: whether decisions are counted, for :meth:`stats`.

    Attributes:
        quotas: limits by name; more may be added.
        client: as given.

    *Warning*: a limiter belongs to one event loop, as its connections do: each ``asyncio.run`` needs its own limiter.
    A loop that is blocked for longer than the socket timeout sees :class:`StoreUnavailable`.
    """

    def __init__(
        self,
        client: Any,
        *,
        quotas: Mapping[str, Any] | None = None,
        prefix: str = DEFAULT_PREFIX,
        lowest_first: bool | None = None,
        replace_includes: Mapping[str, str] | None = None,
        counts: bool = True,
    ) -> None:
        super().__init__(quotas, AsyncStoreRunner(client, prefix, replace_includes), lowest_first)
        self._counting = AsyncDecisionCounter(self._asker) if counts else None
        self.client = client
        self._places = AsyncLeaseKeeper(self._asker)
        self._owns_client = False

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        quotas: Mapping[str, Any] | None = None,
        prefix: str = DEFAULT_PREFIX,
        lowest_first: bool | None = None,
        counts: bool = True,
        **options: Any,
    ) -> AsyncLimiter:
        """A limiter on the store at ``url`` (``redis://``, ``rediss://``, ``unix://``; Valkey alike; ``memory://``).

        Args:
            url: the store's address; its query may set redis-py's connection options.
            counts: whether decisions are counted; ``memory://`` counts nothing.
            options: further options of redis-py's client. Defaults: socket timeouts of 0.5 s, ``max_connections=10``
                shared by all callers, beside one of the limiter's own, and ``timeout=5.0``, the seconds that a call
                waits for a free connection. A call holds one for a round trip, not while it waits for its slot.

        Raises:
            ConfigurationError: the URL names no Redis-protocol store.
        """
        if isinstance(url, str) and url.startswith("memory:"):
            return cls(_memory_client(url), quotas=quotas, prefix=prefix, lowest_first=lowest_first, counts=False)
        limiter = cls(
            async_client_of(url, **options), quotas=quotas, prefix=prefix, lowest_first=lowest_first, counts=counts
        )
        limiter._owns_client = True
        limiter._asker.wait_for_connection(connection_wait_of(url, **options))
        return limiter

    @classmethod
    def from_app(cls, app: Any) -> AsyncLimiter:
        """A limiter on a Celery app's store that knows the app's limits, as :meth:`Limiter.from_app` does.

        Each call makes a new one, since it belongs to an event loop: ``async with AsyncLimiter.from_app(app) as …``.
        """
        limiter: AsyncLimiter = cls._of_app(cls, app)
        return limiter

    async def aclose(self) -> None:
        """Write the counts to the store, finish open calls, and close the connections that :meth:`from_url` made."""
        if self._counting is not None:
            await self._counting.aclose()
        await self._asker.aclose()
        if self._owns_client:
            await async_close_client(self.client)

    async def ping(self) -> None:
        """Raise :class:`StoreUnavailable` unless the store answers."""
        await self._asker.ping()

    async def __aenter__(self) -> AsyncLimiter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # -- Blocks and functions --------------------------------------------------------------------------------------

    def permit(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
        priority: int | None = None,
        max_wait: float | None = None,
    ) -> AbstractAsyncContextManager[Decision]:
        """An ``async with`` block that runs once it has its permits.

        >>> async with limiter.permit("stripe") as decision:
        ...     await call()

        As :meth:`Limiter.permit <celery_ratelimit.Limiter.permit>`; a task of the event loop renews the leases.

        Raises:
            Throttled: the slot is further away than ``max_wait``, or the queue is full. A block cannot be skipped.
        """
        return self._permit(self._reader.demands(limits, key, cost, args, priority), max_wait)

    def limited(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        key_template: Key | None = None,
        cost: Cost | None = None,
        priority: int | None = None,
        max_wait: float | None = None,
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """A decorator for coroutine functions: every call acquires its permits first, as :meth:`permit` does.

        >>> @limiter.limited(["stripe", "tenant"])
        ... async def charge(tenant_id, amount): ...

        As :meth:`Limiter.limited <celery_ratelimit.Limiter.limited>`.
        """

        def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
            if not inspect.iscoroutinefunction(function):
                raise ConfigurationError(
                    f"{function!r} is no coroutine function: use Limiter.limited for a plain one, "
                    "and permit() inside of a generator"
                )
            own = self._reader.kept_by(limits, key, key_template)
            demands = reader_of(function, own, cost, key, self._reader.missing_key)

            @wraps(function)
            async def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                async with self._permit(self._reader.of_priority(demands(args, kwargs), priority), max_wait):
                    return await function(*args, **kwargs)

            return limited

        return decorate

    @asynccontextmanager
    async def _permit(self, demands: tuple[LimitRequest, ...], max_wait: float | None) -> AsyncIterator[Decision]:
        decision = await self._await(self._acquire(demands, max_wait))
        if not decision.allowed:
            raise throttled(decision, max_wait)
        if not leased(decision._demands):
            yield decision
            return
        async with self._places.held(decision):
            yield decision
