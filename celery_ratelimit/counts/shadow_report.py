"""What a limit in shadow would have done, read from the store."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

__all__ = ["ShadowReport", "read_shadow_report"]


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """What a limit in shadow would have done to requests in force: a simulated queue in order of arrival.

    Attributes:
        requests: number of simulated requests.
        delayed: number of these that would have waited for more than 10 ms.
        refused: number of these that would have found the queue full (a leaky bucket's ``capacity``).
        longest: the longest wait, in seconds.
        waited: the sum of the waits, in seconds.
        since: arrival of the first request, in seconds since 1970; 0.0: none.
        used: the share of a bucket's rate that was requested in its busiest minute; if a permit takes longer than a
            minute to come back, in that time.
        used_at: start of that minute, in seconds since 1970.
        rate: the rate in force then, as text; ``""``: next to nothing was requested.
        pending: requests of the last seconds, not simulated yet: earlier ones may still be reported.
    """

    requests: int = 0
    delayed: int = 0
    refused: int = 0
    longest: float = 0.0
    waited: float = 0.0
    since: float = 0.0
    used: float = 0.0
    used_at: float = 0.0
    rate: str = ""
    pending: int = 0

    def __str__(self) -> str:
        if not self.requests:
            return "nothing has come yet"
        if self.delayed:
            said = f"would have delayed {self.delayed:,} of {_tasks(self.requests)}, by {self.longest:.1f} s at most"
        else:
            said = f"would have delayed none of {_tasks(self.requests)}"
        if self.refused:
            said += f", and refused {self.refused:,}"
        if not self.rate:  # next to nothing
            return said
        used = f"{self.used:.{0 if self.used >= 0.1 else 2}%}"
        return f"{said}; used {used} of {self.rate} at {self._minute()}".replace("%", " %")

    def _minute(self) -> str:
        then = time.localtime(self.used_at)
        return time.strftime("%H:%M" if then[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M", then)


def _tasks(number: int) -> str:
    return f"{number:,} task{'' if number == 1 else 's'}"


def read_shadow_report(text: Any, pending: int, us: int) -> ShadowReport:
    """Read the reply of ``lua/simulate_shadow.lua`` for one limit."""
    said = text.decode() if isinstance(text, bytes) else text
    number = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", said)}
    if not number:
        return ShadowReport(pending=pending)
    return ShadowReport(
        number["requests"],
        number["delayed"],
        number["refused"],
        number["longest"] / 1e6,
        number["waited"] / 1e6,
        number["since"] / 1e6,
        number["peak"] / 1e6,
        number["at"] / 1e6,
        _rate(number["count"], number["period"]) if number["period"] else "",
        pending,
    )


def _rate(count: int, period_us: int) -> str:
    """A rate as text: per second, or per the first longer unit in which it is a whole number."""
    for unit, us in (("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000), ("d", 86_400_000_000)):
        if count * us % period_us == 0:
            return f"{count * us // period_us}/{unit}"
    return f"{count * 1e6 / period_us:.4g}/s"
