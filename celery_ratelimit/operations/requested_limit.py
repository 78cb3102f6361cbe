"""The limit that an operator asks for on the command line or the web page."""

from __future__ import annotations

import re
from dataclasses import replace

from ..errors import ConfigurationError, shown
from ..limiter.limiter import Limiter
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from ..limits.rate_limit import Limit
from ..words import unnamed

__all__ = ["requested_limit"]


def requested_limit(limiter: Limiter, name: str, rate: str, burst: int | None) -> str | AnyLimit:
    """A new limit for ``name``: a concurrency limit for a number; else a rate, with the other options of the code."""
    code, is_number = limiter.config(name, force=True).code, re.fullmatch("[0-9]{1,99}", rate)
    if isinstance(code, Concurrency) and not (is_number and 1 <= int(rate) < 10**9):
        raise ConfigurationError(
            f"limit {name!r} is {unnamed(code)} in the code, and {shown(rate)} is no number of leases: "
            "write a whole number, 1 to 999999999"
        )
    if isinstance(code, Limit) and is_number:
        raise ConfigurationError(
            f"limit {name!r} is a rate in the code ({unnamed(code)}), and {shown(rate)} has no period: "
            f"write '{rate}/s' or '{rate}/m'"
        )
    if is_number and burst is not None:
        raise ConfigurationError(f"burst={burst} is for a rate, and {rate} is a number of leases: leave burst out")
    if is_number:
        return Concurrency(int(rate))
    if burst is None:
        return rate
    return replace(code, rate=rate, burst=burst) if isinstance(code, Limit) else Limit(rate, burst=burst)
