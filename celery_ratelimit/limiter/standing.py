"""How a limit stands: read as ``lua/standing.lua`` tells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .demand import Demand
from .stored import LimitConfig, read_config

__all__ = ["Standing", "read_standing"]


@dataclass(frozen=True, slots=True)
class Standing:
    """How one bucket of a limit stands.

    Attributes:
        config: what is in force for the limit, and why.
        now: the store's clock, in seconds since 1970.
        remaining: permits that are left.
        size: the most that it holds.
        reset_after: seconds until it is full, if nobody takes anything.
        retry_after: seconds until one more permit can be had, behind those that wait; a pause counts.
        waiting: requests that have a slot.
        interval: seconds from one permit to the next, on average; 0.0 where that is not known, as for places.
    """

    config: LimitConfig
    now: float
    remaining: int
    size: int
    reset_after: float
    retry_after: float
    waiting: int
    interval: float


def read_standing(demand: Demand, code: Any, reply: Sequence[Any]) -> Standing:
    """One limit's part of the reply; ``code``: the limit as it is here, ``None`` if it is not."""
    now, remaining, full, wait, waiting, size, count, period, *stored = reply
    config = read_config(demand.name, demand.key, code, [int(now), *stored])
    in_force = config.in_force
    interval = in_force.interval if in_force is not None else 0.0
    return Standing(
        config,
        int(now) / 1e6,
        int(remaining),
        int(size),
        int(full) / 1e6,
        int(wait) / 1e6,
        int(waiting),
        int(period) / int(count) / 1e6 if interval and int(count) else interval,
    )
