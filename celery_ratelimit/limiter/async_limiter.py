"""The limiter for asyncio: the same scripts and decisions as :mod:`~celery_ratelimit.limiter.limiter`, awaited."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from redis.asyncio import RedisCluster
from redis.asyncio.sentinel import SentinelConnectionPool

from ..errors import STORE_TROUBLES, ConfigurationError, RateLimitError, StoreUnavailable
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from ..limits.decision import Decision
from ..store.async_link import AsyncClusterLink
from ..store.health import STORE_ERRORS, out_of_reach, trouble
from ..store.keys import DEFAULT_PREFIX
from ..store.masters import AsyncMaster
from ..store.refusals import addresses_of, mend_by_asking
from ..store.script import Script
from ..store.url import SOCKET_TIMEOUT, async_client_of, async_close_client
from .arguments import Cost, Key, reader_of
from .core import (
    Asking,
    Call,
    actual_costs,
    check_actual,
    check_reservable,
    check_settled,
    impossible,
    microseconds,
    nap,
    seconds_of,
    throttled,
    whole_numbers,
)
from .cross_slot import CrossSlot, Step, Steps, parts_of
from .demand import Demand, Limits, leased
from .leases import RENEWALS, UNKNOWN, renewal_pause
from .limiter import TAKE_AHEAD
from .stored import LimitConfig, change_of, length_of, read_config

__all__ = ["AsyncLimiter"]

logger = logging.getLogger("celery_ratelimit")

P = ParamSpec("P")
R = TypeVar("R")


def _memory_client(url: str) -> Any:
    from ..store.memory import async_memory_client

    return async_memory_client(url)


class AsyncLimiter(Asking):
    """:class:`~celery_ratelimit.Limiter` for asyncio: the same decisions, the same buckets, methods to be awaited.

    A call that is cancelled gives back what it got, its slot or its permit, before the cancellation goes on.

    Args:
        client: a ``redis.asyncio`` client of any kind; see :meth:`from_url` for one with fitting timeouts.
        quotas: limits by name, so that calls can name them; each as in ``ratelimit_quotas``: a rate, a :class:`Limit`,
            a :class:`Concurrency`, or a mapping of its arguments.
        prefix: what every key in the store begins with.
        replace_includes: Lua includes to put other text in place of; how tests freeze the clock.

    *Warning*: one event loop. The connections belong to the loop that they were made in, so that each
    ``asyncio.run`` needs a limiter of its own. A loop that something else blocks for longer than the socket timeout
    makes the store look as if it did not answer.
    """

    def __init__(
        self,
        client: Any,
        *,
        quotas: Mapping[str, Any] | None = None,
        prefix: str = DEFAULT_PREFIX,
        replace_includes: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(quotas, prefix, replace_includes)
        self.client = client
        self._time: Any = getattr(client, "clock", time)  # see Limiter
        self._sleep = getattr(self._time, "sleep_async", asyncio.sleep)
        self._owns_client = False
        self._served = False
        self._cluster = AsyncClusterLink(client) if isinstance(client, RedisCluster) else None
        self._is_cluster = self._cluster is not None
        self._spread = CrossSlot(self)
        self._at_work: set[asyncio.Task[Any]] = set()
        pool = getattr(client, "connection_pool", None)
        self._master = AsyncMaster(pool) if isinstance(pool, SentinelConnectionPool) and pool.is_master else None

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        quotas: Mapping[str, Any] | None = None,
        prefix: str = DEFAULT_PREFIX,
        **options: Any,
    ) -> AsyncLimiter:
        """A limiter on the store at ``url`` (``redis://``, ``rediss://``, ``unix://``; Valkey alike; ``memory://``).

        Args:
            url: where the store is; its query may set redis-py's connection options.
            options: further options of redis-py's client. Unless set, the socket timeouts are 0.5 s, and callers share
                ``max_connections=10``, for one of which they wait for ``timeout=5.0`` seconds at most. A request holds
                one for a round trip, not while it waits for its turn.

        Raises:
            ConfigurationError: the URL is not one of a Redis-protocol store.
        """
        if isinstance(url, str) and url.startswith("memory:"):
            return cls(_memory_client(url), quotas=quotas, prefix=prefix)
        limiter = cls(async_client_of(url, **options), quotas=quotas, prefix=prefix)
        limiter._owns_client = True
        if limiter._cluster is not None:
            limiter._cluster.timeout = options.get("timeout", limiter._cluster.timeout)
        return limiter

    @classmethod
    def from_app(cls, app: Any) -> AsyncLimiter:
        """A limiter of a Celery app's store, which knows its limits as :meth:`Limiter.from_app` does.

        Another one at each call, since it belongs to an event loop: ``async with AsyncLimiter.from_app(app) as …``.
        """
        limiter: AsyncLimiter = cls.of_app(cls, app)
        return limiter

    async def aclose(self) -> None:
        """End what is under way and, if this limiter was made by :meth:`from_url`, close its connections."""
        if self._at_work:
            _, late = await asyncio.wait(self._at_work, timeout=SOCKET_TIMEOUT)
            for task in late:
                task.cancel()
        if self._cluster is not None:
            await self._cluster.aclose()
        if self._owns_client:
            await async_close_client(self.client)

    async def __aenter__(self) -> AsyncLimiter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # -- Asking ----------------------------------------------------------------------------------------------------

    async def acquire(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
        max_wait: float = 0.0,
    ) -> Decision:
        """Take the permits of one call from every limit in one atomic step, or none of them.

        As :meth:`Limiter.acquire <celery_ratelimit.Limiter.acquire>`, in arguments, answers and errors; ``max_wait``
        sleeps without holding a connection. Cancelled while it waits, it gives its slot back. Of a permit that it had
        already taken, up to a second ahead, comes back what can be given to others without anybody exceeding a limit.
        """
        return await self._take(self._demands(limits, key, cost, args), max_wait)

    def permit(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
        max_wait: float | None = None,
    ) -> AbstractAsyncContextManager[Decision]:
        """An ``async with`` block that runs when it has its permits.

        >>> async with limiter.permit("stripe") as decision:
        ...     await call()

        As :meth:`Limiter.permit <celery_ratelimit.Limiter.permit>`; a task of the event loop renews the places.

        Raises:
            Throttled: its turn is further away than ``max_wait``, or there is no room to wait: a block cannot be
                skipped.
        """
        return self._permit(self._demands(limits, key, cost, args), max_wait)

    def limited(
        self, limits: Limits, *, key: Key | None = None, cost: Cost | None = None, max_wait: float | None = None
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """A decorator for coroutine functions: every call takes a permit first, as :meth:`permit` does.

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
            demands = reader_of(function, self._kept_by(limits, key), cost)

            @wraps(function)
            async def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                async with self._permit(demands(args, kwargs), max_wait):
                    return await function(*args, **kwargs)

            return limited

        return decorate

    async def peek(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
    ) -> Decision:
        """What :meth:`acquire` would answer now. Takes nothing; the next caller may be quicker."""
        demands = self._demands(limits, key, cost, args)
        return self._decision(demands, await self._run(self._peek, demands, ""))

    async def reset(
        self, limits: Limits, *, key: str | None = None, args: Mapping[str, Any] | None = None, force: bool = False
    ) -> None:
        """Forget what was taken: the buckets are full again and the slots of those who wait are gone.

        With ``force`` a name that is no quota here means whatever limit bears it; see :meth:`set_rate`.
        """
        demands = self._demands_to_reset(limits, key, args, force=force)
        for part in self._by_slot(demands) if self.pretended_wait is None else ():
            await self._reply(self._reset, self._reset_pieces([demands[i] for i in part]))

    async def reserve(
        self,
        limits: Limits,
        *,
        id: str,
        horizon: float,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
    ) -> Decision:
        """As :meth:`Limiter.reserve <celery_ratelimit.Limiter.reserve>`: permits ahead of time, under an id."""
        return await self.reserve_demands(
            self._demands(limits, key, cost, args), id=id, horizon=seconds_of("horizon", horizon, 0)
        )

    async def cancel(
        self,
        limits: Limits,
        *,
        id: str,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
    ) -> bool:
        """As :meth:`Limiter.cancel <celery_ratelimit.Limiter.cancel>`: give a reservation back. Idempotent."""
        return await self.cancel_demands(self._demands(limits, key, cost, args), id=id)

    async def settle(self, decision: Decision, actual_cost: int, *, limit: str | None = None) -> bool:
        """As :meth:`Limiter.settle <celery_ratelimit.Limiter.settle>`: correct what a granted call was charged."""
        check_settled(decision)
        if not decision.demands:
            return False
        return await self.settle_demands(
            decision.demands,
            actual_costs(decision.demands, actual_cost, limit),
            id=decision.id,
            granted_at=decision.granted_at,
        )

    async def release(self, decision: Decision) -> bool:
        """Give back the places under :class:`Concurrency` that a call holds. Idempotent; False: there were none."""
        return await self.release_demands(decision.demands, id=decision.id, granted_at=decision.granted_at)

    async def renew(self, decision: Decision) -> bool:
        """Keep the places that a call holds for another ``lease`` seconds from now. False: one had expired."""
        return all(await self.renew_leases([(demand, decision.id) for demand in leased(decision.demands)]))

    # -- What people store -----------------------------------------------------------------------------------------

    async def set_rate(
        self,
        name: str | AnyLimit,
        rate: str | AnyLimit,
        *,
        key: str | None = None,
        version: int | None = None,
        for_: float | None = None,
        by: str | None = None,
        force: bool = False,
    ) -> bool:
        """As :meth:`Limiter.set_rate <celery_ratelimit.Limiter.set_rate>`."""
        known = await self._named(name, key, force)
        call = change_of(self, *known, rate, key=key, version=version, for_=for_, by=by)
        return bool(await self._reply(self._set_rate, call) == 1)

    async def try_set_rate(
        self,
        name: str | AnyLimit,
        rate: str | AnyLimit,
        *,
        key: str | None = None,
        for_: float | None = None,
        by: str | None = None,
        force: bool = False,
    ) -> bool:
        """As :meth:`set_rate`, only if no rate is stored. Returns whether it was."""
        known = await self._named(name, key, force)
        call = change_of(self, *known, rate, key=key, only_if_none=True, for_=for_, by=by)
        return bool(await self._reply(self._set_rate, call) == 1)

    async def expire(
        self, name: str | AnyLimit, seconds: float, *, key: str | None = None, force: bool = False
    ) -> bool:
        """The stored rate ends in so many seconds; then the code's holds again. False: none is stored."""
        us = length_of(seconds, "seconds")
        call = self._timed_call((await self._named(name, key, force))[0], key, us)
        return bool(await self._reply(self._expire_rate, call) == 1)

    async def delete(self, name: str | AnyLimit, *, key: str | None = None, force: bool = False) -> bool:
        """As :meth:`Limiter.delete <celery_ratelimit.Limiter.delete>`."""
        call = self._timed_call((await self._named(name, key, force))[0], key, 0)
        return bool(await self._reply(self._expire_rate, call) == 1)

    async def config(self, name: str | AnyLimit, *, key: str | None = None, force: bool = False) -> LimitConfig:
        """What is in force for a limit, since when and by whom: code and store side by side."""
        limit_name, code = await self._named(name, key, force)
        reply = await self._reply(self._config, self._config_call(limit_name, key))
        return read_config(limit_name, key or "", code, reply)

    async def available(self, limits: Limits, *, key: str | None = None, args: Mapping[str, Any] | None = None) -> int:
        """Permits that could be taken now: of the limit that has the fewest. The next caller may be quicker."""
        decision = await self.peek(limits, key=key, args=args, cost=1)
        return min(state.remaining for state in decision.states) if decision.allowed else 0

    async def pause(
        self, name: str | AnyLimit, seconds: float, *, key: str | None = None, force: bool = False
    ) -> float:
        """As :meth:`Limiter.pause <celery_ratelimit.Limiter.pause>`."""
        us = length_of(seconds, "seconds")
        call = self._timed_call((await self._named(name, key, force))[0], key, us)
        return int(await self._reply(self._pause, call)) / 1e6

    async def resume(self, name: str | AnyLimit, *, key: str | None = None, force: bool = False) -> bool:
        """End a pause. False: there was none."""
        call = self._timed_call((await self._named(name, key, force))[0], key, 0)
        return bool(await self._reply(self._pause, call) == 1)

    # -- The same for demands --------------------------------------------------------------------------------------

    async def ask(
        self, demands: Sequence[Demand], *, id: str = "", horizon: float = 0.0, claim: float = 0.0
    ) -> Decision:
        """One round trip, see :meth:`Limiter.ask <celery_ratelimit.Limiter.ask>`."""
        reply = await self._run(self._acquire, demands, id, microseconds(horizon), microseconds(claim))
        return self._decision(demands, reply, id or self._new_id())

    async def reserve_demands(self, demands: Sequence[Demand], *, id: str, horizon: float) -> Decision:
        check_reservable(demands, id)
        reply = await self._run(self._reserve, demands, id, microseconds(horizon), kind="ids")
        return self._decision(demands, reply, id)

    async def cancel_demands(self, demands: Sequence[Demand], *, id: str) -> bool:
        return await self._run(self._cancel, demands, id, kind="ids") == [1]

    async def settle_demands(
        self, demands: Sequence[Demand], actual: Sequence[int], *, id: str, granted_at: int
    ) -> bool:
        check_actual(demands, actual)
        return await self._run(self._settle, demands, id, granted_at, kind="ids", last=actual) == [1]

    async def forget(self, demands: Sequence[Demand], *, id: str) -> None:
        """Give back the slots that were kept for ``id``; for a request that will not come back. Idempotent."""
        await self._run(self._forget, demands, id)

    async def release_demands(self, demands: Sequence[Demand], *, id: str, granted_at: int) -> bool:
        places = leased(demands)
        if not places or not id:
            return False
        released = 0
        for part in self._by_slot(places):
            pieces = self._release_pieces([places[i] for i in part], id, granted_at)
            released += int(await self._reply(self._release, pieces))
        return released > 0

    async def renew_leases(self, leases: Sequence[tuple[Demand, str]]) -> list[bool]:
        """One round trip for the leases of many holders. False for each that has expired."""
        if not leases:
            return []
        kept: dict[int, bool] = {}
        for part in self._by_slot([demand for demand, _ in leases]):
            reply = await self._reply(self._renew, self._renew_pieces([leases[i] for i in part]))
            kept.update(zip(part, [each in (49, "1") for each in reply], strict=True))
        return [kept[i] for i in range(len(leases))]

    async def ping(self) -> None:
        """Raises :class:`StoreUnavailable` unless the store answers."""
        if self.pretended_wait is None:
            await self._store(self.client.ping() if self._cluster is None else self._cluster.ping())

    async def _named(self, name: str | AnyLimit, key: str | None, force: bool) -> tuple[str, AnyLimit | None]:
        """A limit that somebody knows, by its name; and as the code here has it."""
        known, code = self._code(name, key, force=force)
        if code is None and not force and not await self._exist(self._traces(known, key)):
            raise self._unknown(known)
        return known, code

    async def _exist(self, keys: Sequence[str]) -> bool:
        if self._cluster is None:
            return bool(await self._store(self.client.exists(*keys)))
        return bool(await self._store(self._cluster.execute("EXISTS", *keys, key=keys[0])))

    # -- How it is done --------------------------------------------------------------------------------------------

    async def _take(self, demands: Sequence[Demand], max_wait: float) -> Decision:
        max_wait = seconds_of("max_wait", max_wait) if max_wait != 0 else 0.0
        waits = max_wait > 0
        id = self._new_id() if waits or leased(demands) else ""
        deadline = self._time.monotonic() + max_wait
        try:
            while True:
                left = max(0.0, deadline - self._time.monotonic())
                asked = self._start(self.ask(demands, id=id, horizon=min(left, TAKE_AHEAD), claim=left))
                decision = await asyncio.shield(asked)
                if not decision.allowed and not waits:
                    return decision
                if not decision.allowed and (decision.full or decision.retry_after > left or self.pretended_wait):
                    await self.forget(demands, id=id)
                    return decision
                if decision.retry_after:
                    await self._sleep(nap(decision))
                if decision.allowed:
                    return decision
        except asyncio.CancelledError:
            await asyncio.shield(self._start(self._give_back(demands, id, asked)))
            raise

    async def _give_back(self, demands: Sequence[Demand], id: str, asked: asyncio.Task[Decision]) -> None:
        """What a call has got that was cancelled. Its last request is awaited, so that nothing is got afterwards."""
        await asyncio.wait([asked])
        known = not asked.cancelled() and asked.exception() is None
        with suppress(*STORE_TROUBLES):  # then a slot lapses by itself, a lease too, and a permit is lost
            if known and asked.result().allowed:
                id, at = asked.result().id, asked.result().granted_at
                rates = [demand for demand in demands if not isinstance(demand.limit, Concurrency)]
                if rates:
                    await self.settle_demands(rates, [0] * len(rates), id=id, granted_at=at)
                await self.release_demands(demands, id=id, granted_at=at)
            elif id:
                await self.forget(demands, id=id)
                if not known:
                    await self.release_demands(demands, id=id, granted_at=UNKNOWN)

    @asynccontextmanager
    async def _permit(self, demands: Sequence[Demand], max_wait: float | None) -> AsyncIterator[Decision]:
        decision = await self._take(demands, math.inf if max_wait is None else max_wait)
        if not decision.allowed:
            raise throttled(decision)
        if not leased(decision.demands):
            yield decision
            return
        pause = renewal_pause(decision.demands)
        renewing = self._start(self._keep_renewing(decision, pause))
        try:
            yield decision
        finally:
            renewing.cancel()
            await asyncio.shield(self._start(self._end(decision, pause)))

    async def _keep_renewing(self, decision: Decision, pause: float) -> None:
        kept, said = True, ""
        while kept:
            await asyncio.sleep(pause)
            try:
                kept, said = await self.renew(decision), ""
            except STORE_TROUBLES as error:
                logger.debug("lease not renewed this time: %r", error)
            except Exception as error:  # see Leases
                if said != repr(error):
                    said = repr(error)
                    logger.error("A lease was not renewed, and is tried again", exc_info=True)
        logger.warning(
            "The lease of %s under %s was lost while it is in use: the store was out of reach for too long",
            *(decision.id, ", ".join(repr(demand.name) for demand in leased(decision.demands))),
        )

    async def _end(self, decision: Decision, pause: float, tries: int = RENEWALS) -> None:
        """Give the places back; if the store does not answer, later, until they have expired by themselves."""
        try:
            await self.release(decision)
        except STORE_TROUBLES as error:
            logger.debug("places not given back this time: %r", error)
            if tries:
                self._start(self._end_later(decision, pause, tries - 1))

    async def _end_later(self, decision: Decision, pause: float, tries: int) -> None:
        await asyncio.sleep(pause)
        await self._end(decision, pause, tries)

    def _start(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """``work`` as a task, which goes on to its end if whoever waits for it (``shield``) is cancelled."""
        task = asyncio.ensure_future(work)
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)
        return task

    async def _run(
        self,
        script: Script,
        demands: Sequence[Demand],
        *first: str | int,
        kind: str | None = None,
        last: Sequence[int] = (),
    ) -> list[int]:
        if self.pretended_wait is not None:
            return self._pretended(script, demands, first)
        if self._is_cluster and (parts := self._spread.parts(tuple(demands))):
            return await self._in_turn(self._spread.steps(script, parts, first, kind, last))
        try:
            return whole_numbers(await self._reply(script, self._pieces(script, tuple(demands), first, kind, last)))
        except RateLimitError as error:
            raise impossible(demands, error) from error.__cause__

    async def _in_turn(self, asks: Steps) -> list[int]:
        """One decision by several scripts, see :mod:`~celery_ratelimit.limiter.cross_slot`."""
        try:
            steps = next(asks)
            while True:
                steps = asks.send(await asyncio.gather(*[self._run_one(step) for step in steps]))
        except StopIteration as end:
            result: list[int] = end.value
            return result

    async def _run_one(self, step: Step) -> list[int] | RateLimitError:
        try:
            if step.script is self._release:
                id, granted_at = step.first
                return [int(await self.release_demands(step.demands, id=str(id), granted_at=int(granted_at)))]
            return await self._run(step.script, step.demands, *step.first, kind=step.kind, last=step.last)
        except RateLimitError as error:
            return error

    def _by_slot(self, demands: Sequence[Demand]) -> list[Sequence[int]]:
        """The demands by their places, those together that one script can see."""
        parts = parts_of(demands) if self._is_cluster else ()
        return [part.places for part in parts] or [range(len(demands))]

    async def _reply(self, script: Script, call: Call) -> Any:
        """What a script answers: the one place where scripts are run."""
        if self._master is not None and self._master.is_due():
            self._start(self._master.look())
        execute = self.client.execute_command if self._cluster is None else self._cluster.execute
        return await self._store(script.awaited(execute, *call))

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
