"""The reserve of a limit: shares of its burst for messages of high priority."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigurationError, shown

__all__ = ["MILLION", "PriorityReserve", "priority_reserve_of"]

#: Shares are computed in millionths, in Python and in Lua.
MILLION = 1_000_000
#: Priorities of brokers: Redis 0 (first) to 9, RabbitMQ 0 to 255 (first).
_LAST_ON_REDIS, _MOST = 9, 255


@dataclass(frozen=True, slots=True)
class PriorityReserve:
    """Millionths of a burst, each for calls of one priority and of higher ones; see :func:`priority_reserve_of`.

    The broker's order decides which of two priorities is higher.
    """

    shares: tuple[tuple[int, int], ...]

    @property
    def most(self) -> int:
        """The whole reserve, which calls of the lowest priority leave."""
        return sum(share for _, share in self.shares)

    def left_by(self, priority: int, *, lowest_first: bool) -> int:
        """The share that a call of that priority leaves to calls of higher priority."""
        return sum(share for first, share in self.shares if (priority > first if lowest_first else priority < first))

    def check(self, where: str, name: str | None, *, lowest_first: bool) -> None:
        """Reject a share for the lowest priority: every call may use it, so it reserves nothing.

        Raises:
            ConfigurationError: names the priority, and says which priorities go first.
        """
        for first, _ in self.shares:
            if first >= _LAST_ON_REDIS if lowest_first else first == 0:
                order = (
                    "0 is the highest priority and 9 the lowest" if lowest_first else "the highest number goes first"
                )
                raise ConfigurationError(
                    f"{where}: priority_reserve={self!r} of limit {name!r}: every message has priority {first} or "
                    f"goes before it, so nothing is set aside: on this broker {order}"
                )

    def __repr__(self) -> str:
        return repr({priority: share / MILLION for priority, share in self.shares})


def priority_reserve_of(label: str, written: Any, burst: int, dearest: int) -> PriorityReserve:
    """Read the option ``priority_reserve=``: shares of the burst by priority.

    Args:
        label: names the limit in errors.
        written: a mapping; priorities may be texts, as in JSON.
        burst: of the limit.
        dearest: the highest cost of a call, as far as known.

    Raises:
        ConfigurationError: no such mapping, a share below one permit, or too little left for the lowest priority.
    """
    given = (
        {first: share / MILLION for first, share in written.shares} if isinstance(written, PriorityReserve) else written
    )
    if not isinstance(given, Mapping) or not given:
        raise ConfigurationError(
            f"{label}: priority_reserve={shown(given)} must be a mapping of priorities to shares of the burst, such as "
            "{0: 0.2}"
        )
    what = f"{label}: priority_reserve={shown(dict(given))}"
    shares: dict[int, int] = {}
    for priority, share in given.items():
        number = int(priority) if isinstance(priority, str) and priority.isdecimal() else priority
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _MOST or number in shares:
            raise ConfigurationError(
                f"{what}: {shown(priority)} is no priority: take each number that messages are sent with once, from 0 "
                f"to {_MOST}"
            )
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
            raise ConfigurationError(f"{what}: {shown(share)} must be a share of the burst between 0 and 1")
        shares[number] = round(share * MILLION)
        if shares[number] * burst < MILLION:
            least = f"{-(-MILLION // shares[number])} or more" if shares[number] else "a million and more"
            raise ConfigurationError(
                f"{what}: {shown(share)} of burst={shown(burst)} is less than one permit: give it burst= of {least},"
                " or make the share larger"
            )
    reserve = PriorityReserve(tuple(sorted(shares.items())))
    left = burst - reserve.most * burst // MILLION
    if left < dearest:
        needed = "one permit" if dearest == 1 else f"a call that costs {dearest}"
        raise ConfigurationError(
            f"{what} leaves {max(0, left)} of burst={shown(burst)} to calls that may use none of it, which is too "
            f"little for {needed}: make the shares smaller or the burst larger"
        )
    return reserve
