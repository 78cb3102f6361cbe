"""What is asked of the store, and how its replies are read: everything about a request but sending it."""

from __future__ import annotations

import itertools
import math
import os
import uuid
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple

from ..errors import ConfigurationError, ImpossibleRequest, RateLimitError, Throttled, shown
from ..limits.any_limit import AnyLimit, check_cost
from ..limits.concurrency import Concurrency
from ..limits.decision import Decision, GrantedAt, LimitState
from ..limits.limit import Limit
from ..limits.specs import quotas_of
from ..limits.templates import cost_of, key_of
from ..names import listed, near
from ..store.keys import bucket_key, bucket_keys, changes_key, config_keys, short, touched_key
from ..store.resp import bulk
from ..store.script import Script
from .demand import Demand, Limits, each_bucket_once, leased, own_key

__all__ = ["Asking", "actual_costs"]

#: Seconds; thirty years.
_FOREVER = 1e9

#: Seconds; a call does not look for a free place more often, unless it has been told to.
_SHORTEST_NAP = 0.25

#: Seconds by which a call of several limits wakes up before its turn, and takes its permits ahead, for exactly then:
#: one that wakes up late leaves a part of a limit unused.
_EARLY = 0.05

#: Permits; more than any limit holds.
_MOST_SETTLED = 10**9


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

    #: Makes the limiter of an app, of this kind: set by the package, since what an app is, is known further up.
    of_app: ClassVar[Callable[[type[Asking], Any], Any]]

    def __init__(
        self, quotas: Mapping[str, Any] | None, prefix: str, replace_includes: Mapping[str, str] | None
    ) -> None:
        self.prefix = prefix
        self.replace_includes = replace_includes
        self.quotas = quotas_of(quotas)
        #: What else may be named: the limits of an app's tasks and queues.
        self.others: Callable[[], Mapping[str, AnyLimit]] = dict
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

    def _demands(
        self, limits: Limits, key: str | None, cost: int | None, args: Mapping[str, Any] | None = None
    ) -> tuple[Demand, ...]:
        if args is not None:
            return self._read_arguments(self._several(limits), key, cost, args)
        if isinstance(key, str):
            key = short(key)
        if isinstance(limits, str):
            read: AnyLimit | tuple[AnyLimit, ...] = self._quota(limits)
        else:
            read = limits if isinstance(limits, AnyLimit) else self._several(limits)
        try:
            return self._known(read, key, cost)
        except TypeError:  # a key or a cost that cannot be looked up is none, which is now said
            return self._read_limits(read, key, cost)

    def _several(self, limits: Limits) -> tuple[AnyLimit, ...]:
        """The limits themselves."""
        several = (limits,) if isinstance(limits, (str, AnyLimit)) else limits
        if not isinstance(several, Iterable):
            raise _no_limit(several)
        return tuple([self._quota(each) if isinstance(each, str) else each for each in several])

    def _kept_by(self, limits: Limits, key: str | Callable[..., str] | None) -> tuple[AnyLimit, ...]:
        """The limits of calls that all have their key in one way, a template or a callable.

        Those that are kept by key are kept by this one, and the others are left whole. If there are none, it is for
        those that are written here, and not shared by their names.
        """
        several = self._several(limits)
        if key is None:
            return several
        written = [limits] if isinstance(limits, (str, AnyLimit)) else list(limits)
        chosen = [limit.key is not None for limit in several]
        if not any(chosen):
            chosen = [not isinstance(each, str) for each in written]
        if several and not any(chosen):
            raise _not_kept_by_key(several, key)
        return tuple([replace(limit, key=key) if mine else limit for limit, mine in zip(several, chosen, strict=True)])

    @staticmethod
    def _read_limits(limits: AnyLimit | tuple[AnyLimit, ...], key: str | None, cost: int | None) -> tuple[Demand, ...]:
        several = _some(limits if isinstance(limits, tuple) else (limits,), key)
        return each_bucket_once([_demand(limit, key, cost) for limit in several])

    @staticmethod
    def _read_arguments(
        limits: tuple[AnyLimit, ...], key: str | None, cost: int | None, args: Mapping[str, Any]
    ) -> tuple[Demand, ...]:
        """As from a task's arguments: each limit takes its own key and cost, unless they are given."""
        if not isinstance(args, Mapping) or not all(isinstance(name, str) for name in args):
            raise ConfigurationError(
                f"args={shown(args)} must be a mapping of names to values, such as {{'tenant_id': 7}}"
            )
        several = _some(limits, key)
        return each_bucket_once(
            [
                _demand(
                    limit,
                    key_of(limit, args, (), args) if key is None and limit.key is not None else key,
                    cost_of(limit, args, (), args) if cost is None else cost,
                )
                for limit in several
            ]
        )

    def _quota(self, name: str) -> AnyLimit:
        limit = self._found(name)
        if limit is None:
            known = ", ".join(sorted(self.quotas)) or "none is defined"
            close = near(name, self._names())
            raise ConfigurationError(
                f"there is no quota named {shown(name)} (quotas: {known}){f'; {close}' if close else ''}"
            )
        return limit if limit.name is not None else replace(limit, name=name)

    def _found(self, name: str) -> AnyLimit | None:
        return self.quotas.get(name) or self.others().get(name)

    def _names(self) -> set[str]:
        return {*self.quotas, *self.others()}

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
        """What a :class:`~celery_ratelimit.store.script.Script` is called with that ``request.lua`` is part of.

        Args:
            script: which it is.
            demands: the limits.
            first: the arguments before them.
            kind: one more key for each of them, of that kind.
            last: one more argument for each of them.
        """
        number, methods, packed_keys, arguments = self.packed(demands)
        if script is self._settle and isinstance(first[1], GrantedAt):
            first = (first[0], first[1].of(demands[0].name))  # by the clock of the node that is asked
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

    def _code(self, name: str | AnyLimit, key: str | None, *, force: bool) -> tuple[str, AnyLimit | None]:
        """The name of a limit, and the limit as the code here has it.

        Raises:
            ConfigurationError: it has no name, or no such bucket.
        """
        code: AnyLimit | None
        if isinstance(name, str):
            code = self._found(name)
        elif not isinstance(name, AnyLimit):
            raise _no_limit(name)
        elif name.name is None:
            raise ConfigurationError(f"{name!r} has no name, so nothing can be stored for it: give it name='…'")
        else:
            code, name = name, name.name
        if not name:
            raise ConfigurationError("name='' is no limit's")
        if key is not None and not isinstance(key, str):
            raise ConfigurationError(f"limit {name!r}: key={shown(key)} must be a text")
        if code is not None and key is not None and code.key is None and not code.per_worker and not force:
            raise _not_kept_by_key([replace(code, name=name)], key)
        return name, code

    def _traces(self, name: str, key: str | None) -> list[str]:
        """Where the store has something of a limit that is stored or in use: keys of its name, so that nothing is
        searched. A limit that is kept by key shows itself by what is stored for it, and by the bucket that is named.
        """
        traces = [*self._change_keys(name, key), *config_keys(self.prefix, name, "")]
        for bucket in ("", short(key or "")):
            traces += [bucket_key(self.prefix, name, bucket, kind) for kind in ("state", "leases", "slots")]
        return list(dict.fromkeys(traces))

    def _unknown(self, name: str) -> ConfigurationError:
        names = self._names()
        tasks = ""
        if self.others is not dict:  # an app's; a process that only sends may have imported none of its tasks
            tasks = ". Tasks are known once they are imported: app.loader.import_default_modules()"
        return ConfigurationError(
            f"nobody knows a limit {shown(name)} ({near(name, names) or listed(names)}): it is no quota here, and the "
            f"store has nothing of that name{tasks}. If it is right all the same, pass force=True"
        )

    def _demands_to_reset(
        self, limits: Limits, key: str | None, args: Mapping[str, Any] | None, *, force: bool
    ) -> tuple[Demand, ...]:
        """With ``force``, what is not known here stands for whatever limit of that name has such a bucket."""
        if not force:
            return self._demands(limits, key, 1, args)
        known: list[AnyLimit] = []
        unknown: list[Demand] = []
        for each in [limits] if isinstance(limits, (str, AnyLimit)) else limits:
            name, code = self._code(each, key, force=True)
            if code is None or (key is not None and code.key is None):
                unknown += [Demand(some, name, short(key or "")) for some in (Limit("1/s"), Concurrency(1))]
            else:
                known.append(code if code.name is not None else replace(code, name=name))
        return (*(self._demands(known, key, 1, args) if known else ()), *unknown)

    def _change_keys(self, name: str, key: str | None) -> tuple[str, str, str]:
        """What is changed, and where that is told."""
        config = config_keys(self.prefix, name, short(key or ""))[1]
        return config, changes_key(self.prefix, name), touched_key(self.prefix, name)

    def _config_call(self, name: str, key: str | None) -> Call:
        return (), 2, 2, [bulk(*config_keys(self.prefix, name, short(key or "")))]

    def _timed_call(self, name: str, key: str | None, us: int) -> Call:
        return (), 3, 5, [bulk(*self._change_keys(name, key), us, short(key or ""))]

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


def seconds_of(what: str, seconds: Any, least: float = -math.inf) -> float:
    """How long somebody would wait, no longer than forever; ConfigurationError unless it is a number of seconds."""
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not seconds >= least:
        raise ConfigurationError(
            f"{what}={shown(seconds)} must be a number of seconds{', 0 or more' if least == 0 else ''}"
        )
    return float(max(-_FOREVER, min(seconds, _FOREVER)))


def whole_numbers(reply: Any) -> list[int]:
    """A script's reply: one whole number, or several in a text."""
    return [reply] if isinstance(reply, int) else [int(each) for each in reply.split()]


def impossible(demands: Sequence[Demand], error: RateLimitError) -> RateLimitError:
    """What the store's error means, if it says that the request cannot be: a stored limit is smaller than its cost, or
    its id is that of another reservation.
    """
    verb, _, rest = str(error.__cause__).partition(" ")
    if verb == "RESERVED":
        name = demands[int(rest) - 1].name
        return ConfigurationError(
            f"the id of this reservation is another's, of other limits than {name!r}: give each an id of its own"
        )
    if verb != "IMPOSSIBLE":
        return error
    which, size = map(int, rest.split())
    return ImpossibleRequest(demands[which - 1].name, demands[which - 1].cost, size)


def nap(decision: Decision) -> float:
    """Seconds until a call that waits for its turn wakes up.

    When a place will be free is an estimate, and nobody is told that one is: a call looks after a quarter of the wait.
    """
    wait = decision.retry_after
    if decision.allowed:
        return wait
    if leased(decision.demands):
        return min(wait, max(_SHORTEST_NAP, wait / 4))
    return wait - _EARLY if len(decision.states) > 1 and wait > _EARLY else wait


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
                f"limit {demand.name!r}: an actual cost of {shown(cost)} is not a whole number, 0 or more"
            )


def check_settled(decision: Decision) -> None:
    if not decision.allowed:
        raise ConfigurationError("a call that was refused was charged nothing: there is nothing to settle")


def _no_limit(value: Any) -> ConfigurationError:
    return ConfigurationError(f"{shown(value)} is not a limit: pass a quota's name, a Limit, or several of them")


def _some(limits: tuple[AnyLimit, ...], key: str | None) -> tuple[AnyLimit, ...]:
    """The limits: at least one, each is one, and one of them is kept by key if a key is given."""
    if not limits:
        raise ConfigurationError("no limit was named: pass a quota's name, a Limit, or several of them")
    for limit in limits:
        if not isinstance(limit, AnyLimit):
            raise _no_limit(limit)
    if key is not None and all(limit.key is None for limit in limits):
        raise _not_kept_by_key(limits, key)
    return limits


def _not_kept_by_key(limits: Sequence[AnyLimit], key: Any) -> ConfigurationError:
    names = ", ".join(repr(limit.name) for limit in limits)
    return ConfigurationError(
        f"limit {names} is not kept by key, so there is no bucket {shown(key)} of it: leave key= out, or give the "
        "limit a key, such as key='tenant:{tenant_id}'"
    )


def _demand(limit: AnyLimit, key: str | None, cost: int | None) -> Demand:
    name = limit.name
    if name is None:
        raise ConfigurationError(f"{limit!r} has no name, so it has no bucket in the store: give it name='…'")
    if limit.key is None:
        key = None  # it is whole, whatever stands beside it
    elif key is None:
        raise ConfigurationError(
            f"limit {name!r} is kept by key: pass key='…', the bucket as it is shown, or args={{…}}, from which it "
            f"takes its own ({limit.key!r})"
        )
    elif not isinstance(key, str):
        raise ConfigurationError(f"limit {name!r}: key={shown(key)} must be a text")
    if isinstance(limit, Concurrency):
        return Demand(limit, name, own_key(limit, key or ""), 1)
    if cost is None:
        if not isinstance(limit.cost, int):
            raise ConfigurationError(
                f"limit {name!r} takes its cost from a task's arguments: pass cost=… or args={{…}}"
            )
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
