"""Calls of the scripts for limit requests, and their replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ConfigurationError, ImpossibleRequest, RateLimitError
from ..limits.decision import Decision, GrantedAt, LimitState
from ..store.keys import bucket_key, bucket_keys, config_keys, history_key, shadow_keys, touched_key
from ..store.resp import bulk
from ..store.script import Script
from .limit_request import LimitRequest

if TYPE_CHECKING:
    from .script_operations import LimiterScripts

__all__ = [
    "ARGUMENTS",
    "KEYS",
    "Call",
    "Calls",
    "LeaseRequests",
    "LeasesToRelease",
    "call_of",
    "decision_of",
    "impossible",
    "read_reply",
    "whole_numbers",
]

#: A script's call: the number of keys, the number of keys and arguments together, and these as pieces in wire form.
Call = tuple[int, int, list[bytes]]


def call_of(keys: Sequence[str], arguments: Sequence[str | int] = ()) -> Call:
    return len(keys), len(keys) + len(arguments), [bulk(*keys, *arguments)]


#: The position of the virtual queues among the keys of a limit's shadow.
_QUEUES = 3
#: Keys of one limit request.
KEYS = 4
#: Arguments that one limit request adds to a script's call.
ARGUMENTS = 6


class LeasesToRelease(NamedTuple):
    """Leases to release.

    Attributes:
        id: of these leases.
        places: their limit requests.
        granted_at: when they were granted, in microseconds.
    """

    id: str
    places: Sequence[LimitRequest]
    granted_at: int


class LeaseRequests(NamedTuple):
    """Requests for leases, in their order.

    Attributes:
        ids: of the requests.
        horizon: microseconds, see ``lua/acquire.lua``.
        claim: microseconds, see there.
        waiter: what is notified of a free lease, see ``lua/include/concurrency_waiters.lua``; empty: nothing.
        most: the largest number of requests that get permits; the others get slots.
        all: decide every request, also after a refusal.
        lease_ids: of the leases that the requests get, if these have ids of their own.
    """

    ids: Sequence[str]
    horizon: int
    claim: int
    waiter: str
    most: int
    all: bool
    lease_ids: Sequence[str] = ()


class Calls:
    """Makes the calls of the scripts, for one prefix."""

    def __init__(self, scripts: LimiterScripts, prefix: str) -> None:
        self._scripts = scripts
        self.prefix = prefix
        self.packed: Callable[..., tuple[int, bytes, bytes]] = lru_cache(maxsize=1024)(self._pack)

    def _pack(self, demands: tuple[LimitRequest, ...]) -> tuple[int, bytes, bytes]:
        """The number of limit requests; and their keys and arguments, which never change, in wire form."""
        states, slots = [], []
        for demand in demands:
            state, of_slots = bucket_keys(self.prefix, demand.name, demand.key, demand.method)
            states += [state, *config_keys(self.prefix, demand.name, demand.key)]
            slots.append(of_slots)
        return len(demands), bulk(*states, *slots), b"".join([demand.wire for demand in demands])

    def of_script(
        self,
        script: Script,
        demands: tuple[LimitRequest, ...],
        first: Sequence[str | int],
        kind: str | None,
        last: Sequence[str | int],
    ) -> Call:
        """The call of a :class:`~celery_ratelimit.store.script.Script` that includes ``read_limits.lua``.

        Args:
            script: the script.
            demands: the limit requests.
            first: the arguments before them.
            kind: the kind of one more key for each of them.
            last: the arguments after them.
        """
        number, packed_keys, arguments = self.packed(demands)
        if script is self._scripts.settle and isinstance(first[1], GrantedAt):
            first = (first[0], first[1].of(demands[0].name))  # by the clock of the called node
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
        return keys, keys + len(first) + ARGUMENTS * number + len(last), pieces

    @cached_property
    def _touching(self) -> frozenset[Script]:
        """The scripts that note the buckets to which permits came back."""
        return frozenset((self._scripts.cancel, self._scripts.settle, self._scripts.withdraw_request))

    def of_reset(self, demands: Sequence[LimitRequest], note: str) -> Call:
        keys = [
            key
            for each in demands
            for key in (
                *bucket_keys(self.prefix, each.name, each.key, each.method),
                touched_key(self.prefix, each.name),
                history_key(self.prefix, each.name),
                shadow_keys(self.prefix, each.name)[_QUEUES],
            )
        ]
        return call_of(keys, [note, *[each.key for each in demands]])

    def _leases(self, demand: LimitRequest) -> str:
        return bucket_keys(self.prefix, demand.name, demand.key, demand.method)[0]

    def of_release(self, leases: Sequence[tuple[LimitRequest, LeasesToRelease]]) -> Call:
        return call_of(*self._to_release(leases))

    def _to_release(self, leases: Sequence[tuple[LimitRequest, LeasesToRelease]]) -> tuple[list[str], list[str]]:
        """Two keys and three arguments for each lease."""
        keys = [self._leases(demand) for demand, _ in leases]
        keys += [touched_key(self.prefix, demand.name) for demand, _ in leases]
        return keys, [
            text
            for demand, each in leases
            for text in (demand.lease_of(each.id), str(int(each.granted_at)), demand.key)
        ]

    def of_release_and_acquire(
        self, demands: tuple[LimitRequest, ...], asking: LeaseRequests, ended: Sequence[LeasesToRelease]
    ) -> Call:
        """The call of ``release_and_acquire.lua``: ``demands`` of each request, and the leases of ended runs."""
        number, packed_keys, arguments = self.packed(demands)
        released, released_as = self._to_release([(demand, each) for each in ended for demand in each.places])
        first = number, asking.horizon, asking.claim, asking.waiter, asking.most, int(asking.all), len(asking.ids)
        pairs = zip(asking.ids, asking.lease_ids or asking.ids, strict=True)
        last = [*[id for pair in pairs for id in pair], *released_as]
        keys = KEYS * number + len(released)
        pieces = [packed_keys, bulk(*released, *first), arguments, bulk(*last)]
        return keys, keys + len(first) + ARGUMENTS * number + len(last), pieces

    def of_renew(self, leases: Sequence[tuple[LimitRequest, str]]) -> Call:
        arguments = [
            *[demand.lease_of(holder) for demand, holder in leases],
            *[demand.limit.wire(1)[2] for demand, _ in leases],
        ]
        return call_of([self._leases(demand) for demand, _ in leases], arguments)

    def of_standing(self, demands: Sequence[LimitRequest]) -> Call:
        number, keys, arguments = self._pack(tuple(demands))
        return KEYS * number, (KEYS + ARGUMENTS) * number, [keys, arguments]


def decision_of(demands: Sequence[LimitRequest], reply: Sequence[int], id: str = "") -> Decision:
    """The decision in a script's reply, see ``lua/include/reply.lua``; ``id``: of the request."""
    allowed, wait, binding, at = reply[:4]
    told = 4 + 2 * len(demands)
    each = []
    for demand, i in zip(demands, range(4, told, 2), strict=True):
        each.append(LimitState(demand.name, demand.key, demand.size, reply[i], reply[i + 1] / 1e6, demand.pace))
    states = tuple(each)
    if len(reply) > told:  # some limits are stored, with other numbers than the code's
        numbers = [reply[told + i :: 4] for i in range(4)]
        states = tuple(
            [
                state._replace(capacity=size, interval=period / count / 1e6 if count else 0.0, version=version)
                for state, size, count, period, version in zip(states, *numbers, strict=True)
            ]
        )
    if binding or len(states) == 1:
        tightest = states[binding - 1]
    else:
        tightest = states[0]
        least = tightest.remaining / tightest.capacity
        for state in states:
            part = state.remaining / state.capacity
            if part < least or (part == least and state.reset_after > tightest.reset_after):
                tightest, least = state, part
    return Decision(
        allowed == 1,
        tightest.capacity,
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


def whole_numbers(reply: Any) -> list[int]:
    """The whole numbers in a script's reply: a number, or several in a text."""
    return [reply] if isinstance(reply, int) else list(map(int, reply.split()))


def read_reply(demands: Sequence[LimitRequest], reply: Any) -> list[int] | RateLimitError:
    """The whole numbers in a script's reply about limit requests, or its error."""
    return impossible(demands, reply) if isinstance(reply, RateLimitError) else whole_numbers(reply)


def impossible(demands: Sequence[LimitRequest], error: RateLimitError) -> RateLimitError:
    """Translate the store's error about an impossible request: its cost is above a stored limit, or its id belongs to
    another reservation. Other errors are returned as they are.
    """
    told: RateLimitError = error
    verb, _, rest = str(error.__cause__).partition(" ")
    if verb == "RESERVED":
        name = demands[int(rest) - 1].name
        told = ConfigurationError(
            f"the id of this reservation is another's, of other limits than {name!r}: give each an id of its own"
        )
    elif verb == "IMPOSSIBLE":
        which, size = map(int, rest.split())
        told = ImpossibleRequest(demands[which - 1].name, demands[which - 1].cost, size)
    told.__cause__ = error.__cause__
    return told
