"""The limiter: asks the store for permits. Works in any process and needs no Celery."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from redis import Redis, RedisCluster
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..errors import STORE_TROUBLES, ConfigurationError, RateLimitError, StoreUnavailable
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from ..limits.decision import Decision
from ..store.cluster import ClusterLink
from ..store.health import STORE_ERRORS, check_fitness, out_of_reach, trouble
from ..store.keys import DEFAULT_PREFIX, bucket_key, changes_key
from ..store.links import link_to
from ..store.refusals import addresses_of, mend_by_asking
from ..store.resp import bulk
from ..store.script import Script
from ..store.url import SOCKET_TIMEOUT, client_of, close_client
from ..store.url_text import without_password
from .arguments import Cost, Key, reader_of, runs_later
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
from .demand import Demand, Limits, each_bucket_once, leased
from .leases import UNKNOWN, Leases
from .stored import LimitConfig, change_of, length_of, read_config

__all__ = ["SOCKET_TIMEOUT", "Demand", "Limiter", "actual_costs", "each_bucket_once", "without_password"]

#: A blocking call takes its permit at most this many seconds ahead; further away it keeps a slot, which lapses by
#: itself if the caller dies, where a permit would be lost.
TAKE_AHEAD = 1.0


P = ParamSpec("P")
R = TypeVar("R")


def _memory_client(url: str) -> Redis:
    from ..store.memory import memory_client

    return memory_client(url)


class Limiter(Asking):
    """Asks for permits in the store, for any process that can reach it.

    A refusal is a :class:`Decision`, not an exception. The limiter may be shared by threads, and by a process and
    its forks: connections are not carried across.

    Args:
        client: a ``redis.Redis`` (one that a ``Sentinel`` made too) or a ``redis.RedisCluster``; see :meth:`from_url`
            for one with fitting timeouts.
        quotas: limits by name, so that calls can name them; each as in ``ratelimit_quotas``: a rate, a :class:`Limit`,
            a :class:`Concurrency`, or a mapping of its arguments.
        prefix: what every key in the store begins with.
        replace_includes: Lua includes to put other text in place of; how tests freeze the clock.
    """

    def __init__(
        self,
        client: Redis | RedisCluster,
        *,
        quotas: Mapping[str, Any] | None = None,
        prefix: str = DEFAULT_PREFIX,
        replace_includes: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(quotas, prefix, replace_includes)
        self.client = client
        self._link = link_to(client)
        self.is_cluster = isinstance(self._link, ClusterLink)
        self._spread = CrossSlot(self)
        self._time: Any = getattr(client, "clock", time)  # a store in memory brings a clock that tests can stop
        self._places = Leases(self)
        self._owns_client = False
        self._served = False

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        quotas: Mapping[str, Any] | None = None,
        prefix: str = DEFAULT_PREFIX,
        **options: Any,
    ) -> Limiter:
        """A limiter on the store at ``url`` (``redis://``, ``rediss://``, ``unix://``, ``sentinel://``,
        ``redis+cluster://``; Valkey alike; ``memory://``).

        Args:
            url: where the store is, see :func:`~celery_ratelimit.store.url.client_of`; its query may set redis-py's
                connection options.
            options: further options of the client. The socket timeouts are 0.5 s unless set. They say nothing to
                ``memory://``.

        Raises:
            ConfigurationError: the URL is not one of a Redis-protocol store.
            StoreUnavailable: no node of a cluster answers: its client asks at once, the others when they are used.
        """
        if isinstance(url, str) and url.startswith("memory:"):
            return cls(_memory_client(url), quotas=quotas, prefix=prefix)
        limiter = cls(client_of(url, **options), quotas=quotas, prefix=prefix)
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

        Those of a client that it was given stay open. A block that still runs keeps its place until its lease ends. A
        limiter that is used again connects again.
        """
        self._places.close()
        self._link.close()
        if self._owns_client:
            close_client(self.client)

    def __enter__(self) -> Limiter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- Asking ----------------------------------------------------------------------------------------------------

    def acquire(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
        max_wait: float = 0.0,
    ) -> Decision:
        """Take the permits of one call from every limit in one atomic step, or none of them.

        When a limit is closed the decision says so and how long to wait; nothing was taken. With ``max_wait`` the
        call sleeps to a slot of its own, in the order of arrival, and is refused at once if that slot lies further
        away. Who arrives while others wait joins the line behind them, even if a permit is there at that moment.

        Args:
            limits: a quota's name, a :class:`Limit` that has a name, or several of them.
            args: what the call is about, by name: each limit takes its own key and cost from it, as from the arguments
                of a task.
            key: the bucket as it is shown everywhere, for limits that are kept by key; the others are whole.
            cost: permits to take from each; default: what each limit says.
            max_wait: seconds that the call may sleep for its turn.

        Returns:
            The decision. If it allows, the permit is good now.

        Raises:
            ImpossibleRequest: the cost is above a limit's burst.
            ConfigurationError: an unknown quota, a limit without a name or key that it needs, or a key where none of
                the limits is kept by key.
            StoreUnavailable: the store did not answer.

        *Warning*: under :class:`Concurrency` nobody knows when a place will be free: waits are estimates, and callers
        may overtake one another. Without ``max_wait`` a call has no place in the line. While tasks wait for this limit
        (``throttle="retry"``), it is refused; with ``max_wait`` it is served in its turn, behind them. A call that
        sleeps hears of no change: when a rate is raised, a pause is ended or a bucket is reset, it sleeps to the turn
        that it was told. Where that matters, wait for a part of the time, and call again.

        The permit is spent when this returns. What the caller does afterwards, and when, is not seen.
        """
        return self._take(self._demands(limits, key, cost, args), max_wait)

    def permit(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
        max_wait: float | None = None,
    ) -> AbstractContextManager[Decision]:
        """A ``with`` block that runs when it has its permits.

        >>> with limiter.permit("stripe") as decision:
        ...     call()

        Places under :class:`Concurrency` are held for as long as the block runs, and given back at its end; a thread
        renews them. Other permits are spent, whatever becomes of the block.

        Args:
            limits: as in :meth:`acquire`; so are ``args``, ``key`` and ``cost``.
            max_wait: seconds that the block may wait for its turn. Default: as long as it takes.

        Raises:
            Throttled: its turn is further away than ``max_wait``, or there is no room to wait (a leaky bucket's
                ``capacity``): a ``with`` block cannot be skipped. :meth:`acquire` answers without raising.
        """
        return self._permit(self._demands(limits, key, cost, args), max_wait)

    def limited(
        self, limits: Limits, *, key: Key | None = None, cost: Cost | None = None, max_wait: float | None = None
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
            demands = reader_of(function, self._kept_by(limits, key), cost)

            @wraps(function)
            def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                with self._permit(demands(args, kwargs), max_wait):
                    return function(*args, **kwargs)

            return limited

        return decorate

    def peek(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
    ) -> Decision:
        """What :meth:`acquire` would answer now. Takes nothing; the next caller may be quicker."""
        demands = self._demands(limits, key, cost, args)
        return self._decision(demands, self._run(self._peek, demands, ""))

    def reset(
        self, limits: Limits, *, key: str | None = None, args: Mapping[str, Any] | None = None, force: bool = False
    ) -> None:
        """Forget what was taken: the buckets are full again and the slots of those who wait are gone.

        What had been reserved for later than now is good still, on top. Cancelled or settled afterwards, it may give
        permits back that others have taken since.

        With ``force`` a name that is no quota here means whatever limit bears it; see :meth:`set_rate`.
        """
        demands = self._demands_to_reset(limits, key, args, force=force)
        for part in self._by_slot(demands) if self.pretended_wait is None else ():
            self._reply(self._reset, self._reset_pieces([demands[i] for i in part]))

    def reserve(
        self,
        limits: Limits,
        *,
        id: str,
        horizon: float,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
    ) -> Decision:
        """Take the permits of one call ahead of time, and say how long to wait for them.

        When it is allowed the permits are spent; they are good in ``retry_after`` seconds, and no second call is
        needed then. The same ``id`` finds the same reservation, for an hour after its time.

        Args:
            limits: as in :meth:`acquire`; without :class:`Concurrency`, since nobody can know when a place is free.
            id: names the reservation.
            horizon: seconds; how far ahead the permits may lie. Refused if they would lie further.
            args, key, cost: as in :meth:`acquire`.

        *Warning*: a permit taken ahead is spent even if nobody comes for it: see :meth:`cancel`. Under an id that more
        limits were reserved with, these alone are found, and nothing is said; under one with fewer limits it is an
        error (but on a cluster those that are on other nodes are reserved too).
        """
        return self.reserve_demands(
            self._demands(limits, key, cost, args), id=id, horizon=seconds_of("horizon", horizon, 0)
        )

    def cancel(
        self,
        limits: Limits,
        *,
        id: str,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
    ) -> bool:
        """Give a reservation back; the arguments are those of :meth:`reserve`. Idempotent.

        What comes back is what can be given to others without anybody exceeding a limit: all of it if nobody has
        reserved behind it, less if somebody has, nothing of a permit that lies in the past for longer than it cost.

        Returns:
            Whether there was such a reservation.
        """
        return self.cancel_demands(self._demands(limits, key, cost, args), id=id)

    def settle(self, decision: Decision, actual_cost: int, *, limit: str | None = None) -> bool:
        """Correct what a granted call was charged, once it is known: more is charged, less is given back.

        For costs that are known only afterwards (tokens of a language model): acquire with an estimate, settle with
        the truth. It counts once, however often it is called for a decision. What was too much comes back as far as
        nobody can exceed the limit by it: all of it from windows; from a token bucket what it would still hold if it
        had never lent it, less what has come back since; nothing under warm-up.

        Args:
            decision: the one that allowed the call.
            actual_cost: permits; 0 or more, and it may be above what the limit holds: those who come next wait.
            limit: the name of the limit to settle. Default: those whose cost is not a fixed number; if there are none,
                those that take more than one permit; else all.

        Returns:
            Whether this call corrected it; False if an earlier one had.
        """
        check_settled(decision)
        if not decision.demands:
            return False
        return self.settle_demands(
            decision.demands,
            actual_costs(decision.demands, actual_cost, limit),
            id=decision.id,
            granted_at=decision.granted_at,
        )

    def release(self, decision: Decision) -> bool:
        """Give back the places under :class:`Concurrency` that a call holds. Idempotent; False: there were none."""
        return self.release_demands(decision.demands, id=decision.id, granted_at=decision.granted_at)

    def renew(self, decision: Decision) -> bool:
        """Keep the places that a call holds for another ``lease`` seconds from now. False: one had expired."""
        return all(self.renew_leases([(demand, decision.id) for demand in leased(decision.demands)]))

    # -- What people store -----------------------------------------------------------------------------------------

    def set_rate(
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
        """Put a rate in the place of the code's, for every process and from its next decision on.

        Tokens are kept, not time: what was used stays used, and comes back at the new rate, also when the algorithm
        becomes another. Those who wait come earlier or later accordingly.

        Args:
            name: the limit's name, or the limit.
            rate: a rate (the other options stay those of the quota of that name here), a :class:`Limit` or, for places,
                a :class:`Concurrency`. Its name, key, cost, lease
                and per_worker do not count: they are the code's.
            key: for one bucket of a limit that is kept by key; goes before what is stored for the whole limit.
            version: a number that grows with each deploy. Nothing is changed if this or a higher version was set
                before, so that an old process, or a deploy that is rolled back, cannot undo a newer change. Without
                one (a change by hand) it is changed in any case, and the version stays.
            for_: seconds after which the code's rate holds again. Default: it stays until somebody changes it.
            by: who it was; default: user and host.
            force: also for a name that nobody knows: no quota of this limiter, no limit of its app's tasks and queues,
                and nothing in the store, where a limit is known as long as it is stored, paused or in use. (One that
                is kept by key and known nowhere here is found there by what is stored for it, or by ``key``.) All that
                is done to a limit by its name takes it.

        Returns:
            Whether it is in force now; False if a newer version stays.

        Raises:
            ConfigurationError: a rate that cannot be read, a rate for places, or a name that nobody knows.

        *Warning*: a stored burst below what a call costs makes that call impossible (:class:`ImpossibleRequest`). A
        change of algorithm clears the line: who waits comes at the time that was told, and then joins it again.
        """
        known = self._named(name, key, force)
        call = change_of(self, *known, rate, key=key, version=version, for_=for_, by=by)
        return bool(self._reply(self._set_rate, call) == 1)

    def try_set_rate(
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
        known = self._named(name, key, force)
        call = change_of(self, *known, rate, key=key, only_if_none=True, for_=for_, by=by)
        return bool(self._reply(self._set_rate, call) == 1)

    def expire(self, name: str | AnyLimit, seconds: float, *, key: str | None = None, force: bool = False) -> bool:
        """The stored rate ends in so many seconds; then the code's holds again. False: none is stored."""
        us = length_of(seconds, "seconds")
        call = self._timed_call((self._named(name, key, force))[0], key, us)
        return bool(self._reply(self._expire_rate, call) == 1)

    def delete(self, name: str | AnyLimit, *, key: str | None = None, force: bool = False) -> bool:
        """Take the stored rate away; the code's holds again from the next decision on. False: none is stored.

        What was used stays used: :meth:`reset` forgets that.
        """
        call = self._timed_call((self._named(name, key, force))[0], key, 0)
        return bool(self._reply(self._expire_rate, call) == 1)

    def config(self, name: str | AnyLimit, *, key: str | None = None, force: bool = False) -> LimitConfig:
        """What is in force for a limit, since when and by whom: code and store side by side."""
        limit_name, code = self._named(name, key, force)
        return read_config(limit_name, key or "", code, self._reply(self._config, self._config_call(limit_name, key)))

    def available(self, limits: Limits, *, key: str | None = None, args: Mapping[str, Any] | None = None) -> int:
        """Permits that could be taken now: of the limit that has the fewest. The next caller may be quicker."""
        decision = self.peek(limits, key=key, args=args, cost=1)
        return min(state.remaining for state in decision.states) if decision.allowed else 0

    def pause(self, name: str | AnyLimit, seconds: float, *, key: str | None = None, force: bool = False) -> float:
        """Let nothing through for so many seconds, in the whole fleet, from the next decision on.

        For an upstream that says ``Retry-After``. A shorter pause never shortens one that is there.

        Args:
            name: the limit's name, or the limit.
            seconds: how long from now.
            key: only this bucket of a limit that is kept by key.

        Returns:
            Seconds that it is paused for, from now.

        *Warning*: permits that were taken ahead are used still: a tenth of a second at most for tasks in a worker, a
        second for calls that wait (``max_wait``).
        """
        us = length_of(seconds, "seconds")
        call = self._timed_call((self._named(name, key, force))[0], key, us)
        return int(self._reply(self._pause, call)) / 1e6

    def resume(self, name: str | AnyLimit, *, key: str | None = None, force: bool = False) -> bool:
        """End a pause. False: there was none."""
        call = self._timed_call((self._named(name, key, force))[0], key, 0)
        return bool(self._reply(self._pause, call) == 1)

    # -- The same for demands: what the worker uses ----------------------------------------------------------------

    def ask(self, demands: Sequence[Demand], *, id: str = "", horizon: float = 0.0, claim: float = 0.0) -> Decision:
        """One round trip: the permits of ``demands``, all or none.

        Args:
            demands: what is asked of which limit; a bucket no more than once (:func:`each_bucket_once`).
            id: names the request, so that it finds its slot or lease again. ``""``: it has none.
            horizon: seconds; a permit may be taken that far ahead, and ``retry_after`` says when it is good.
            claim: seconds; if refused, a slot is kept for ``id`` unless it lies further away than that.
        """
        reply = self._run(self._acquire, demands, id, microseconds(horizon), microseconds(claim))
        return self._decision(demands, reply, id or self._new_id())

    def reserve_demands(self, demands: Sequence[Demand], *, id: str, horizon: float) -> Decision:
        check_reservable(demands, id)
        reply = self._run(self._reserve, demands, id, microseconds(horizon), kind="ids")
        return self._decision(demands, reply, id)

    def cancel_demands(self, demands: Sequence[Demand], *, id: str) -> bool:
        return self._run(self._cancel, demands, id, kind="ids") == [1]

    def settle_demands(self, demands: Sequence[Demand], actual: Sequence[int], *, id: str, granted_at: int) -> bool:
        check_actual(demands, actual)
        return self._run(self._settle, demands, id, granted_at, kind="ids", last=actual) == [1]

    def forget(self, demands: Sequence[Demand], *, id: str) -> None:
        """Give back the slots that were kept for ``id``; for a request that will not come back. Idempotent."""
        self._run(self._forget, demands, id)

    def release_demands(self, demands: Sequence[Demand], *, id: str, granted_at: int) -> bool:
        places = leased(demands)
        if not places or not id:
            return False
        released = 0
        for part in self._by_slot(places):
            pieces = self._release_pieces([places[i] for i in part], id, granted_at)
            released += int(self._store(self._release, self._link, *pieces))
        return released > 0

    def renew_leases(self, leases: Sequence[tuple[Demand, str]]) -> list[bool]:
        """One round trip for the leases of many holders. False for each that has expired."""
        if not leases:
            return []
        kept: dict[int, bool] = {}
        for part in self._by_slot([demand for demand, _ in leases]):
            reply = self._store(self._renew, self._link, *self._renew_pieces([leases[i] for i in part]))
            kept.update(zip(part, [each in (49, "1") for each in reply], strict=True))
        return [kept[i] for i in range(len(leases))]

    def changes(self, names: Sequence[str]) -> list[bytes | str | None]:
        """For each limit, a text that is another one when a stored rate was changed or a pause was ended."""
        keys = [changes_key(self.prefix, name) for name in names]
        if isinstance(self._link, ClusterLink):
            return [self._store(self._link.call, "GET", key) for key in keys]
        return list(self._store(self._link.call, "MGET", *keys))

    def ping(self) -> None:
        """Raises :class:`StoreUnavailable` unless the store answers."""
        if self.pretended_wait is not None:
            return
        if self.is_cluster:
            self._store(self._ping_all)  # which also finds out who has taken a lost node's place
        else:
            self._store(self._link.call, "PING")

    def probe(self) -> None:
        """Do once what requests do, on a key that nothing else uses. Raises what they would raise.

        A store that is full, that may not be written to, or whose user has lost a right, answers to a ``PING``.
        """
        self.ping()
        if self.pretended_wait is not None:
            return
        link = self._link
        names = link.name_for_each_node("start-up") if isinstance(link, ClusterLink) else ["start-up"]
        for name in names:
            self._store(self._probe, link, (), 1, 1, [bulk(bucket_key(self.prefix, name, "", "probe"))])

    @property
    def is_moving(self) -> bool:
        """Whether the Sentinels are making another server the master: what is written now may be lost."""
        return self._link.is_moving

    def check_store(self) -> list[str]:
        """Ask whether the store can keep limits, and whether its user may do all that it takes.

        Returns:
            What may go wrong, a sentence each.

        Raises:
            ConfigurationError: the store is too old, a read-only replica, or refuses what is needed; says what to do.
            StoreUnavailable: the store did not answer.
        """
        self.ping()
        if self.pretended_wait is not None:
            return []
        node = {"target_nodes": self.client.get_default_node()} if self.is_cluster else {}
        warnings = check_fitness(lambda section: self._store_says(section, node))
        self.probe()
        return warnings

    def _named(self, name: str | AnyLimit, key: str | None, force: bool) -> tuple[str, AnyLimit | None]:
        """A limit that somebody knows, by its name; and as the code here has it."""
        known, code = self._code(name, key, force=force)
        if code is None and not force and not self._store(self.client.exists, *self._traces(known, key)):
            raise self._unknown(known)
        return known, code

    # -- How it is done --------------------------------------------------------------------------------------------

    def _take(self, demands: Sequence[Demand], max_wait: float) -> Decision:
        max_wait = seconds_of("max_wait", max_wait) if max_wait != 0 else 0.0
        waits = max_wait > 0
        if not waits and not leased(demands):
            return self.ask(demands)
        id = self._new_id()
        decision = None
        try:
            if not waits:
                return self.ask(demands, id=id)
            deadline = self._time.monotonic() + max_wait
            while True:
                left = max(0.0, deadline - self._time.monotonic())
                decision = None
                decision = self.ask(demands, id=id, horizon=min(left, TAKE_AHEAD), claim=left)
                if not decision.allowed and (decision.full or decision.retry_after > left or self.pretended_wait):
                    self.forget(demands, id=id)
                    return decision
                self._time.sleep(nap(decision))
                if decision.allowed:
                    return decision
        except RateLimitError:
            raise
        except BaseException:  # a soft time limit, Ctrl-C, a greenlet that is ended
            self._give_back(demands, id, decision)
            raise

    def _give_back(self, demands: Sequence[Demand], id: str, decision: Decision | None) -> None:
        """What a call has got that was interrupted. ``decision``: what it was told; ``None``: not known."""
        with suppress(*STORE_TROUBLES):  # then a slot lapses by itself, a lease too, and a permit is lost
            if decision is not None and decision.allowed:
                rates = [demand for demand in demands if not isinstance(demand.limit, Concurrency)]
                if rates:
                    self.settle_demands(rates, [0] * len(rates), id=decision.id, granted_at=decision.granted_at)
                self.release_demands(demands, id=decision.id, granted_at=decision.granted_at)
                return
            self.forget(demands, id=id)
            if decision is None:
                self.release_demands(demands, id=id, granted_at=UNKNOWN)

    @contextmanager
    def _permit(self, demands: Sequence[Demand], max_wait: float | None) -> Iterator[Decision]:
        decision = self._take(demands, math.inf if max_wait is None else max_wait)
        if not decision.allowed:
            raise throttled(decision)
        try:
            self._places.begin(decision.id, decision.demands, decision.granted_at)
            yield decision
        finally:
            with suppress(*STORE_TROUBLES):  # the thread tries again
                self._places.end(decision.id)

    def _run(
        self,
        script: Script,
        demands: Sequence[Demand],
        *first: str | int,
        kind: str | None = None,
        last: Sequence[int] = (),
    ) -> list[int]:
        if self.pretended_wait is not None:
            return self._pretended(script, demands, first)
        if self.is_cluster and (parts := self._spread.parts(tuple(demands))):
            return self._in_turn(self._spread.steps(script, parts, first, kind, last))
        try:
            return whole_numbers(
                self._store(script, self._link, *self._pieces(script, tuple(demands), first, kind, last))
            )
        except RateLimitError as error:
            raise impossible(demands, error) from error.__cause__

    def _in_turn(self, asks: Steps) -> list[int]:
        """One decision by several scripts, see :mod:`~celery_ratelimit.limiter.cross_slot`."""
        try:
            steps = next(asks)
            while True:
                steps = asks.send(self._run_each(steps))
        except StopIteration as end:
            result: list[int] = end.value
            return result

    def _run_each(self, steps: Sequence[Step]) -> list[list[int] | RateLimitError]:
        """Several scripts at once, each on a node of its own."""
        link = self._link
        if len(steps) < 2 or not isinstance(link, ClusterLink):
            return [self._run_one(step) for step in steps]
        calls = [
            (step.script, self._pieces(step.script, step.demands, step.first, step.kind, step.last)) for step in steps
        ]
        said = link.exchange_all([script.command(*call) for script, call in calls])
        # What has not been run by a node, for whatever reason, is run in the usual way, which sees to it.
        return [
            self._run_one(step)
            if isinstance(reply, Exception) and not isinstance(reply, RedisTimeoutError)
            else trouble(reply)
            if isinstance(reply, Exception)
            else whole_numbers(reply)
            for step, reply in zip(steps, said, strict=True)
        ]

    def _run_one(self, step: Step) -> list[int] | RateLimitError:
        try:
            if step.script is self._release:
                id, granted_at = step.first
                return [int(self.release_demands(step.demands, id=str(id), granted_at=int(granted_at)))]
            return self._run(step.script, step.demands, *step.first, kind=step.kind, last=step.last)
        except RateLimitError as error:
            return error

    def _by_slot(self, demands: Sequence[Demand]) -> list[Sequence[int]]:
        """The demands by their places, those together that one script can see."""
        parts = parts_of(demands) if self.is_cluster else ()
        return [part.places for part in parts] or [range(len(demands))]

    def _ping_all(self) -> None:
        self.client.ping(target_nodes=RedisCluster.PRIMARIES)

    def _store_says(self, section: str, node: Mapping[str, Any]) -> Any:
        """A section of ``INFO``; a cluster's client may put the node's name to it."""
        said = self.client.info(section, **node)
        return next(iter(said.values())) if node and len(said) == 1 else said

    def _reply(self, script: Script, call: Call) -> Any:
        return self._store(script, self._link, *call)

    def run_script(self, script: Script, methods: Hashable, keys: int, values: int, pieces: Sequence[bytes]) -> Any:
        """Run a script on the limiter's store, see :class:`~celery_ratelimit.store.script.Script`."""
        return self._store(script, self._link, methods, keys, values, pieces)

    def _store(self, call: Any, *args: Any) -> Any:
        try:
            answer = call(*args)
        except STORE_ERRORS as error:
            raise self._trouble(error) from error
        self._served = True
        return answer

    def _trouble(self, error: Exception) -> RateLimitError:
        told = trouble(error)
        if not self._served and isinstance(told, StoreUnavailable):  # it may never do
            mend = mend_by_asking(error, addresses_of(self.client), SOCKET_TIMEOUT)
            return told if mend is None else out_of_reach(error, mend)
        return told
