"""Forecasts when parked tasks start: the one computation behind every display. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf, sqrt
from typing import NamedTuple

from ..words import NO_END, few_digits, length
from .bucket_status import BucketStatus

__all__ = ["Forecast", "Throughput", "forecast", "no_worker", "window"]

#: The error of a forecast: a share of the wait, plus this many seconds.
BAND, MIN_BAND = 0.1, 1.0
#: Seconds over which throughput is measured, at least and at most; and until a worker's counts are in the store.
MIN_WINDOW, MAX_WINDOW, REPORTED_AFTER = 5.0, 60.0, 2.0
#: Why nothing is known of a limit without a rate: the backlog is young, the limit is paused, or nothing is counted.
UNMEASURED = f"how fast tasks start is known {MIN_WINDOW + REPORTED_AFTER:.0f} s later, by ratelimit_counts"


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a task starts, or the last of some.

    Attributes:
        seconds: from now; ``None``: not known.
        band: seconds by which this may be wrong.
        reason: why it is not known; ``""``: it is.
        limited_by: ``"workers start 1/s of 20/s allowed"``; ``""``: the limit alone decides.
    """

    seconds: float | None
    band: float = 0.0
    reason: str = ""
    limited_by: str = ""

    @property
    def wait(self) -> str:
        """As in ``12.0 s, give or take 2.2 s``; or ``not known``."""
        if self.seconds is None:
            return "not known"
        return f"{length(self.seconds)}, give or take {length(self.band)}"

    @property
    def why(self) -> str:
        """Why it is not known, or what limits it; ``""``: it is known, and the limit alone decides."""
        return self.reason or self.limited_by

    def __str__(self) -> str:
        start = self.wait if self.seconds is None else f"in {self.wait}"
        return f"{start}: {self.why}" if self.why else start


class Throughput(NamedTuple):
    """What workers have taken of a limit while its backlog was as it is now.

    Attributes:
        seconds: for which this was measured; 0.0: it was not.
        permits: taken in this time.
        allowed: permits a second that these lots were allowed; 0.0: not known, as under ``Concurrency``.
        gap: longest time without a permit at full use, in seconds.
        lots: parking lots that are served side by side.
        backlog: permits that their tasks cost.
        age: seconds for which the backlog has been there.
    """

    seconds: float = 0.0
    permits: int = 0
    allowed: float = 0.0
    gap: float = 0.0
    lots: int = 1
    backlog: float = inf
    age: float = 0.0

    @property
    def decides(self) -> bool:
        """Whether workers start clearly less than is allowed, or what is allowed is not known."""
        least = self.allowed * (self.seconds - max(1.0, self.gap))
        return self.seconds > 0 and (not self.allowed or self.permits + 2 * sqrt(self.permits + 1) < least)


def window(age: float) -> float:
    """Seconds over which the throughput of a backlog of that age is measured; 0.0: it is too young."""
    seconds = min(MAX_WINDOW, age - REPORTED_AFTER)
    return float(floor(seconds)) if seconds >= MIN_WINDOW else 0.0


def forecast(permits: float, standing: BucketStatus, throughput: Throughput, held_up: str = "") -> Forecast:
    """The forecast for the task that has so many permits before it in the parking lot of a bucket.

    ``held_up``: why it cannot start. While workers start less than is allowed, all lots get permits in turn.
    """
    if held_up or standing.retry_after > NO_END:
        return Forecast(None, reason=held_up or "paused until resumed")
    seconds = standing.retry_after + max(0.0, permits - max(0.0, standing.free - 1)) * standing.interval
    measured = throughput
    if measured.decides and (measured.permits or not standing.config.paused):  # none started as the limit is paused
        if not measured.permits:
            return Forecast(None, reason=f"no task has started for {length(measured.seconds)}")
        per_second = measured.permits / measured.seconds
        # Tasks leave their lots at the rate that is allowed, and then wait in workers.
        returned = (measured.allowed - per_second) * measured.age
        ahead = min(permits * measured.lots, measured.backlog) + max(standing.waiting, returned)
        by_workers = ahead / per_second
        if by_workers >= seconds or not standing.interval:
            seconds = max(seconds, by_workers)
            error = BAND + 2 / sqrt(measured.permits) + 1 / measured.seconds
            why = f"workers start {few_digits(per_second)}/s of {few_digits(measured.allowed)}/s allowed"
            return Forecast(seconds, error * seconds + MIN_BAND, limited_by=why if measured.allowed else "")
    elif not standing.interval:
        return Forecast(None, reason=UNMEASURED)
    return Forecast(seconds, BAND * seconds + MIN_BAND + standing.window)


def no_worker(queues: Sequence[str], stopped: Mapping[str, float]) -> str:
    """Why the tasks of these queues cannot start; ``""``: a worker consumes one of the queues, or there are none.

    ``stopped``: seconds since the last worker stopped, by queue; below zero: one consumes it.
    """
    if not queues or any(stopped.get(queue, 0.0) < 0 for queue in queues):
        return ""
    last = min(queues, key=lambda queue: stopped.get(queue, inf))
    when = f" (the last one stopped {length(stopped[last])} ago)" if last in stopped else ""
    return f"no worker consumes queue {last!r}{when}"
