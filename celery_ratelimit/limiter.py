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

from ._scripts import ClusterLink, Script, bulk, link_to
from .arguments import Cost, Key, reader_of, runs_later
from .asking import (
    Asking,
    Call,
    Demand,
    Limits,
    actual_costs,
    check_actual,
    check_reservable,
    check_settled,
    each_bucket_once,
    impossible,
    leased,
    microseconds,
    nap,
    throttled,
    whole_numbers,
)
from .decision import Decision
from .errors import STORE_TROUBLES, ConfigurationError, RateLimitError
from .health import STORE_ERRORS, check_fitness, trouble
from .keys import DEFAULT_PREFIX, bucket_key, changes_key
from .leases import Leases
from .limits import AnyLimit
from .spread import Spread, Step, Steps, parts_of
from .stored import LimitConfig, change_of, length_of, read_config
from .stores import SOCKET_TIMEOUT, client_of, without_password

__all__ = ["SOCKET_TIMEOUT", "Demand", "Limiter", "actual_costs", "each_bucket_once", "without_password"]

#: A blocking call takes its permit at most this many seconds ahead; further away it keeps a slot, which lapses by
#: itself if the caller dies, where a permit would be lost.
TAKE_AHEAD = 1.0


P = ParamSpec("P")
R = TypeVar("R")


def _memory_client(url: str) -> Redis:
    from .memory import memory_client  # needs fakeredis

    return memory_client(url)


class Limiter(Asking):
    """Asks for permits in the store, for any process that can reach it.

    A refusal is a :class:`Decision`, not an exception. The limiter may be shared by threads, and by a process and
    its forks: connections are not carried across.

    Args:
        client: a ``redis.Redis`` (one that a ``Sentinel`` made too) or a ``redis.RedisCluster``; see :meth:`from_url`
            for one with fitting timeouts.
        quotas: limits by name, so that calls can name them.
        prefix: what every key in the store begins with.
        replace_includes: Lua includes to put other text in place of; how tests freeze the clock.
    """

    def __init__(
        self,
        client: Redis | RedisCluster,
        *,
        quotas: Mapping[str, AnyLimit] | None = None,
        prefix: str = DEFAULT_PREFIX,
        replace_includes: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(quotas, prefix, replace_includes)
        self.client = client
        self._link = link_to(client)
        self.is_cluster = isinstance(self._link, ClusterLink)
        self._spread = Spread(self)
        self._time: Any = getattr(client, "clock", time)  # a store in memory brings a clock that tests can stop
        self._places = Leases(self)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        quotas: Mapping[str, AnyLimit] | None = None,
        prefix: str = DEFAULT_PREFIX,
        **options: Any,
    ) -> Limiter:
        """A limiter on the store at ``url`` (``redis://``, ``rediss://``, ``unix://``, ``sentinel://``,
        ``redis+cluster://``; Valkey alike; ``memory://``).

        Args:
            url: where the store is, see :func:`~celery_ratelimit.stores.client_of`; its query may set redis-py's
                connection options.
            options: further options of the client. The socket timeouts are 0.5 s unless set. They say nothing to
                ``memory://``.

        Raises:
            ConfigurationError: the URL is not one of a Redis-protocol store.
            StoreUnavailable: no node of a cluster answers: its client asks at once, the others when they are used.
        """
        if url.startswith("memory:"):
            return cls(_memory_client(url), quotas=quotas, prefix=prefix)
        return cls(client_of(url, **options), quotas=quotas, prefix=prefix)

    # -- Asking ----------------------------------------------------------------------------------------------------

    def acquire(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        cost: int | None = None,
        max_wait: float = 0.0,
    ) -> Decision:
        """Take the permits of one call from every limit in one atomic step, or none of them.

        When a limit is closed the decision says so and how long to wait; nothing was taken. With ``max_wait`` the
        call sleeps to a slot of its own, in the order of arrival, and is refused at once if that slot lies further
        away. Who arrives while others wait joins the line behind them, even if a permit is there at that moment.

        Args:
            limits: a quota's name, a :class:`Limit` that has a name, or several of them.
            key: the bucket, for limits that are kept by key.
            cost: permits to take from each; default: what each limit says.
            max_wait: seconds that the call may sleep for its turn.

        Returns:
            The decision. If it allows, the permit is good now.

        Raises:
            ImpossibleRequest: the cost is above a limit's burst.
            ConfigurationError: an unknown quota, or a limit without a name or key that it needs.
            StoreUnavailable: the store did not answer.

        *Warning*: under :class:`Concurrency` nobody knows when a place will be free: waits are estimates, and callers
        may overtake one another. Without ``max_wait`` a call has no place in the line. While tasks wait for this limit
        (``throttle="retry"``), it is refused; with ``max_wait`` it is served in its turn, behind them.

        The permit is spent when this returns. What the caller does afterwards, and when, is not seen.
        """
        return self._take(self._demands(limits, key, cost), max_wait)

    def permit(
        self, limits: Limits, *, key: str | None = None, cost: int | None = None, max_wait: float | None = None
    ) -> AbstractContextManager[Decision]:
        """A ``with`` block that runs when it has its permits.

        >>> with limiter.permit("stripe") as decision:
        ...     call()

        Places under :class:`Concurrency` are held for as long as the block runs, and given back at its end; a thread
        renews them. Other permits are spent, whatever becomes of the block.

        Args:
            limits: as in :meth:`acquire`; so are ``key`` and ``cost``.
            max_wait: seconds that the block may wait for its turn. Default: as long as it takes.

        Raises:
            Throttled: its turn is further away than ``max_wait``, or there is no room to wait (a leaky bucket's
                ``capacity``): a ``with`` block cannot be skipped. :meth:`acquire` answers without raising.
        """
        return self._permit(self._demands(limits, key, cost), max_wait)

    def limited(
        self, limits: Limits, *, key: Key | None = None, cost: Cost | None = None, max_wait: float | None = None
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """A decorator: every call of the function takes a permit first, as :meth:`permit` does.

        >>> @limiter.limited("stripe", key="tenant:{tenant_id}")
        ... def charge(tenant_id, amount): ...

        Args:
            limits: as in :meth:`acquire`; limits that are given as such need a name.
            key: the bucket: a template over the function's arguments, or a callable that gets them. Default: what
                each limit says.
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
            demands = reader_of(function, self._several(limits), key, cost)

            @wraps(function)
            def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                with self._permit(demands(args, kwargs), max_wait):
                    return function(*args, **kwargs)

            return limited

        return decorate

    def peek(self, limits: Limits, *, key: str | None = None, cost: int | None = None) -> Decision:
        """What :meth:`acquire` would answer now. Takes nothing; the next caller may be quicker."""
        demands = self._demands(limits, key, cost)
        return self._decision(demands, self._run(self._peek, demands, ""))

    def reset(self, limits: Limits, *, key: str | None = None) -> None:
        """Forget what was taken: the buckets are full again and the slots of those who wait are gone."""
        demands = self._demands(limits, key, 1)
        for part in self._by_slot(demands) if self.pretended_wait is None else ():
            self._reply(self._reset, self._reset_pieces([demands[i] for i in part]))

    def reserve(
        self, limits: Limits, *, id: str, horizon: float, key: str | None = None, cost: int | None = None
    ) -> Decision:
        """Take the permits of one call ahead of time, and say how long to wait for them.

        When it is allowed the permits are spent; they are good in ``retry_after`` seconds, and no second call is
        needed then. The same ``id`` finds the same reservation, for an hour after its time.

        Args:
            limits: as in :meth:`acquire`; without :class:`Concurrency`, since nobody can know when a place is free.
            id: names the reservation.
            horizon: seconds; how far ahead the permits may lie. Refused if they would lie further.
            key: the bucket, for limits that are kept by key.
            cost: permits to take from each; default: what each limit says.

        *Warning*: a permit taken ahead is spent even if nobody comes for it: see :meth:`cancel`.
        """
        return self.reserve_demands(self._demands(limits, key, cost), id=id, horizon=horizon)

    def cancel(self, limits: Limits, *, id: str, key: str | None = None, cost: int | None = None) -> bool:
        """Give a reservation back; the arguments are those of :meth:`reserve`. Idempotent.

        What comes back is what can be given to others without anybody exceeding a limit: all of it if nobody has
        reserved behind it, less if somebody has, nothing of a permit that lies in the past for longer than it cost.

        Returns:
            Whether there was such a reservation.
        """
        return self.cancel_demands(self._demands(limits, key, cost), id=id)

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

        Returns:
            Whether it is in force now; False if a newer version stays.

        Raises:
            ConfigurationError: a rate that cannot be read, or a rate for places.

        *Warning*: a stored burst below what a call costs makes that call impossible (:class:`ImpossibleRequest`). A
        change of algorithm clears the line: who waits comes at the time that was told, and then joins it again.
        """
        call = change_of(self, name, rate, key=key, version=version, for_=for_, by=by)
        return bool(self._reply(self._set_rate, call) == 1)

    def try_set_rate(
        self,
        name: str | AnyLimit,
        rate: str | AnyLimit,
        *,
        key: str | None = None,
        for_: float | None = None,
        by: str | None = None,
    ) -> bool:
        """As :meth:`set_rate`, only if no rate is stored. Returns whether it was."""
        call = change_of(self, name, rate, key=key, only_if_none=True, for_=for_, by=by)
        return bool(self._reply(self._set_rate, call) == 1)

    def expire(self, name: str | AnyLimit, seconds: float, *, key: str | None = None) -> bool:
        """The stored rate ends in so many seconds; then the code's holds again. False: none is stored."""
        call = self._timed_call(self._code(name)[0], key, length_of(seconds, "seconds"))
        return bool(self._reply(self._expire_rate, call) == 1)

    def delete(self, name: str | AnyLimit, *, key: str | None = None) -> bool:
        """Take the stored rate away; the code's holds again from the next decision on. False: none is stored.

        What was used stays used: :meth:`reset` forgets that.
        """
        return bool(self._reply(self._expire_rate, self._timed_call(self._code(name)[0], key, 0)) == 1)

    def config(self, name: str | AnyLimit, *, key: str | None = None) -> LimitConfig:
        """What is in force for a limit, since when and by whom: code and store side by side."""
        limit_name, code = self._code(name)
        return read_config(limit_name, key or "", code, self._reply(self._config, self._config_call(limit_name, key)))

    def available(self, limits: Limits, *, key: str | None = None) -> int:
        """Permits that could be taken now: of the limit that has the fewest. The next caller may be quicker."""
        decision = self.peek(limits, key=key, cost=1)
        return min(state.remaining for state in decision.states) if decision.allowed else 0

    def pause(self, name: str | AnyLimit, seconds: float, *, key: str | None = None) -> float:
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
        call = self._timed_call(self._code(name)[0], key, length_of(seconds, "seconds"))
        return int(self._reply(self._pause, call)) / 1e6

    def resume(self, name: str | AnyLimit, *, key: str | None = None) -> bool:
        """End a pause. False: there was none."""
        return bool(self._reply(self._pause, self._timed_call(self._code(name)[0], key, 0)) == 1)

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
            return [self._store(self.client.get, key) for key in keys]
        return list(self._store(self.client.mget, keys))

    def ping(self) -> None:
        """Raises :class:`StoreUnavailable` unless the store answers."""
        if self.pretended_wait is not None:
            return
        if self.is_cluster:
            self._store(self._ping_all)  # which also finds out who has taken a lost node's place
        else:
            self._store(self.client.ping)

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
        key = bucket_key(self.prefix, "start-up", "", "probe")
        self._store(self._probe, self._link, (), 1, 1, [bulk(key)])
        return warnings

    # -- How it is done --------------------------------------------------------------------------------------------

    def _take(self, demands: Sequence[Demand], max_wait: float) -> Decision:
        if max_wait <= 0:
            return self.ask(demands, id=self._new_id() if leased(demands) else "")
        return self._wait_for(demands, self._new_id(), max_wait)

    @contextmanager
    def _permit(self, demands: Sequence[Demand], max_wait: float | None) -> Iterator[Decision]:
        decision = self._take(demands, math.inf if max_wait is None else max_wait)
        if not decision.allowed:
            raise throttled(decision)
        self._places.begin(decision.id, decision.demands, decision.granted_at)
        try:
            yield decision
        finally:
            with suppress(*STORE_TROUBLES):  # the thread tries again
                self._places.end(decision.id)

    def _wait_for(self, demands: Sequence[Demand], id: str, max_wait: float) -> Decision:
        deadline = self._time.monotonic() + max_wait
        while True:
            left = max(0.0, deadline - self._time.monotonic())
            decision = self.ask(demands, id=id, horizon=min(left, TAKE_AHEAD), claim=left)
            if not decision.allowed and (decision.full or decision.retry_after > left or self.pretended_wait):
                self.forget(demands, id=id)
                return decision
            self._time.sleep(nap(decision))
            if decision.allowed:
                return decision

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
        """One decision by several scripts, see :mod:`~celery_ratelimit.spread`."""
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
        """Run a script on the limiter's store, see :class:`~celery_ratelimit._scripts.Script`."""
        return self._store(script, self._link, methods, keys, values, pieces)

    def _store(self, call: Any, *args: Any) -> Any:
        try:
            return call(*args)
        except STORE_ERRORS as error:
            raise trouble(error) from error
