"""The limiter: asks the store for permits. Works in any process and needs no Celery."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.retry import Retry

from ._scripts import Link, Script
from .asking import (
    Asking,
    Demand,
    Limits,
    actual_costs,
    check_actual,
    check_reservable,
    check_settled,
    each_bucket_once,
    leased,
    microseconds,
    whole_numbers,
)
from .decision import Decision
from .errors import ConfigurationError, StoreUnavailable
from .keys import DEFAULT_PREFIX, bucket_keys
from .limits import AnyLimit

__all__ = ["Demand", "Limiter", "actual_costs", "each_bucket_once", "without_password"]

#: Seconds after which a store that does not answer counts as lost. A worker's event loop waits that long at most.
SOCKET_TIMEOUT = 0.5

#: A blocking call takes its permit at most this many seconds ahead; further away it keeps a slot, which lapses by
#: itself if the caller dies, where a permit would be lost.
TAKE_AHEAD = 1.0


def without_password(url: str) -> str:
    """A URL as it may be shown."""
    return re.sub(r"//.*@", "//**@", url)


class Limiter(Asking):
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
        super().__init__(quotas, prefix, replace_includes)
        self.client = client
        self._link = Link(client)

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
            return self.ask(demands, id=self._new_id() if leased(demands) else "")
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
        return int(self._store(self._release, self._link, *self._release_pieces(places, id, granted_at))) > 0

    def renew_leases(self, leases: Sequence[tuple[Demand, str]]) -> list[bool]:
        """One round trip for the leases of many holders. False for each that has expired."""
        if not leases:
            return []
        reply = self._store(self._renew, self._link, *self._renew_pieces(leases))
        return [each in (49, "1") for each in reply]

    def ping(self) -> None:
        """Raises :class:`StoreUnavailable` unless the store answers."""
        self._store(self.client.ping)

    # -- How it is done --------------------------------------------------------------------------------------------

    def _wait_for(self, demands: Sequence[Demand], id: str, max_wait: float) -> Decision:
        deadline = time.monotonic() + max_wait
        while True:
            left = max(0.0, deadline - time.monotonic())
            decision = self.ask(demands, id=id, horizon=min(left, TAKE_AHEAD), claim=left)
            if not decision.allowed and (decision.full or decision.retry_after > left):
                self.forget(demands, id=id)
                return decision
            time.sleep(decision.retry_after)
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
        return whole_numbers(self._store(script, self._link, *self._pieces(tuple(demands), first, kind, last)))

    def _store(self, call: Any, *args: Any) -> Any:
        try:
            return call(*args)
        except RedisError as error:
            raise StoreUnavailable(f"the limiter's store did not serve a request: {error}") from error
