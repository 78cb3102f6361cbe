"""Checks of a call's arguments: costs, keys, reservations, lengths of time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigurationError, shown
from ..limits.any_limit import template_fields
from ..limits.concurrency import Concurrency
from ..limits.decision import Decision
from .limit_request import LimitRequest, leased

__all__ = [
    "MOST_SETTLED",
    "actual_costs",
    "check_actual",
    "check_filled",
    "check_permits",
    "check_reservable",
    "check_settled",
    "length_of",
    "longest_wait",
    "microseconds",
    "seconds_of",
]

#: Permits; above the burst of any limit.
MOST_SETTLED = 10**9
#: Seconds; thirty years.
_FOREVER = 1e9


def check_filled(key: Any, key_template: Any) -> None:
    """Check a key where there are arguments, too, from which a template would make it."""
    if key_template is not None:
        raise ConfigurationError(f"key={shown(key)} and key_template={shown(key_template)}: pass one of the two")
    if not isinstance(key, str) or _is_template(key):
        raise ConfigurationError(
            f"key={shown(key)} must be the bucket's key as it is shown, for all calls: for a key that is made from the "
            f"arguments of each call pass key_template={shown(key)}"
        )


def _is_template(key: str) -> bool:
    try:
        return bool(template_fields(key))
    except ValueError:  # a key with a single brace
        return False


def check_reservable(demands: Sequence[LimitRequest], id: str) -> None:
    if not id:
        raise ConfigurationError("a reservation needs an id: it is how it is found again")
    if leased(demands):
        raise ConfigurationError("a permit of a Concurrency cannot be reserved: it is not known when one is free")


def check_actual(demands: Sequence[LimitRequest], actual: Sequence[int]) -> None:
    for demand, cost in zip(demands, actual, strict=True):
        if isinstance(cost, bool) or not isinstance(cost, int) or not 0 <= cost < MOST_SETTLED:
            raise ConfigurationError(
                f"limit {demand.name!r}: an actual cost of {shown(cost)} is not a whole number, 0 to {MOST_SETTLED - 1}"
            )


def check_settled(decision: Decision) -> None:
    if not decision.allowed:
        raise ConfigurationError("a call that was refused was charged nothing: there is nothing to settle")


def actual_costs(demands: Sequence[LimitRequest], actual_cost: int | Mapping[str, int], name: str | None) -> list[int]:
    """The final cost of each limit request: the actual cost of the settled limits, the old cost of the others."""
    if isinstance(actual_cost, Mapping):
        if name is not None:
            raise ConfigurationError(
                f"limit={shown(name)}: the actual costs {shown(dict(actual_cost))} name their limits: leave limit= out"
            )
        if not actual_cost:
            raise ConfigurationError(f"the actual costs name no limit (limits: {_names(demands)})")
        for each in actual_cost:
            _check_settles(demands, each)
        return [actual_cost.get(demand.name, demand.cost) for demand in demands]
    if name is not None:
        _check_settles(demands, name)
        chosen = [demand.name == name for demand in demands]
    else:
        spent = [not isinstance(demand.limit, Concurrency) for demand in demands]
        chosen = [each and not isinstance(demand.limit.cost, int) for each, demand in zip(spent, demands, strict=True)]
        if not any(chosen):
            chosen = [each and demand.cost > 1 for each, demand in zip(spent, demands, strict=True)]
        if not any(chosen):
            chosen = [True] * len(chosen)
    return [actual_cost if is_meant else demand.cost for demand, is_meant in zip(demands, chosen, strict=True)]


def _check_settles(demands: Sequence[LimitRequest], name: Any) -> None:
    found = [demand for demand in demands if demand.name == name]
    if not found:
        raise ConfigurationError(f"there is no limit {shown(name)} in this decision (limits: {_names(demands)})")
    if leased(found):
        raise ConfigurationError(f"limit {name!r}: permits of a Concurrency are held, not spent: nothing is settled")


def _names(demands: Sequence[LimitRequest]) -> str:
    return ", ".join(dict.fromkeys(demand.name for demand in demands))


def microseconds(seconds: float) -> int:
    """Microseconds, rounded up, at most thirty years: numbers in Lua are exact up to 2^53."""
    return math.ceil(min(seconds, _FOREVER) * 1e6)


def seconds_of(what: str, seconds: Any, least: float = -math.inf) -> float:
    """Check a number of seconds and bound it to thirty years; ConfigurationError if it is no number."""
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not seconds >= least:
        raise ConfigurationError(
            f"{what}={shown(seconds)} must be a number of seconds{', 0 or more' if least == 0 else ''}"
        )
    return float(max(-_FOREVER, min(seconds, _FOREVER)))


def longest_wait(max_wait: Any) -> float:
    """Seconds that a call may wait for its slot; ``None``: for ever."""
    if max_wait == 0:  # the usual call
        return 0.0
    return _FOREVER if max_wait is None else seconds_of("max_wait", max_wait)


def length_of(seconds: float, what: str) -> int:
    """A length of time in microseconds; ConfigurationError unless it is above 0."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ConfigurationError(f"{what}={shown(seconds)} must be a number of seconds above 0")
    return microseconds(seconds)


def check_permits(permits: Any) -> None:
    if isinstance(permits, bool) or not isinstance(permits, int) or not 1 <= permits < MOST_SETTLED:
        raise ConfigurationError(f"permits={shown(permits)} must be a whole number of permits, 1 to {MOST_SETTLED - 1}")
