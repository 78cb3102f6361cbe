"""The limiter: asks the store for permits. Works in any process and needs no Celery."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from redis import Redis, RedisCluster

from ..errors import STORE_TROUBLES, ConfigurationError
from ..limits.decision import Decision
from ..store.keys import DEFAULT_PREFIX
from ..store.url import SOCKET_TIMEOUT, client_of, close_client
from ..store.url_text import without_password
from .admin_methods import AdminMethods
from .arguments import Cost, Key, reader_of, runs_later
from .blocking_acquire import TAKE_AHEAD, throttled
from .leases import LeaseKeeper
from .limit_request import LimitRequest, Limits, actual_costs, each_bucket_once, leased
from .sync_acquire import SyncAcquire
from .sync_store import StoreRunner
from .usage import UsageReporter

__all__ = [
    "SOCKET_TIMEOUT",
    "TAKE_AHEAD",
    "LimitRequest",
    "Limiter",
    "actual_costs",
    "each_bucket_once",
    "without_password",
]

P = ParamSpec("P")
R = TypeVar("R")


def _memory_client(url: str) -> Redis:
    from ..store.memory import memory_client

    return memory_client(url)


class Limiter(SyncAcquire, AdminMethods):
    """Operation for permits in the store, for any process that can reach it.

    A refusal is a :class:`Decision`, not an exception. The limiter may be shared by threads, and by a process and
    its forks: connections are not carried across.

    Args:
        client: a ``redis.Redis`` (one that a ``Sentinel`` made too) or a ``redis.RedisCluster``; see :meth:`from_url`
            for one with fitting timeouts.
        quotas: limits by name, so that calls can name them; each as in ``ratelimit_quotas``: a rate, a :class:`Limit`,
            a :class:`Concurrency`, or a mapping of its arguments.
        prefix: what every key in the store begins with.
        lowest_first: where a quota has a ``reserve``: whether the lowest priority goes first at the broker, as on
            Redis. :meth:`from_app` knows.
        replace_includes: Lua includes to put other text in place of; how tests freeze the clock.
        counts: whether what is decided is counted, for :meth:`stats`.

    Attributes:
        quotas: limits by name; more may be put in.
        client: as given.
        asker: asks for what has been read already, as workers do.
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
        self._counting = UsageReporter(self.asker) if counts else None
        self.client = client
        self._places = LeaseKeeper(self.asker)
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
            url: where the store is, see :func:`~celery_ratelimit.store.url.client_of`; its query may set redis-py's
                connection options.
            counts: whether what is decided is counted; in memory nothing is.
            options: further options of the client. The socket timeouts are 0.5 s unless set. They say nothing to
                ``memory://``.

        Raises:
            ConfigurationError: the URL is not one of a Redis-protocol store.
            StoreUnavailable: no node of a cluster answers: its client asks at once, the others when they are used.
        """
        if isinstance(url, str) and url.startswith("memory:"):
            return cls(_memory_client(url), quotas=quotas, prefix=prefix, lowest_first=lowest_first, counts=False)
        limiter = cls(client_of(url, **options), quotas=quotas, prefix=prefix, lowest_first=lowest_first, counts=counts)
        limiter._owns_client = True
        return limiter

    @classmethod
    def from_app(cls, app: Any) -> Limiter:
        """The limiter of a Celery app, on the store of its limits: one an app and process.

        It knows the app's quotas, and the limits of its tasks and queues, by their names.

        Raises:
            ConfigurationError: a setting that cannot be.
        """
        limiter: Limiter = cls.of_app(cls, app)
        return limiter

    def close(self) -> None:
        """End the thread that renews places, and close the connections that this limiter has made.

        What was counted goes to the store before.

        Those of a client that it was given stay open. A block that still runs keeps its place until its lease ends. A
        limiter that is used again connects again.
        """
        self._places.close()
        if self._counting is not None:
            self._counting.close()
        self.asker.close()
        if self._owns_client:
            close_client(self.client)

    def ping(self) -> None:
        """Raises :class:`StoreUnavailable` unless the store answers."""
        self.asker.ping()

    def check_store(self) -> list[str]:
        """Ask whether the store can keep limits, and whether its user may do all that it takes.

        Returns:
            What may go wrong, a sentence each.

        Raises:
            ConfigurationError: the store is too old, a read-only replica, or refuses what is needed; says what to do.
            StoreUnavailable: the store did not answer.
        """
        return self.asker.check_store()

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
        """A ``with`` block that runs when it has its permits.

        >>> with limiter.permit("stripe") as decision:
        ...     call()

        Places under :class:`Concurrency` are held for as long as the block runs, and given back at its end; a thread
        renews them. Other permits are spent, whatever becomes of the block.

        Args:
            limits: as in :meth:`acquire`; so are ``args``, ``key``, ``cost`` and ``priority``.
            max_wait: seconds that the block may wait for its turn. Default: as long as it takes.

        Raises:
            Throttled: its turn is further away than ``max_wait``, or there is no room to wait (a leaky bucket's
                ``capacity``): a ``with`` block cannot be skipped. :meth:`acquire` answers without raising.
        """
        return _Permit(self, self.reader.demands(limits, key, cost, args, priority), max_wait)

    def limited(
        self,
        limits: Limits,
        *,
        key: Key | None = None,
        cost: Cost | None = None,
        priority: int | None = None,
        max_wait: float | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """A decorator: every call of the function takes a permit first, as :meth:`permit` does.

        >>> @limiter.limited(["stripe", "tenant"])
        ... def charge(tenant_id, amount): ...

        Args:
            limits: as in :meth:`acquire`; limits that are given as such need a name.
            key: in place of the keys that limits say themselves: a template over the function's arguments, or a
                callable that gets them. Limits that are not kept by key are left whole; where none is, those that are
                given as such are from here on.
            cost: permits a call takes: a number, the name of an argument, or a callable that gets the arguments.
                Default: what each limit says.
            max_wait: as in :meth:`permit`.

        Raises:
            ConfigurationError: at once, for what no call can be asked by: an unknown quota, an argument that the
                function does not take, a coroutine function or a generator, whose body does not run when it is called.
        """

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if runs_later(function):
                raise ConfigurationError(
                    f"{function!r} does not run when it is called: use AsyncLimiter.limited for a coroutine function, "
                    "and permit() inside of a generator"
                )
            demands = reader_of(function, self.reader.kept_by(limits, key), cost)

            @wraps(function)
            def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                with _Permit(self, self.reader.of_priority(demands(args, kwargs), priority), max_wait):
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
        if leased(decision.demands):
            self._held = decision.id
            try:
                limiter._places.begin(decision.id, decision.demands, decision.granted_at)
            except BaseException:
                self.__exit__()
                raise
        return decision

    def __exit__(self, *_: object) -> None:
        if self._held:
            with suppress(*STORE_TROUBLES):  # the thread tries again
                self._limiter._places.end(self._held)
