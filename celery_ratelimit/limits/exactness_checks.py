"""Checks that a limit can be computed exactly, and can grant what calls may cost."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigurationError, shown
from .parse_rate import Rate

__all__ = ["WINDOWS", "check_exact", "check_room_for_costs"]

#: The algorithms that hold a window's count.
WINDOWS = ("fixed_window", "sliding_window", "sliding_log")

#: Whole numbers below this stay exact in Lua, whose numbers are doubles.
_EXACT = 2**53
_YEAR_US = 31_557_600_000_000


def check_room_for_costs(limit: Any, label: str) -> None:
    """Check that a limit whose calls differ in cost can grant more than one permit at once."""
    if limit.most > 1:
        return
    mend = "make its window's count larger" if limit.algorithm in WINDOWS else "give it burst= of at least the most"
    if limit.algorithm == "leaky_bucket":
        mend = "take algorithm='token_bucket' with burst= of at least the most"
    written = limit.cost if isinstance(limit.cost, str) else getattr(limit.cost, "__name__", limit.cost)
    raise ConfigurationError(
        f"{label}: cost={shown(written)} takes from 1 permit up, but the limit holds 1 at most, so that every call "
        f"which costs more is impossible: {mend} that one call may cost"
    )


def check_exact(limit: Any, label: str, parsed: Rate) -> None:
    if limit.most * parsed.period_us // parsed.count >= _EXACT // 8:
        years = limit.burst * parsed.period_us // (parsed.count * _YEAR_US)
        raise ConfigurationError(
            f"{label}: burst={shown(limit.burst)} at this rate would take {shown(years)} years to refill, more than "
            "can be kept exactly: lower the burst or raise the rate"
        )
    if limit.algorithm == "sliding_window" and parsed.count * (parsed.period_us // limit.sub_windows + 1) >= _EXACT:
        raise ConfigurationError(
            f"{label}: a sliding window of this length and count cannot be reckoned exactly: raise sub_windows, or "
            "take a shorter period"
        )
