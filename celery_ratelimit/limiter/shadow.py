"""The limits in shadow, as far as this process knows; and the operations that report and simulate their requests."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..counts.shadow_arrivals import Arrival, Arrivals
from ..counts.shadow_report import ShadowReport, read_shadow_report
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from ..limits.decision import Decision, LimitState
from ..limits.rate_limit import Limit
from ..limits.stored_settings import StoredShadow
from ..observing import Asked
from ..store.keys import config_keys, shadow_keys
from .limit_request import LimitRequest
from .operation import Operation, RunScript, batches, run_all
from .read_settings import read_shadow
from .script_calls import call_of

if TYPE_CHECKING:
    from .script_operations import Operations

__all__ = ["KnownShadows", "ask_shadow_reports", "ask_shadows", "asked_of", "passed", "tell_arrivals"]

#: Limits and requests that one script call reports, and requests that it simulates: a few milliseconds.
_LIMITS, _TOLD, _RECKONED = 20, 400, 500
#: Most reports, about one a second, in which a process without new requests lets the store simulate earlier ones.
_ROUNDS = 10
#: Seconds between two reads of the stored shadows by a process that reports nothing.
_LOOK = 1.0
#: The rate at which parked tasks of a limit in shadow leave: as fast as they can.
_OPEN = "1000000/s"
#: Reservations and settlements that a process remembers.
_REMEMBERED = 10_000


class KnownShadows:
    """The limits in shadow: by the code, or by the stored setting, which overrides it.

    A process reads the stored setting when it reports requests, about once a second; a worker also when it looks for
    changes. Until then the store knows that a limit is in shadow, and grants every request.

    Attributes:
        limits: limits that were in shadow here, by name, as the code has them.
        stored: known stored settings, by name.
        pending: limits with reported requests that are not simulated yet: by name, the rounds that are left.
    """

    def __init__(self) -> None:
        self.limits: dict[str, AnyLimit] = {}
        self.stored: dict[str, bool] = {}
        self.pending: dict[str, int] = {}
        self._ids: dict[Hashable, None] = {}
        self._looks_at = float("-inf")

    def has(self, name: str, limit: AnyLimit) -> bool:
        """Whether a limit is in shadow."""
        stored = self.stored.get(name)
        return (limit.shadow if stored is None else stored) and not isinstance(limit, Concurrency)

    def learn(self, told: Mapping[str, bool | None]) -> None:
        """Note the stored settings of these limits; ``None``: nothing is stored, and the code's setting holds."""
        for name, flag in told.items():
            if flag is None:
                self.stored.pop(name, None)
            else:
                self.stored[name] = flag

    def note(self, shadow: Sequence[LimitRequest]) -> None:
        """Note the limits with which the reported requests are simulated."""
        for demand in shadow:
            self.limits[demand.name] = demand.limit

    def opened(self, demand: LimitRequest) -> LimitRequest:
        """The request for tasks that were parked earlier: under a limit in shadow all may leave (by their cost, see
        ``lua/take_due.lua``).
        """
        limit = demand.limit
        if not self.has(demand.name, limit):
            return demand
        opened = Limit(_OPEN, burst=1000, name=limit.name, fair=limit.fair, weights=limit.weights)
        return replace(demand, limit=opened, cost=0)

    def note_decision(self, decision: Decision) -> None:
        """Note limits that the store's decision shows to be in shadow."""
        for state in decision.states:
            if state.version < 0:
                self.stored[state.name] = True

    def any_of(self, limits: Mapping[str, AnyLimit]) -> bool:
        """Whether one of these limits is in shadow."""
        return any(self.has(name, limit) for name, limit in limits.items())

    def is_to_look(self, now: float) -> bool:
        """Whether a process that reports nothing shall read the stored shadows now: once a second."""
        if now < self._looks_at:
            return False
        self._looks_at = now + _LOOK
        return True

    def is_first(self, id: Hashable) -> bool:
        """Whether this process sees ``id`` for the first time; it remembers a bounded number of ids."""
        if id in self._ids:
            return False
        if len(self._ids) >= _REMEMBERED:
            self._ids.pop(next(iter(self._ids)), None)
        self._ids[id] = None
        return True

    def forget(self, id: Hashable) -> bool:
        """Forget an id. Returns whether it was remembered."""
        return self._ids.pop(id, self) is not self

    def split(self, demands: tuple[LimitRequest, ...]) -> tuple[tuple[LimitRequest, ...], tuple[LimitRequest, ...]]:
        """Split into requests to limits in force, and requests to limits in shadow."""
        shadow = tuple([demand for demand in demands if self.has(demand.name, demand.limit)])
        if not shadow:
            return demands, ()
        self.note(shadow)
        return tuple([demand for demand in demands if demand not in shadow]), shadow


def asked_of(demands: Sequence[LimitRequest]) -> tuple[Asked, ...]:
    """The requests as the counters take them."""
    return tuple([(demand.name, demand.key, demand.cost) for demand in demands])


def passed(shadow: Sequence[LimitRequest], id: str) -> Decision:
    """The decision about a call whose limits are all in shadow, or to which none applies, made without the store."""
    if not shadow:
        return Decision(True, 0, 0, 0.0, 0.0, None, id=id)
    states = tuple([LimitState(each.name, each.key, each.size, each.size, 0.0, each.pace) for each in shadow])
    first = states[0]
    return Decision(True, first.capacity, first.remaining, 0.0, 0.0, None, states, id=id, _shadow=tuple(shadow))


def tell_arrivals(core: Operations, arrivals: Arrivals) -> Operation[None]:
    """Report requests in the order of their arrival, let the store simulate them, and read the stored shadows."""
    told, shadows = arrivals.take(), core.shadows
    rounds = {name: left - 1 for name, left in shadows.pending.items()} | dict.fromkeys(dict(told), _ROUNDS)
    each = [(name, of[at : at + _TOLD]) for name, of in told for at in range(0, len(of), _TOLD)]
    each += [(name, list[Arrival]()) for name in rounds.keys() - dict(told)]
    for several in batches(core.is_cluster, each, _LIMITS, _TOLD, lambda told: len(told[1])):
        # One time for all: otherwise a pause of this process between two ages would change their order.
        (reply,) = yield from run_all([_reckoning(core, several, shadows.limits, arrivals.now())])
        for name, (_, report) in _read_reckoned(core, several, reply).items():
            if not report.pending:
                rounds[name] = 0
    shadows.pending = {name: left for name, left in rounds.items() if left}


def ask_shadow_reports(core: Operations, limits: Mapping[str, AnyLimit | None]) -> Operation[dict[str, ShadowReport]]:
    """What limits in shadow would have done, as far as simulated; reads their stored shadows, too.

    Nothing is written: reported requests are simulated for good with later reports. ``None``: the limit is not known
    here, and other processes have it simulated.
    """
    found = yield from ask_shadows(core, limits)
    return {name: report for name, (_, report) in found.items()}


def ask_shadows(
    core: Operations, limits: Mapping[str, AnyLimit | None]
) -> Operation[dict[str, tuple[StoredShadow | None, ShadowReport]]]:
    """As :func:`ask_shadow_reports`, with the stored shadow of each limit."""
    found: dict[str, tuple[StoredShadow | None, ShadowReport]] = {}
    parts = batches(core.is_cluster, [(name, list[Arrival]()) for name in limits], _LIMITS)
    replies = yield from run_all([_reckoning(core, part, limits, None) for part in parts])
    for part, reply in zip(parts, replies, strict=True):
        found.update(_read_reckoned(core, part, reply))
    return found


def _reckoning(
    core: Operations,
    several: Sequence[tuple[str, list[Arrival]]],
    limits: Mapping[str, AnyLimit | None],
    now: float | None,
) -> RunScript:
    """The call of ``lua/simulate_shadow.lua``; ``now``: by the arrivals' clock, ``None``: none is reported."""
    prefix = core.calls.prefix
    keys = [key for name, _ in several for key in shadow_keys(prefix, name)]
    places: dict[str, int] = {}
    values: list[str | int] = [len(several), _RECKONED, int(now is None)]
    for name, those in several:
        limit = limits.get(name)
        values += [*(_without_reserve(limit).wire(1) if limit is not None else ("-", 1, 1, 1, 1, 0)), len(those)]
        for each in those:
            at = 0
            if each.key:
                own = config_keys(prefix, name, each.key)[1]
                at = places.setdefault(own, len(keys) + len(places) + 1)
            age = max(0, round(((now or 0.0) - each.at) * 1e6))
            values += [age, each.number, each.cost, at, core.new_id(), each.key]
    keys += places
    return RunScript(core.scripts.simulate_shadow, call_of(keys, values))


def _read_reckoned(
    core: Operations, several: Sequence[tuple[str, list[Arrival]]], reply: Sequence[Any]
) -> dict[str, tuple[StoredShadow | None, ShadowReport]]:
    us, *said = reply
    found = {
        name: (read_shadow(each[0]), read_shadow_report(each[1], int(each[2]), int(us)))
        for (name, _), each in zip(several, said, strict=True)
    }
    core.shadows.learn({name: None if stored is None else stored.on for name, (stored, _) in found.items()})
    return found


def _without_reserve(limit: AnyLimit) -> AnyLimit:
    """The limit without its reserve, which holds back calls of low priority, not the queue as a whole."""
    return (
        replace(limit, priority_reserve=None, cost=1)
        if isinstance(limit, Limit) and limit.priority_reserve is not None
        else limit
    )
