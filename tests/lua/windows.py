"""Law 1, checked over every window."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

from celery_ratelimit.limiter import Demand


class Start(NamedTuple):
    """Permits that were good at a moment of true time, in microseconds."""

    at: int
    cost: int


def check_every_window(starts: list[Start], limit: Demand) -> None:
    """Law 1: at most burst + rate * T permits in every closed interval of length T."""
    rate, burst = limit.limit.parsed, limit.limit.burst
    starts = sorted(starts)
    total = [0, *accumulate(start.cost for start in starts)]
    for i, first in enumerate(starts):
        for j, last in enumerate(starts[i:], start=i):
            length, permits = last.at - first.at, total[j + 1] - total[i]
            # In whole numbers, for speed: permits <= burst + count * length / period
            assert (permits - burst) * rate.period_us <= rate.count * length, (
                f"{permits} permits of {limit.limit} in {length} us"
            )
