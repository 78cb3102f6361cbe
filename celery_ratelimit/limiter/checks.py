"""What a call about a reservation or a settlement may say."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConfigurationError, shown
from ..limits.decision import Decision
from .demand import Demand, leased

__all__ = ["actual_costs", "check_actual", "check_reservable", "check_settled"]

#: Permits; more than any limit holds.
_MOST_SETTLED = 10**9


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
