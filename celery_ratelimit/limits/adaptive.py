"""How a limit adapts to an upstream that refuses calls."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigurationError, shown
from .any_limit import is_number
from .priority_reserve import MILLION

__all__ = ["Adaptive", "adapted_share"]

#: Steps in which a rate recovers to what it was, see ``lua/include/adaptive_rate.lua``.
SHARE_STEPS = 60


@dataclass(frozen=True, slots=True)
class Adaptive:
    """The rate falls where the upstream refuses calls, and recovers by itself.

    Each incident takes the rate to 0.7 of what it was, for the whole fleet: refused calls whose permits are older than
    the last reduction do not count again. The rate then rises, slowly near the rate at which the upstream refused; it
    is back there after half of ``recover``, and the whole configured rate is in force after ``recover``. It is never
    above that.

    Args:
        floor: the least share of the rate, above 0 and below 1.
        recover: seconds from a reduction to the whole rate, 1 to 86,400, if the upstream refuses no call meanwhile.

    Source: CUBIC (RFC 9438), with a time to recover that does not depend on the rate. Weakness: an upstream that
    accepts calls and is slow, or fails in other ways, is not noticed.
    """

    floor: float = 0.1
    recover: float = 30.0

    def __post_init__(self) -> None:
        if not is_number(self.floor) or not 0 < self.floor < 1:
            raise ConfigurationError(f"Adaptive: floor={shown(self.floor)} must be a share above 0 and below 1")
        if not is_number(self.recover) or not 1 <= self.recover <= 86_400:
            raise ConfigurationError(f"Adaptive: recover={shown(self.recover)} must be seconds, 1 to 86400")

    def wire(self) -> tuple[int, int]:
        """What ``lua/reduce_rate.lua`` takes: us until the refused rate is back, and the least share in millionths."""
        return round(self.recover * 1e6 / 2), max(1, round(self.floor * MILLION))


def adapted_share(now: int, reduced: int, before: int, recover: int, least: int) -> float:
    """The share of its rate that an adaptive limit has: ``lua/include/adaptive_rate.lua`` in Python, for displays.

    Args:
        now, reduced, recover: microseconds.
        before, least: millionths.
    """
    passed = max(0, (now - reduced) * SHARE_STEPS // recover) / SHARE_STEPS - 1
    share = before / MILLION
    share += (0.3 * share if passed < 0 else 1 - share) * passed**3
    return min(1.0, max(least / MILLION, share))
