"""Runs operations on the store in an event loop, for :class:`~celery_ratelimit.AsyncLimiter`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from redis.asyncio import RedisCluster
from redis.asyncio.sentinel import SentinelConnectionPool

from ..errors import RateLimitError, StoreUnavailable
from ..store.async_link import AsyncClusterLink, AsyncLink
from ..store.connection_diagnosis import addresses_of, mend_by_asking
from ..store.masters import AsyncMaster
from ..store.script import Script
from ..store.store_errors import STORE_ERRORS, out_of_reach, trouble
from ..store.url import SOCKET_TIMEOUT
from .operation import KeysExist, Operation, RunScript, Sleep, UninterruptedAcquire
from .script_calls import Call
from .script_operations import Operations

__all__ = ["AsyncStoreRunner"]

R = TypeVar("R")

#: How often a closing limiter waits for open calls and cancels late ones. A cancelled call returns its permits, which
#: may be late as well. A hung store takes four rounds; the bound matters where other tasks go on calling.
_ROUNDS = 10


class AsyncStoreRunner:
    """Runs the operations of one limiter, in one event loop.

    Args:
        client: a ``redis.asyncio`` client of any kind.
        prefix: the start of every key in the store.
        replace_includes: Lua includes by name, with the text to use instead; tests freeze the clock with it.

    Attributes:
        core: makes the operations.
        link: to the store.
        clock: the caller's clock; ``memory://`` has one that tests can stop.
    """

    def __init__(self, client: Any, prefix: str, replace_includes: Mapping[str, str] | None) -> None:
        self.client = client
        self._cluster = AsyncClusterLink(client) if isinstance(client, RedisCluster) else None
        self.link: AsyncClusterLink | AsyncLink = self._cluster or AsyncLink(client)
        self.core: Operations = Operations(prefix, replace_includes, is_cluster=self._cluster is not None)
        self.clock: Any = getattr(client, "clock", time)
        self._served = False
        self._at_work: set[asyncio.Task[Any]] = set()
        pool = getattr(client, "connection_pool", None)
        self._master = AsyncMaster(pool) if isinstance(pool, SentinelConnectionPool) and pool.is_master else None

    def wait_for_connection(self, seconds: float | None) -> None:
        """On a cluster: the seconds that a call waits for a free connection; ``None``: the default."""
        if self._cluster is not None and seconds is not None:
            self._cluster.timeout = seconds

    async def aclose(self) -> None:
        """Finish or cancel open calls, and close the connections that belong to no client."""
        for _ in range(_ROUNDS):
            if not self._at_work:
                break
            _, late = await asyncio.wait(self._at_work, timeout=SOCKET_TIMEOUT)
            for task in late:
                task.cancel()
        await self.link.aclose()

    async def ping(self) -> None:
        """Raise :class:`StoreUnavailable` unless the store answers."""
        await self._store(self.client.ping() if self._cluster is None else self._cluster.ping())

    # -- Driving ---------------------------------------------------------------------------------------------------

    async def drive(self, asks: Operation[R], interrupted_by: BaseException | None = None) -> R:
        """Run an operation to its end: await its effects, and return its result."""
        step: Any = asks.send if interrupted_by is None else asks.throw
        given: Any = interrupted_by
        while True:
            try:
                asked = step(given)
            except StopIteration as end:
                answer: R = end.value
                return answer
            try:
                given, step = await self._answer(asked), asks.send
            except asyncio.CancelledError as error:
                await asyncio.shield(self.start(self._interrupt(asks, asked, error)))
                raise
            except BaseException as error:
                given, step = error, asks.throw

    async def _interrupt(self, asks: Operation[Any], asked: Any, error: BaseException) -> None:
        """Finish a cancelled operation. The open call ends first, so that the operation returns what the call got."""
        if isinstance(asked, UninterruptedAcquire) and asked.task is not None:
            await asyncio.wait([asked.task])
            if not asked.task.cancelled() and asked.task.exception() is None:  # nothing else reads it
                asked.answer = asked.task.result()
        with suppress(asyncio.CancelledError):
            await self.drive(asks, interrupted_by=error)

    async def _answer(self, asked: list[RunScript] | KeysExist | Sleep | UninterruptedAcquire) -> Any:
        match asked:
            case UninterruptedAcquire():
                asked.task = self.start(self.drive(self.core.ask_for_turn(asked)))
                asked.answer = await asyncio.shield(asked.task)
                return asked.answer
            case Sleep(seconds):
                return await getattr(self.clock, "sleep_async", asyncio.sleep)(seconds)
            case KeysExist(keys):
                if self._cluster is None:
                    return bool(await self._store(self.client.exists(*keys)))
                return bool(await self._store(self._cluster.execute("EXISTS", *keys, key=keys[0])))
            case [RunScript() as question]:
                return [await self._reply(*question)]
            case _:
                return await asyncio.gather(*[self._reply(*question) for question in asked])

    def start(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Run ``work`` as a task that goes on to its end, also if its caller (``shield``) is cancelled."""
        task = asyncio.ensure_future(work)
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)
        return task

    # -- The store -------------------------------------------------------------------------------------------------

    async def _reply(self, script: Script, call: Call) -> Any:
        """Run a script and return its reply, or its error as a value."""
        try:
            return await self._store(script.awaited(self.link, *call))
        except RateLimitError as error:
            return error

    async def exchange(self, command: bytes) -> Any:
        """Send a script's call in wire form, and return its reply; a store's error is raised as one of this package."""
        return await self._store(self.link.exchange(command))

    async def _store(self, answer: Awaitable[R]) -> R:
        if self._master is not None and self._master.is_due():
            self.start(self._master.look())
        try:
            answered = await answer
        except STORE_ERRORS as error:
            if self._master is not None:
                self._master.doubt()
            raise await self._trouble(error) from error
        self._served = True
        return answered

    async def _trouble(self, error: Exception) -> RateLimitError:
        told = trouble(error)
        if not self._served and isinstance(told, StoreUnavailable):  # it has never answered
            mend = await asyncio.to_thread(mend_by_asking, error, addresses_of(self.client), SOCKET_TIMEOUT)
            return told if mend is None else out_of_reach(error, mend)
        return told
