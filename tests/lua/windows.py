"""Law 1 of each algorithm, checked over every window."""

from __future__ import annotations

from itertools import accumulate, groupby
from typing import NamedTuple

from celery_ratelimit.limiter.limit_request import LimitRequest

from .counted import Numbers


class Start(NamedTuple):
    """Permits that were good at a moment of true time, in microseconds."""

    at: int
    cost: int


def most(numbers: Numbers, length: int, overdrawn: bool = False) -> int | None:
    """The permits that may lie in a closed interval of ``length`` us; ``None``: any number.

    ``overdrawn``: in an interval that ends with a grant, where calls before it have used more than they took.
    """
    algorithm, n, w, burst, _, extra = numbers
    if algorithm == "sliding_log":
        return n * (length // w + 1) if length < w or not overdrawn else None
    if algorithm == "sliding_window":
        if length * extra <= w * (extra - 1):
            return n
        return None if overdrawn else (2 * n - 1) * (length // w + 1)
    if algorithm == "fixed_window":
        return n * (length // w + 2)
    if algorithm == "stepped_bucket":
        return burst + n * (length // w + 1)
    return burst + (extra if algorithm == "token_bucket" else 0) + n * length // w


def check_every_window(starts: list[Start], limit: LimitRequest, stepped_back: int = 0) -> None:
    """Law 1: no more permits than the limit's algorithm allows, in any interval whatever.

    ``stepped_back``: how often the clock did. It runs through a window twice then: they are not windows of true time.
    """
    numbers, starts = Numbers.of(limit), sorted(starts)
    total = [0, *accumulate(start.cost for start in starts)]
    for i, first in enumerate(starts):
        for j, last in enumerate(starts[i:], start=i):
            length, permits = last.at - first.at, total[j + 1] - total[i]
            bound = most(numbers, length)
            if bound and numbers.algorithm == "fixed_window" and not numbers.extra:
                bound += numbers.count * stepped_back
            assert bound is None or permits <= bound, f"{permits} permits of {numbers} in {length} us"
    if numbers.algorithm == "fixed_window" and not stepped_back:
        check_fixed_windows(starts, numbers)


def check_fixed_windows(starts: list[Start], numbers: Numbers) -> None:
    """At most n in each window of the clock, or in each that a first use opens, even one that was given back."""
    if numbers.extra:
        opened: list[Start] = []
        for start in starts:
            if not opened or start.at >= opened[-1].at + numbers.period:
                opened.append(Start(start.at, 0))
            opened[-1] = Start(opened[-1].at, opened[-1].cost + start.cost)
        used = [each.cost for each in opened]
    else:
        used = [
            sum(start.cost for start in window)
            for _, window in groupby(starts, key=lambda start: start.at // numbers.period)
        ]
    assert all(each <= numbers.count for each in used), f"{used} permits of {numbers} in a window"


def check_windows_up_to(grant: Start, before: list[Start], limit: LimitRequest) -> None:
    """Law 1 at the moment of a grant, where calls have used more than they took: every interval that ends with it."""
    numbers, total = Numbers.of(limit), 0
    for start in sorted([*before, grant], reverse=True):
        if start.at > grant.at:
            continue
        total += start.cost
        bound = most(numbers, grant.at - start.at, overdrawn=True)
        assert bound is None or total <= bound, f"{total} permits of {numbers} in {grant.at - start.at} us"
    if numbers.algorithm == "fixed_window" and not numbers.extra:
        last = grant.at // numbers.period
        for windows in range(1, last - min(start.at for start in [*before, grant]) // numbers.period + 2):
            used = sum(start.cost for start in [*before, grant] if 0 <= last - start.at // numbers.period < windows)
            assert used <= windows * numbers.count, f"{used} permits of {numbers} in {windows} windows"
