"""What the figures are, as functions of the starts that were noted. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from benchmarks.records import Start


def share_of_rate(starts: Sequence[Start], rate: float, until: float | None = None) -> float:
    """Starts a second, divided by the rate.

    ``(starts - 1) / (last - first) / rate``. For a run that was cut off with work still waiting,
    ``until`` is the time of the cut: the silence before it counts, since a throttle that has stalled is not
    using its rate.
    """
    if len(starts) < 2:
        return 0.0
    end = starts[-1].at if until is None else max(until, starts[-1].at)
    return (len(starts) - 1) / (end - starts[0].at) / rate


def worst_second(starts: Sequence[Start], second: float = 1.0) -> int:
    """The most starts in any interval ``[t, t + second)``."""
    worst = oldest = 0
    for newest, start in enumerate(starts):
        while start.at - starts[oldest].at >= second:
            oldest += 1
        worst = max(worst, newest - oldest + 1)
    return worst


def displacement(starts: Sequence[Start]) -> tuple[float, float]:
    """How far from first in, first out: median and 99th percentile of |rank of the start − rank when sent|.

    Only what has started is ranked, so that a run cut off early is judged by what it did. A task that started
    twice counts by its first start.
    """
    order = list(dict.fromkeys(start.index for start in starts))
    if not order:
        return math.nan, math.nan
    sent = {index: rank for rank, index in enumerate(sorted(order))}
    distances = sorted(abs(rank - sent[index]) for rank, index in enumerate(order))
    return float(median(distances)), float(distances[math.ceil(0.99 * len(distances)) - 1])
