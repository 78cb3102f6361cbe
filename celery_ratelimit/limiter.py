"""The limiter: asks the store for permits. Works in any process and needs no Celery."""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from .keys import DEFAULT_PREFIX, bucket_keys
from .limits import Limit, check_cost

__all__ = ["Demand", "Limiter", "each_bucket_once", "without_password"]

#: Seconds after which a store that does not answer counts as lost. A worker's event loop waits that long at most.
SOCKET_TIMEOUT = 0.5

#: A blocking call takes its permit at most this many seconds ahead; further away it keeps a slot, which lapses by
#: itself if the caller dies, where a permit would be lost.
_TAKE_AHEAD = 1.0

#: Seconds; thirty years.
_FOREVER = 1e9


@dataclass(frozen=True)
class Demand:
    """What one call asks of one limit: the limit under its final name, the bucket's key, and the cost."""

    limit: Limit
    name: str
    key: str = ""
    cost: int = 1

    @cached_property
    def interval(self) -> float:
        """The emission interval, in seconds."""
        return self.limit.parsed.interval

    @cached_property
    def wire(self) -> bytes:
        """The arguments that ``lua/include/request.lua`` reads, as they go over the wire."""
        rate = self.limit.parsed
        return bulk(self.limit.algorithm, rate.count, rate.period_us, self.limit.burst, self.cost)


def each_bucket_once(demands: Sequence[Demand]) -> tuple[Demand, ...]:
    """The demands, those on one bucket as one, the dearest: a bucket that is named twice is paid once."""
    buckets: dict[tuple[str, str], Demand] = {}
    for demand in demands:
        known = buckets.setdefault((demand.name, demand.key), demand)
        if demand.cost > known.cost:
            buckets[demand.name, demand.key] = demand
    return tuple(buckets.values())


#: How many values a demand adds to a script's call: two keys and five arguments.
_KEYS, _VALUES = 2, 7


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
        quotas: Mapping[str, Limit] | None = None,
        prefix: str = DEFAULT_PREFIX,
        replace_includes: Mapping[str, str] | None = None,
    ) -> None:
        self.client = client
        self.prefix = prefix
        self.quotas = dict(quotas or {})
        self._link = Link(client)
        self._acquire = Script("acquire", replace_includes)
        self._peek = Script("peek", replace_includes)
        self._keys = lru_cache(maxsize=1024)(lambda name, key: bulk(*bucket_keys(prefix, name, key)))
        self._demand = lru_cache(maxsize=1024)(self._make_demand)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        quotas: Mapping[str, Limit] | None = None,
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
        limits: str | Limit | Sequence[str | Limit],
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

        *Warning*: without ``max_wait`` a call has no place in the line. While tasks wait for this limit
        (``throttle="retry"``), it is refused; with ``max_wait`` it is served in its turn, behind them.

        The permit is spent when this returns. What the caller does afterwards, and when, is not seen.
        """
        demands = self._demands(limits, key, cost)
        if max_wait <= 0:
            return self.ask(demands)
        return self._wait_for(demands, max_wait)

    def peek(
        self, limits: str | Limit | Sequence[str | Limit], *, key: str | None = None, cost: int | None = None
    ) -> Decision:
        """What :meth:`acquire` would answer now. Takes nothing; the next caller may be quicker."""
        demands = self._demands(limits, key, cost)
        return self._decision(demands, self._run(self._peek, demands, ""))

    def reset(self, limits: str | Limit | Sequence[str | Limit], *, key: str | None = None) -> None:
        """Forget what was taken: the buckets are full again and the slots of those who wait are gone."""
        demands = self._demands(limits, key, None)
        self._store(self.client.delete, *(k for each in demands for k in bucket_keys(self.prefix, each.name, each.key)))

    def ask(self, demands: Sequence[Demand], *, id: str = "", horizon: float = 0.0, claim: float = 0.0) -> Decision:
        """One round trip: the permits of ``demands``, all or none.

        Args:
            demands: what is asked of which limit.
            id: names the request, so that it finds its slot again. ``""``: it has none.
            horizon: seconds; a permit may be taken that far ahead, and ``retry_after`` says when it is good.
            claim: seconds; if refused, a slot is kept for ``id`` unless it lies further away than that.
        """
        if len(demands) > 1:
            demands = each_bucket_once(demands)
        return self._decision(
            demands, self._run(self._acquire, demands, id, _microseconds(horizon), _microseconds(claim))
        )

    def forget(self, demands: Sequence[Demand], *, id: str) -> None:
        """Give back the slots that were kept for ``id``; for a request that will not come back. Idempotent."""
        for demand in demands:
            _, slots = bucket_keys(self.prefix, demand.name, demand.key)
            self._store(self.client.zrem, slots, id)

    def ping(self) -> None:
        """Raises :class:`StoreUnavailable` unless the store answers."""
        self._store(self.client.ping)

    # -- How it is done --------------------------------------------------------------------------------------------

    def _demands(self, limits: str | Limit | Sequence[str | Limit], key: str | None, cost: int | None) -> list[Demand]:
        several = [limits] if isinstance(limits, (str, Limit)) else limits
        if not several:
            raise ConfigurationError("no limit was named: pass a quota's name, a Limit, or several of them")
        return [self._demand(each, key, cost) for each in several]

    def _make_demand(self, limit: str | Limit, key: str | None, cost: int | None) -> Demand:
        if isinstance(limit, str):
            name = limit
            if name not in self.quotas:
                known = ", ".join(sorted(self.quotas)) or "none is defined"
                raise ConfigurationError(f"there is no quota named {name!r} (quotas: {known})")
            limit = self.quotas[name]
            name = limit.name or name
        elif limit.name is None:
            raise ConfigurationError(
                f"Limit({limit.rate!r}) has no name, so it has no bucket in the store: give it name='…'"
            )
        else:
            name = limit.name
        if limit.key is not None and key is None:
            raise ConfigurationError(f"limit {name!r} is kept by key: pass key='…'")
        if cost is None:
            if not isinstance(limit.cost, int):
                raise ConfigurationError(f"limit {name!r} takes its cost from a task's arguments: pass cost=…")
            return Demand(limit, name, key or "", limit.cost)
        return Demand(limit, name, key or "", check_cost(name, cost, limit.burst))

    def _wait_for(self, demands: Sequence[Demand], max_wait: float) -> Decision:
        id = uuid.uuid4().hex
        deadline = time.monotonic() + max_wait
        while True:
            left = max(0.0, deadline - time.monotonic())
            decision = self.ask(demands, id=id, horizon=min(left, _TAKE_AHEAD), claim=left)
            if not decision.allowed and decision.retry_after > left:
                self.forget(demands, id=id)
                return decision
            time.sleep(decision.retry_after)
            if decision.allowed:
                return decision

    def _run(self, script: Script, demands: Sequence[Demand], *first: str | int) -> list[int]:
        pieces = [self._keys(demand.name, demand.key) for demand in demands]
        pieces.append(bulk(*first))
        pieces += [demand.wire for demand in demands]
        number = len(demands)
        reply: bytes | str = self._store(script, self._link, _KEYS * number, _VALUES * number + len(first), pieces)
        return [int(each) for each in reply.split()]

    def _store(self, call: Any, *args: Any) -> Any:
        try:
            return call(*args)
        except RedisError as error:
            raise StoreUnavailable(f"the limiter's store did not serve a request: {error}") from error

    def _decision(self, demands: Sequence[Demand], reply: Sequence[int]) -> Decision:
        allowed, wait, binding = reply[:3]
        states = tuple(
            [
                LimitState(demand.name, demand.key, demand.limit.burst, remaining, reset / 1e6)
                for demand, remaining, reset in zip(demands, reply[3::2], reply[4::2], strict=True)
            ]
        )
        if binding or len(states) == 1:
            tightest = states[binding - 1]
        else:
            tightest = min(states, key=lambda state: (state.remaining / state.limit, -state.reset_after))
        return Decision(
            allowed=bool(allowed),
            limit=tightest.limit,
            remaining=tightest.remaining,
            retry_after=wait / 1e6,
            reset_after=tightest.reset_after,
            binding=tightest.name if binding else None,
            states=states,
        )
