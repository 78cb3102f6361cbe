"""Operation the store, and awaits its answers: the driver of :class:`~celery_ratelimit.AsyncLimiter`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from redis.asyncio import RedisCluster
from redis.asyncio.sentinel import SentinelConnectionPool

from ..errors import RateLimitError, StoreUnavailable
from ..limits.decision import Decision
from ..store.async_link import AsyncClusterLink, AsyncLink
from ..store.health import STORE_ERRORS, out_of_reach, trouble
from ..store.masters import AsyncMaster
from ..store.refusals import addresses_of, mend_by_asking
from ..store.script import Script
from ..store.url import SOCKET_TIMEOUT
from .operation import AcquirePermits, KeysExist, Operation, RunScript, Sleep
from .script_calls import Call
from .script_operations import Operations

__all__ = ["AsyncStoreRunner"]

R = TypeVar("R")

#: How often at most a limiter that is closed waits for what is under way, and cancels what is late: a call that is
#: cancelled gives back what it has got, which may be late as well. On a store that hangs it is four times; where others
#: go on asking there would be no end.
_ROUNDS = 10


class AsyncStoreRunner:
    """The way to the store of one limiter, in one event loop.

    Args:
        client: a ``redis.asyncio`` client of any kind.
        prefix: what every key in the store begins with.
        replace_includes: Lua includes to put other text in place of; how tests freeze the clock.

    Attributes:
        core: what is asked.
        clock: of the caller; a store in memory brings one that tests can stop.
    """

    def __init__(self, client: Any, prefix: str, replace_includes: Mapping[str, str] | None) -> None:
        self.client = client
        self._cluster = AsyncClusterLink(client) if isinstance(client, RedisCluster) else None
        self._link = self._cluster or AsyncLink(client)
        self.core = Operations(prefix, replace_includes, is_cluster=self._cluster is not None)
        self.clock: Any = getattr(client, "clock", time)
        self._served = False
        self._at_work: set[asyncio.Task[Any]] = set()
        pool = getattr(client, "connection_pool", None)
        self._master = AsyncMaster(pool) if isinstance(pool, SentinelConnectionPool) and pool.is_master else None

    def wait_for_connection(self, seconds: float | None) -> None:
        """On a cluster: for how long at most, where all are in use; ``None``: for as long as it does."""
        if self._cluster is not None and seconds is not None:
            self._cluster.timeout = seconds

    async def aclose(self) -> None:
        """End what is under way, and the connections that are no client's."""
        for _ in range(_ROUNDS):
            if not self._at_work:
                break
            _, late = await asyncio.wait(self._at_work, timeout=SOCKET_TIMEOUT)
            for task in late:
                task.cancel()
        if self._cluster is not None:
            await self._cluster.aclose()

    async def ping(self) -> None:
        """Raises :class:`StoreUnavailable` unless the store answers."""
        if self.core.pretended_wait is None:
            await self._store(self.client.ping() if self._cluster is None else self._cluster.ping())

    async def ask(self, asked: AcquirePermits) -> Decision:
        """One round trip: the permits of its demands, all or none."""
        return await self.drive(self.core.ask_for_turn(asked))

    # -- Driving ---------------------------------------------------------------------------------------------------

    async def drive(self, asks: Operation[R], interrupted_by: BaseException | None = None) -> R:
        """Await what a generator asks, and sleep when it does, until it has its answer."""
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
        """Whoever waited is gone. What was asked is awaited, so that nothing is got after what it gives back."""
        if isinstance(asked, AcquirePermits) and asked.task is not None:
            await asyncio.wait([asked.task])
            if not asked.task.cancelled() and asked.task.exception() is None:  # nobody else hears of it
                asked.answer = asked.task.result()
        with suppress(asyncio.CancelledError):
            await self.drive(asks, interrupted_by=error)

    async def _answer(self, asked: list[RunScript] | KeysExist | Sleep | AcquirePermits) -> Any:
        match asked:
            case AcquirePermits():
                asked.task = self.start(self.ask(asked))
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
        """``work`` as a task, which goes on to its end if whoever waits for it (``shield``) is cancelled."""
        task = asyncio.ensure_future(work)
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)
        return task

    # -- The store -------------------------------------------------------------------------------------------------

    async def _reply(self, script: Script, call: Call) -> Any:
        """What a script answers: the one place where scripts are run."""
        if self._master is not None and self._master.is_due():
            self.start(self._master.look())
        try:
            return await self._store(script.awaited(self._link, *call))
        except RateLimitError as error:
            return error

    async def _store(self, answer: Awaitable[R]) -> R:
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
        if not self._served and isinstance(told, StoreUnavailable):  # it may never do
            mend = await asyncio.to_thread(mend_by_asking, error, addresses_of(self.client), SOCKET_TIMEOUT)
            return told if mend is None else out_of_reach(error, mend)
        return told
