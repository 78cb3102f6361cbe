"""The limiter: asks the store for permits. Works in any process and needs no Celery."""

from __future__ import annotations

import itertools
import math
import os
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.retry import Retry

from ._scripts import Link, Script, bulk
from .decision import Decision, LimitState
from .errors import ConfigurationError, StoreUnavailable
from .keys import DEFAULT_PREFIX, bucket_key, bucket_keys
from .limits import AnyLimit, Concurrency, Limit, check_cost

__all__ = ["Demand", "Limiter", "actual_costs", "each_bucket_once", "without_password"]

#: Seconds after which a store that does not answer counts as lost. A worker's event loop waits that long at most.
SOCKET_TIMEOUT = 0.5

#: A blocking call takes its permit at most this many seconds ahead; further away it keeps a slot, which lapses by
#: itself if the caller dies, where a permit would be lost.
_TAKE_AHEAD = 1.0

#: Seconds; thirty years.
_FOREVER = 1e9

#: Permits; more than any limit holds.
_MOST_SETTLED = 10**9


@dataclass(frozen=True)
class Demand:
    """What one call asks of one limit: the limit under its final name, the bucket's key, and the cost."""

    limit: AnyLimit
    name: str
    key: str = ""
    cost: int = 1

    @cached_property
    def interval(self) -> float:
        """The emission interval, in seconds; 0 where there is none."""
        return self.limit.interval

    @cached_property
    def method(self) -> str:
        """The algorithm's name in ``lua/include/``."""
        return self.limit.method

    @cached_property
    def size(self) -> int:
        """The most permits that the limit holds."""
        return self.limit.size

    @cached_property
    def wire(self) -> bytes:
        """The arguments that ``lua/include/request.lua`` reads, as they go over the wire."""
        return bulk(*self.limit.wire(self.cost))


def each_bucket_once(demands: Sequence[Demand]) -> tuple[Demand, ...]:
    """The demands, those on one bucket as one, the dearest: a bucket that is named twice is paid once."""
    buckets: dict[tuple[str, str], Demand] = {}
    for demand in demands:
        known = buckets.setdefault((demand.name, demand.key), demand)
        if demand.cost > known.cost:
            buckets[demand.name, demand.key] = demand
    return tuple(buckets.values())


#: How many values a demand adds to a script's call: two keys and six arguments.
_KEYS, _VALUES = 2, 8

#: What the public methods take as limits.
Limits = str | AnyLimit | Sequence[str | AnyLimit]


def _microseconds(seconds: float) -> int:
    """Rounded up, and no further away than forever: 2^53 µs are as exact as a number in Lua can be."""
    return math.ceil(min(seconds, _FOREVER) * 1e6)


def without_password(url: str) -> str:
    """A URL as it may be shown."""
    return re.sub(r"//.*@", "//**@", url)


class Limiter:
    """Asks for permits in the store, for any process that can reach it.

    A refusal is a :class:`Decision`, not an exception. The limiter may be shared by threads, and by a process and
    its forks: connections are not carried across.

    Args:
        client: a ``redis.Redis``; see :meth:`from_url` for one with fitting timeouts.
        quotas: limits by name, so that calls can name them.
        prefix: what every key in the store begins with.
        replace_includes: Lua includes to put other text in place of; how tests freeze the clock.
    """

    def __init__(
        self,
        client: Redis,
        *,
        quotas: Mapping[str, AnyLimit] | None = None,
        prefix: str = DEFAULT_PREFIX,
        replace_includes: Mapping[str, str] | None = None,
    ) -> None:
        self.client = client
        self.prefix = prefix
        self.quotas = dict(quotas or {})
        self._link = Link(client)
        self._acquire = Script("acquire", replace_includes)
        self._peek = Script("peek", replace_includes)
        self._reserve = Script("reserve", replace_includes)
        self._cancel = Script("cancel", replace_includes)
        self._settle = Script("settle", replace_includes)
        self._forget = Script("forget", replace_includes)
        self._release = Script("release", replace_includes)
        self._renew = Script("renew", replace_includes)
        self._keys = lru_cache(maxsize=1024)(lambda *bucket: bulk(*bucket_keys(prefix, *bucket)))
        self._demand = lru_cache(maxsize=1024)(_demand)
        self._new_id = _Ids()

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        quotas: Mapping[str, AnyLimit] | None = None,
        prefix: str = DEFAULT_PREFIX,
        **options: Any,
    ) -> Limiter:
        """A limiter on the store at ``url`` (``redis://``, ``rediss://``, ``unix://``; Valkey alike).

        Args:
            url: where the store is; its query may set redis-py's connection options.
            options: further options of ``redis.Redis.from_url``. The socket timeouts are 0.5 s unless set.

        Raises:
            ConfigurationError: the URL is not one of a Redis-protocol store.
        """
        options.setdefault("socket_timeout", SOCKET_TIMEOUT)
        options.setdefault("socket_connect_timeout", SOCKET_TIMEOUT)
        # Once more on a connection that a restarted store has closed; never after a timeout, which would double it.
        options.setdefault("retry", Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)))
        try:
            client = Redis.from_url(url.replace("valkey", "redis", 1) if url.startswith("valkey") else url, **options)
        except ValueError as error:
            raise ConfigurationError(
                f"{without_password(url)!r} is not the URL of a Redis or Valkey store: {error}"
            ) from None
        return cls(client, quotas=quotas, prefix=prefix)

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
        demands = self._demands(limits, key, cost)
        if max_wait <= 0:
            return self.ask(demands, id=self._new_id() if _leased(demands) else "")
        return self._wait_for(demands, self._new_id(), max_wait)

    def peek(self, limits: Limits, *, key: str | None = None, cost: int | None = None) -> Decision:
        """What :meth:`acquire` would answer now. Takes nothing; the next caller may be quicker."""
        demands = self._demands(limits, key, cost)
        return self._decision(demands, self._run(self._peek, demands, ""))

    def reset(self, limits: Limits, *, key: str | None = None) -> None:
        """Forget what was taken: the buckets are full again and the slots of those who wait are gone."""
        demands = self._demands(limits, key, None)
        self._store(
            self.client.delete,
            *(k for each in demands for k in bucket_keys(self.prefix, each.name, each.key, each.method)),
        )

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
        demands = self._demands(limits, key, cost)
        if _leased(demands):
            raise ConfigurationError("a place under Concurrency cannot be reserved: nobody knows when one is free")
        return self.reserve_demands(demands, id=id, horizon=horizon)

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
        if not decision.allowed:
            raise ConfigurationError("a call that was refused was charged nothing: there is nothing to settle")
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
        return all(self.renew_leases([(demand, decision.id) for demand in _leased(decision.demands)]))

    # -- The same for demands: what the worker uses ----------------------------------------------------------------

    def ask(self, demands: Sequence[Demand], *, id: str = "", horizon: float = 0.0, claim: float = 0.0) -> Decision:
        """One round trip: the permits of ``demands``, all or none.

        Args:
            demands: what is asked of which limit; a bucket no more than once (:func:`each_bucket_once`).
            id: names the request, so that it finds its slot or lease again. ``""``: it has none.
            horizon: seconds; a permit may be taken that far ahead, and ``retry_after`` says when it is good.
            claim: seconds; if refused, a slot is kept for ``id`` unless it lies further away than that.
        """
        reply = self._run(self._acquire, demands, id, _microseconds(horizon), _microseconds(claim))
        return self._decision(demands, reply, id or self._new_id())

    def reserve_demands(self, demands: Sequence[Demand], *, id: str, horizon: float) -> Decision:
        if not id:
            raise ConfigurationError("a reservation needs an id: it is how it is found again")
        reply = self._run(self._reserve, demands, id, _microseconds(horizon), kind="ids")
        return self._decision(demands, reply, id)

    def cancel_demands(self, demands: Sequence[Demand], *, id: str) -> bool:
        return self._run(self._cancel, demands, id, kind="ids") == [1]

    def settle_demands(self, demands: Sequence[Demand], actual: Sequence[int], *, id: str, granted_at: int) -> bool:
        for demand, cost in zip(demands, actual, strict=True):
            if isinstance(cost, bool) or not isinstance(cost, int) or not 0 <= cost < _MOST_SETTLED:
                raise ConfigurationError(
                    f"limit {demand.name!r}: an actual cost of {cost!r} is not a whole number, 0 or more"
                )
        return self._run(self._settle, demands, id, granted_at, kind="ids", last=actual) == [1]

    def forget(self, demands: Sequence[Demand], *, id: str) -> None:
        """Give back the slots that were kept for ``id``; for a request that will not come back. Idempotent."""
        self._run(self._forget, demands, id)

    def release_demands(self, demands: Sequence[Demand], *, id: str, granted_at: int) -> bool:
        leased = _leased(demands)
        if not leased or not id:
            return False
        pieces = [bulk(self._leases(demand)) for demand in leased]
        pieces.append(bulk(id, granted_at))
        return int(self._store(self._release, self._link, (), len(leased), len(leased) + 2, pieces)) > 0

    def renew_leases(self, leases: Sequence[tuple[Demand, str]]) -> list[bool]:
        """One round trip for the leases of many holders. False for each that has expired."""
        if not leases:
            return []
        number = len(leases)
        pieces = [bulk(*(self._leases(demand) for demand, _ in leases))]
        pieces.append(bulk(*(holder for _, holder in leases)))
        pieces.append(bulk(*(demand.limit.wire(1)[2] for demand, _ in leases)))
        reply = self._store(self._renew, self._link, (), number, 3 * number, pieces)
        return [each in (49, "1") for each in reply]

    def ping(self) -> None:
        """Raises :class:`StoreUnavailable` unless the store answers."""
        self._store(self.client.ping)

    # -- How it is done --------------------------------------------------------------------------------------------

    def _demands(self, limits: Limits, key: str | None, cost: int | None) -> tuple[Demand, ...]:
        several = [limits] if isinstance(limits, (str, Limit, Concurrency)) else limits
        if not several:
            raise ConfigurationError("no limit was named: pass a quota's name, a Limit, or several of them")
        demands = [self._demand(self._quota(each) if isinstance(each, str) else each, key, cost) for each in several]
        return each_bucket_once(demands) if len(demands) > 1 else tuple(demands)

    def _quota(self, name: str) -> AnyLimit:
        try:
            limit = self.quotas[name]
        except KeyError:
            known = ", ".join(sorted(self.quotas)) or "none is defined"
            raise ConfigurationError(f"there is no quota named {name!r} (quotas: {known})") from None
        return limit if limit.name is not None else replace(limit, name=name)

    def _wait_for(self, demands: Sequence[Demand], id: str, max_wait: float) -> Decision:
        deadline = time.monotonic() + max_wait
        while True:
            left = max(0.0, deadline - time.monotonic())
            decision = self.ask(demands, id=id, horizon=min(left, _TAKE_AHEAD), claim=left)
            if not decision.allowed and (decision.full or decision.retry_after > left):
                self.forget(demands, id=id)
                return decision
            time.sleep(decision.retry_after)
            if decision.allowed:
                return decision

    def _leases(self, demand: Demand) -> str:
        return bucket_keys(self.prefix, demand.name, demand.key, demand.method)[0]

    def _run(
        self,
        script: Script,
        demands: Sequence[Demand],
        *first: str | int,
        kind: str | None = None,
        last: Sequence[int] = (),
    ) -> list[int]:
        """Run a script that ``lua/include/request.lua`` reads the demands of; ``kind``: one more key for each."""
        number = len(demands)
        pieces = [self._keys(demand.name, demand.key, demand.method) for demand in demands]
        keys, values = _KEYS * number, _VALUES * number + len(first) + len(last)
        if kind is not None:
            pieces += [bulk(bucket_key(self.prefix, demand.name, demand.key, kind)) for demand in demands]
            keys, values = keys + number, values + number
        methods = demands[0].method if number == 1 else frozenset([demand.method for demand in demands])
        pieces.append(bulk(*first))
        pieces += [demand.wire for demand in demands]
        if last:
            pieces.append(bulk(*last))
        reply: bytes | str | int = self._store(script, self._link, methods, keys, values, pieces)
        return [reply] if isinstance(reply, int) else [int(each) for each in reply.split()]

    def _store(self, call: Any, *args: Any) -> Any:
        try:
            return call(*args)
        except RedisError as error:
            raise StoreUnavailable(f"the limiter's store did not serve a request: {error}") from error

    @staticmethod
    def _decision(demands: Sequence[Demand], reply: Sequence[int], id: str = "") -> Decision:
        allowed, wait, binding, at = reply[:4]
        states = tuple(
            [
                LimitState(demand.name, demand.key, demand.size, remaining, reset / 1e6)
                for demand, remaining, reset in zip(demands, reply[4::2], reply[5::2], strict=True)
            ]
        )
        if binding or len(states) == 1:
            tightest = states[binding - 1]
        else:
            tightest = min(states, key=lambda state: (state.remaining / state.limit, -state.reset_after))
        return Decision(
            allowed == 1,
            tightest.limit,
            tightest.remaining,
            wait / 1e6,
            tightest.reset_after,
            tightest.name if binding else None,
            states,
            allowed < 0,
            id,
            at,
            tuple(demands),
        )


def _demand(limit: AnyLimit, key: str | None, cost: int | None) -> Demand:
    name = limit.name
    if name is None:
        raise ConfigurationError(f"{limit!r} has no name, so it has no bucket in the store: give it name='…'")
    if limit.key is not None and key is None:
        raise ConfigurationError(f"limit {name!r} is kept by key: pass key='…'")
    if key is not None and not isinstance(key, str):
        raise ConfigurationError(f"limit {name!r}: key={key!r} must be a text")
    if isinstance(limit, Concurrency):
        return Demand(limit, name, key or "", 1)
    if cost is None:
        if not isinstance(limit.cost, int):
            raise ConfigurationError(f"limit {name!r} takes its cost from a task's arguments: pass cost=…")
        return Demand(limit, name, key or "", limit.cost)
    return Demand(limit, name, key or "", check_cost(name, cost, limit.most))


def _leased(demands: Sequence[Demand]) -> list[Demand]:
    return [demand for demand in demands if isinstance(demand.limit, Concurrency)]


def actual_costs(demands: Sequence[Demand], actual_cost: int, name: str | None) -> list[int]:
    """What each demand should have cost: those that an actual cost is meant for, and the others as they were."""
    if name is not None:
        chosen = [demand.name == name for demand in demands]
        if not any(chosen):
            known = ", ".join(demand.name for demand in demands)
            raise ConfigurationError(f"there is no limit {name!r} in this decision (limits: {known})")
    else:
        chosen = [not isinstance(demand.limit.cost, int) for demand in demands]
        if not any(chosen):
            chosen = [demand.cost > 1 for demand in demands]
        if not any(chosen):
            chosen = [True] * len(chosen)
    return [actual_cost if is_meant else demand.cost for demand, is_meant in zip(demands, chosen, strict=True)]


class _Ids:
    """Names for requests that have none: unlike any other's, also after a fork."""

    def __init__(self) -> None:
        self._pid = 0

    def __call__(self) -> str:
        if self._pid != os.getpid():
            self._pid, self._stem, self._count = os.getpid(), uuid.uuid4().hex[:20], itertools.count()
        return f"{self._stem}{next(self._count):x}"
