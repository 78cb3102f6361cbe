"""The blocking limiter: acquires permits from the store. Works in any process and needs no Celery."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from redis import Redis, RedisCluster

from ..errors import STORE_TROUBLES, ConfigurationError
from ..limits.decision import Decision
from ..limits.templates import Cost, Key
from ..store.keys import DEFAULT_PREFIX
from ..store.url import client_of, close_client
from .blocking_acquire import throttled
from .call_requests import reader_of
from .charge_methods import ChargeMethods
from .leases import LeaseKeeper
from .limit_request import LimitRequest, Limits, leased
from .prepared_acquire import SyncPermitMethods
from .report_counts import DecisionCounter
from .response_methods import ReportMethods
from .sync_store import StoreRunner

__all__ = ["Limiter"]

#: Functions whose body does not run when they are called: a permit would be taken too early.
_RUNS_LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)

P = ParamSpec("P")
R = TypeVar("R")


def _memory_client(url: str) -> Redis:
    from ..store.memory import memory_client

    return memory_client(url)


class Limiter(SyncPermitMethods, ChargeMethods, ReportMethods):
    """Acquires permits from the store. Works in any process that can reach the store.

    A refusal is a :class:`Decision`, not an exception. Threads may share a limiter. So may a process and its forks:
    a fork opens connections of its own.

    Args:
        client: a ``redis.Redis`` (a ``Sentinel``'s too) or a ``redis.RedisCluster``; :meth:`from_url` makes one with
            fitting timeouts.
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
    """

    def __init__(
        self,
        client: Redis | RedisCluster,
        *,
        quotas: Mapping[str, Any] | None = None,
        prefix: str = DEFAULT_PREFIX,
        lowest_first: bool | None = None,
        replace_includes: Mapping[str, str] | None = None,
        counts: bool = True,
    ) -> None:
        super().__init__(quotas, StoreRunner(client, prefix, replace_includes), lowest_first)
        self._counting = DecisionCounter(self._asker) if counts else None
        self.client = client
        self._places = LeaseKeeper(self._asker)
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
    ) -> Limiter:
        """A limiter on the store at ``url`` (``redis://``, ``rediss://``, ``unix://``, ``sentinel://``,
        ``redis+cluster://``; Valkey alike; ``memory://``).

        Args:
            url: the store's address, see :func:`~celery_ratelimit.store.url.client_of`; its query may set redis-py's
                connection options.
            counts: whether decisions are counted; ``memory://`` counts nothing.
            options: further options of the client. Default socket timeouts: 0.5 s. ``memory://`` ignores them.

        Raises:
            ConfigurationError: the URL names no Redis-protocol store.
            StoreUnavailable: no node of a cluster answers. A cluster client connects at once, others at first use.
        """
        if isinstance(url, str) and url.startswith("memory:"):
            return cls(_memory_client(url), quotas=quotas, prefix=prefix, lowest_first=lowest_first, counts=False)
        limiter = cls(client_of(url, **options), quotas=quotas, prefix=prefix, lowest_first=lowest_first, counts=counts)
        limiter._owns_client = True
        return limiter

    @classmethod
    def from_app(cls, app: Any) -> Limiter:
        """The limiter of a Celery app, on the app's store: one for each app and process.

        It knows the app's quotas, and the limits of its tasks and queues, by name.

        Raises:
            ConfigurationError: a setting is invalid.
        """
        limiter: Limiter = cls._of_app(cls, app)
        return limiter

    def close(self) -> None:
        """Write the counts to the store, stop renewing leases, and close this limiter's own connections.

        Connections of a client that was passed in stay open. A block that still runs keeps its leases until they
        expire. The limiter may be used again; it then reconnects.
        """
        self._places.close()
        if self._counting is not None:
            self._counting.close()
        self._asker.close()
        if self._owns_client:
            close_client(self.client)

    def ping(self) -> None:
        """Raise :class:`StoreUnavailable` unless the store answers."""
        self._asker.ping()

    def check_store(self) -> list[str]:
        """Check that the store can hold limits, and that the store user has the permissions it needs.

        Returns:
            Warnings, one sentence each.

        Raises:
            ConfigurationError: the store is too old, a read-only replica, or refuses a command; says what to do.
            StoreUnavailable: the store did not answer.
        """
        return self._asker.check_store()

    def __enter__(self) -> Limiter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
    ) -> AbstractContextManager[Decision]:
        """A ``with`` block that runs once it has its permits.

        >>> with limiter.permit("stripe") as decision:
        ...     call()

        Leases of a :class:`Concurrency` limit are held while the block runs and released at its end; a thread renews
        them. Other permits stay spent, also if the block fails.

        Args:
            limits: as in :meth:`acquire`; so are ``args``, ``key``, ``cost`` and ``priority``.
            max_wait: seconds that the block may sleep until its slot; ``None``, the default: for ever.

        Raises:
            Throttled: the slot is further away than ``max_wait``, or the queue is full (a leaky bucket's
                ``capacity``). A ``with`` block cannot be skipped; :meth:`acquire` returns a refusal instead.
        """
        return _Permit(self, self._reader.demands(limits, key, cost, args, priority), max_wait)

    def limited(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        key_template: Key | None = None,
        cost: Cost | None = None,
        priority: int | None = None,
        max_wait: float | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """A decorator: every call of the function acquires its permits first, as :meth:`permit` does.

        A function that settles what a call has cost uses :meth:`permit`, which gives it the decision.

        >>> @limiter.limited(["stripe", "tenant"])
        ... def charge(tenant_id, amount): ...

        Args:
            limits: as in :meth:`acquire`; a :class:`Limit` object needs a name.
            key: the bucket of every call, as in :meth:`acquire`.
            key_template: replaces the limits' own keys: a template over the function's arguments, or a callable that
                gets them. Limits without keys stay single buckets. If no limit has a key, it applies to the
                :class:`Limit` objects.
            cost: permits that a call takes: a number, the name of an argument, or a callable that gets the arguments.
                Default: each limit's own cost.
            max_wait: as in :meth:`permit`.

        Raises:
            ConfigurationError: at decoration: an unknown quota, an argument that the function does not take, or a
                coroutine function or generator, whose body does not run when it is called.
        """

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if any(is_kind(function) for is_kind in _RUNS_LATER):
                raise ConfigurationError(
                    f"{function!r} does not run when it is called: use AsyncLimiter.limited for a coroutine function, "
                    "and permit() inside of a generator"
                )
            own = self._reader.kept_by(limits, key, key_template)
            demands = reader_of(function, own, cost, key, self._reader.missing_key)

            @wraps(function)
            def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                with _Permit(self, self._reader.of_priority(demands(args, kwargs), priority), max_wait):
                    return function(*args, **kwargs)

            return limited

        return decorate


class _Permit(AbstractContextManager[Decision]):
    """See :meth:`Limiter.permit`."""

    def __init__(self, limiter: Limiter, demands: tuple[LimitRequest, ...], max_wait: float | None) -> None:
        self._limiter, self._demands, self._max_wait = limiter, demands, max_wait
        self._held = ""

    def __enter__(self) -> Decision:
        limiter = self._limiter
        decision = limiter._run(limiter._acquire(self._demands, self._max_wait))
        if not decision.allowed:
            raise throttled(decision, self._max_wait)
        if leased(decision._demands):
            self._held = decision.id
            try:
                limiter._places.begin(decision.id, decision._demands, decision._granted_at)
            except BaseException:
                self.__exit__()
                raise
        return decision

    def __exit__(self, *_: object) -> None:
        if self._held:
            with suppress(*STORE_TROUBLES):  # the thread tries again
                self._limiter._places.end(self._held)
