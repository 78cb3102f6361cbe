"""What is asked of the store, and how its replies are read: everything about a request but sending it."""

from __future__ import annotations

import itertools
import math
import os
import socket
import uuid
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple

from ._scripts import Script, bulk
from .decision import Decision, LimitState
from .errors import ConfigurationError, ImpossibleRequest, RateLimitError, Throttled
from .keys import bucket_key, bucket_keys, changes_key, config_keys, touched_key
from .limits import AnyLimit, Concurrency, Limit, check_cost

__all__ = ["Asking", "Demand", "Limits", "actual_costs", "each_bucket_once"]

#: Seconds; thirty years.
_FOREVER = 1e9

#: Seconds; a call does not look for a free place more often, unless it has been told to.
_SHORTEST_NAP = 0.25

#: Permits; more than any limit holds.
_MOST_SETTLED = 10**9


@dataclass(frozen=True)
class Demand:
    """What one call asks of one limit: the limit under its final name, the bucket's key, and the cost."""

    limit: AnyLimit
    name: str
    key: str = ""
    cost: int = 1

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.limit, self.name, self.key, self.cost))

    def __getstate__(self) -> dict[str, Any]:
        # A hash is another one in another process.
        return {"limit": self.limit, "name": self.name, "key": self.key, "cost": self.cost}

    @cached_property
    def interval(self) -> float:
        """The emission interval, in seconds; 0 where there is none."""
        return self.limit.interval

    @cached_property
    def pace(self) -> float:
        """The same where permits come back one by one, at that interval; 0 elsewhere."""
        return self.interval if self.method in ("token_bucket", "leaky_bucket") else 0.0

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


#: What the public methods take as limits.
Limits = str | AnyLimit | Sequence[str | AnyLimit]

#: What a script is called with: the algorithms, how many keys, how many keys and arguments, and these as pieces.
Call = tuple[Hashable, int, int, list[bytes]]

#: How many keys a demand has.
KEYS = 4
#: How many arguments a demand adds to a script's call.
ARGUMENTS = 6


class Packed(NamedTuple):
    """Demands as they go over the wire."""

    number: int
    methods: Hashable
    keys: bytes
    arguments: bytes


class Asking:
    """What limiters have in common, however they talk to the store: requests out of limits, decisions out of replies.

    Args:
        quotas: limits by name, so that calls can name them.
        prefix: what every key in the store begins with.
        replace_includes: Lua includes to put other text in place of; how tests freeze the clock.
    """

    #: In tests: every limiter of this process lets all pass (0), or none, saying that it is to wait for so many
    #: microseconds, and does not ask the store. Set by :mod:`celery_ratelimit.testing`.
    pretended_wait: ClassVar[int | None] = None

    def __init__(
        self, quotas: Mapping[str, AnyLimit] | None, prefix: str, replace_includes: Mapping[str, str] | None
    ) -> None:
        self.prefix = prefix
        self.replace_includes = replace_includes
        self.quotas = dict(quotas or {})
        self._acquire = Script("acquire", replace_includes)
        self._peek = Script("peek", replace_includes)
        self._reserve = Script("reserve", replace_includes)
        self._cancel = Script("cancel", replace_includes)
        self._settle = Script("settle", replace_includes)
        self._forget = Script("forget", replace_includes)
        self._release = Script("release", replace_includes)
        self._renew = Script("renew", replace_includes)
        self._set_rate = Script("set_rate", replace_includes)
        self._expire_rate = Script("expire_rate", replace_includes)
        self._pause = Script("pause", replace_includes)
        self._config = Script("config", replace_includes)
        self._join = Script("join", replace_includes)
        self._probe = Script("probe", replace_includes)
        self._reset = Script("reset", replace_includes)
        self._known = lru_cache(maxsize=1024, typed=True)(self._read_limits)
        self.packed = lru_cache(maxsize=1024)(self._pack)
        self._new_id = _Ids()

    # -- Limits into demands ---------------------------------------------------------------------------------------

    def _demands(self, limits: Limits, key: str | None, cost: int | None) -> tuple[Demand, ...]:
        if isinstance(limits, str):
            return self._known(self._quota(limits), key, cost)
        if not isinstance(limits, (Limit, Concurrency)):
            limits = self._several(limits)
        return self._known(limits, key, cost)

    def _several(self, limits: Limits) -> tuple[AnyLimit, ...]:
        """The limits themselves, of a function's whose calls differ in key and cost."""
        several = (limits,) if isinstance(limits, (str, Limit, Concurrency)) else limits
        return tuple([self._quota(each) if isinstance(each, str) else each for each in several])

    @staticmethod
    def _read_limits(limits: AnyLimit | tuple[AnyLimit, ...], key: str | None, cost: int | None) -> tuple[Demand, ...]:
        several = limits if isinstance(limits, tuple) else (limits,)
        if not several:
            raise ConfigurationError("no limit was named: pass a quota's name, a Limit, or several of them")
        return each_bucket_once([_demand(limit, key, cost) for limit in several])

    def _quota(self, name: str) -> AnyLimit:
        try:
            limit = self.quotas[name]
        except KeyError:
            known = ", ".join(sorted(self.quotas)) or "none is defined"
            raise ConfigurationError(f"there is no quota named {name!r} (quotas: {known})") from None
        return limit if limit.name is not None else replace(limit, name=name)

    # -- Demands into bytes ----------------------------------------------------------------------------------------

    def _pack(self, demands: tuple[Demand, ...]) -> Packed:
        """Most of a request never changes, so that a call only puts pieces together."""
        states, slots = [], []
        for demand in demands:
            state, of_slots = bucket_keys(self.prefix, demand.name, demand.key, demand.method)
            states += [state, *config_keys(self.prefix, demand.name, demand.key)]
            slots.append(of_slots)
        return Packed(
            len(demands),
            demands[0].method if len(demands) == 1 else frozenset([demand.method for demand in demands]),
            bulk(*states, *slots),
            b"".join([demand.wire for demand in demands]),
        )

    def _pieces(
        self,
        script: Script,
        demands: tuple[Demand, ...],
        first: Sequence[str | int],
        kind: str | None,
        last: Sequence[str | int],
    ) -> Call:
        """What :class:`~celery_ratelimit._scripts.Script` is called with, for a script that ``request.lua`` is part of.

        Args:
            script: which it is.
            demands: the limits.
            first: the arguments before them.
            kind: one more key for each of them, of that kind.
            last: one more argument for each of them.
        """
        number, methods, packed_keys, arguments = self.packed(demands)
        pieces = [packed_keys]
        keys = KEYS * number
        if kind is not None:
            pieces += [bulk(bucket_key(self.prefix, demand.name, demand.key, kind)) for demand in demands]
            keys += number
        if script in self._touching:
            pieces.append(bulk(*[touched_key(self.prefix, demand.name) for demand in demands]))
            keys += number
            last = [*last, *[demand.key for demand in demands]]
        pieces += (bulk(*first), arguments)
        if last:
            pieces.append(bulk(*last))
        return methods, keys, keys + len(first) + ARGUMENTS * number + len(last), pieces

    @cached_property
    def _touching(self) -> frozenset[Script]:
        """The scripts that note in which buckets something was given back."""
        return frozenset((self._cancel, self._settle, self._forget))

    def _reset_pieces(self, demands: Sequence[Demand]) -> Call:
        keys = [
            key
            for each in demands
            for key in (
                *bucket_keys(self.prefix, each.name, each.key, each.method),
                touched_key(self.prefix, each.name),
            )
        ]
        return (), len(keys), len(keys) + len(demands), [bulk(*keys), bulk(*[each.key for each in demands])]

    def _leases(self, demand: Demand) -> str:
        return bucket_keys(self.prefix, demand.name, demand.key, demand.method)[0]

    def _release_pieces(self, leased: Sequence[Demand], id: str, granted_at: int) -> Call:
        keys = [self._leases(demand) for demand in leased]
        keys += [touched_key(self.prefix, demand.name) for demand in leased]
        arguments: list[str | int] = [id, granted_at, *[demand.key for demand in leased]]
        return (), len(keys), len(keys) + len(arguments), [bulk(*keys), bulk(*arguments)]

    def _renew_pieces(self, leases: Sequence[tuple[Demand, str]]) -> Call:
        keys = [self._leases(demand) for demand, _ in leases]
        holders = [holder for _, holder in leases]
        times = [demand.limit.wire(1)[2] for demand, _ in leases]
        return (), len(keys), 3 * len(keys), [bulk(*keys), bulk(*holders), bulk(*times)]

    # -- Pretending ------------------------------------------------------------------------------------------------

    def _pretended(self, script: Script, demands: Sequence[Demand], first: Sequence[str | int]) -> list[int]:
        """What a script would reply, if all buckets were full, or closed for ``pretended_wait``."""
        if script not in (self._acquire, self._peek, self._reserve):
            return [0]  # nothing was taken: there is nothing to give back
        wait = self.pretended_wait or 0
        slot_only = script is self._acquire and int(first[1]) < 0
        reply = [int(not wait and not slot_only), wait, int(wait > 0), 0]
        for demand in demands:
            reply += [0, wait] if wait else [demand.size, 0]
        return reply

    # -- What people store -----------------------------------------------------------------------------------------

    def _code(self, name: str | AnyLimit) -> tuple[str, AnyLimit | None]:
        """The name of a limit, and the limit as the code here has it."""
        if isinstance(name, str):
            return name, self.quotas.get(name)
        if name.name is None:
            raise ConfigurationError(f"{name!r} has no name, so nothing can be stored for it: give it name='…'")
        return name.name, name

    def _change_keys(self, name: str, key: str | None) -> tuple[str, str, str]:
        """What is changed, and where that is told."""
        config = config_keys(self.prefix, name, key or "")[1]
        return config, changes_key(self.prefix, name), touched_key(self.prefix, name)

    def _config_call(self, name: str, key: str | None) -> Call:
        return (), 2, 2, [bulk(*config_keys(self.prefix, name, key or ""))]

    def _timed_call(self, name: str, key: str | None, us: int) -> Call:
        return (), 3, 5, [bulk(*self._change_keys(name, key), us, key or "")]

    # -- Replies into decisions ------------------------------------------------------------------------------------

    @staticmethod
    def _decision(demands: Sequence[Demand], reply: Sequence[int], id: str = "") -> Decision:
        allowed, wait, binding, at = reply[:4]
        told = 4 + 2 * len(demands)
        states = tuple(
            [
                LimitState(demand.name, demand.key, demand.size, remaining, reset / 1e6, demand.pace)
                for demand, remaining, reset in zip(demands, reply[4:told:2], reply[5:told:2], strict=True)
            ]
        )
        if len(reply) > told:  # some are stored, and have other numbers than in the code
            numbers = [reply[told + i :: 4] for i in range(4)]
            states = tuple(
                [
                    state._replace(limit=size, interval=period / count / 1e6 if count else 0.0, version=version)
                    for state, size, count, period, version in zip(states, *numbers, strict=True)
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
            tuple(demands) if at else (),
        )


def microseconds(seconds: float) -> int:
    """Rounded up, and no further away than forever: 2^53 µs are as exact as a number in Lua can be."""
    return math.ceil(min(seconds, _FOREVER) * 1e6)


def whole_numbers(reply: Any) -> list[int]:
    """A script's reply: one whole number, or several in a text."""
    return [reply] if isinstance(reply, int) else [int(each) for each in reply.split()]


def impossible(demands: Sequence[Demand], error: RateLimitError) -> RateLimitError:
    """What the store's error means, if it says that a stored limit is smaller than what is asked of it."""
    verb, _, rest = str(error.__cause__).partition(" ")
    if verb != "IMPOSSIBLE":
        return error
    which, size = map(int, rest.split())
    return ImpossibleRequest(demands[which - 1].name, demands[which - 1].cost, size)


def leased(demands: Sequence[Demand]) -> list[Demand]:
    """Those that hold a place until it is given back."""
    return [demand for demand in demands if isinstance(demand.limit, Concurrency)]


def nap(decision: Decision) -> float:
    """Seconds until a call that waits for its turn wakes up.

    When a place will be free is an estimate, and nobody is told that one is: a call looks after a quarter of the wait.
    """
    wait = decision.retry_after
    return wait if decision.allowed or not leased(decision.demands) else min(wait, max(_SHORTEST_NAP, wait / 4))


def throttled(decision: Decision) -> Throttled:
    """A refusal for a caller who cannot be told by a value."""
    return Throttled(decision.binding or "", decision.retry_after)


def check_reservable(demands: Sequence[Demand], id: str) -> None:
    if not id:
        raise ConfigurationError("a reservation needs an id: it is how it is found again")
    if leased(demands):
        raise ConfigurationError("a place under Concurrency cannot be reserved: nobody knows when one is free")


def check_actual(demands: Sequence[Demand], actual: Sequence[int]) -> None:
    for demand, cost in zip(demands, actual, strict=True):
        if isinstance(cost, bool) or not isinstance(cost, int) or not 0 <= cost < _MOST_SETTLED:
            raise ConfigurationError(
                f"limit {demand.name!r}: an actual cost of {cost!r} is not a whole number, 0 or more"
            )


def check_settled(decision: Decision) -> None:
    if not decision.allowed:
        raise ConfigurationError("a call that was refused was charged nothing: there is nothing to settle")


def own_key(limit: AnyLimit, key: str, node: str | None = None) -> str:
    """The bucket's key: with ``per_worker`` each node has one of its own; default: each machine."""
    return f"{key}@{node or socket.gethostname()}" if limit.per_worker else key


def _demand(limit: AnyLimit, key: str | None, cost: int | None) -> Demand:
    name = limit.name
    if name is None:
        raise ConfigurationError(f"{limit!r} has no name, so it has no bucket in the store: give it name='…'")
    if limit.key is not None and key is None:
        raise ConfigurationError(f"limit {name!r} is kept by key: pass key='…'")
    if key is not None and not isinstance(key, str):
        raise ConfigurationError(f"limit {name!r}: key={key!r} must be a text")
    if isinstance(limit, Concurrency):
        return Demand(limit, name, own_key(limit, key or ""), 1)
    if cost is None:
        if not isinstance(limit.cost, int):
            raise ConfigurationError(f"limit {name!r} takes its cost from a task's arguments: pass cost=…")
        return Demand(limit, name, own_key(limit, key or ""), limit.cost)
    return Demand(limit, name, own_key(limit, key or ""), check_cost(name, cost, limit.most))


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
