"""The law of a change (docs/adr/0012), as a judge of what was granted: it knows the algorithms' laws, and no state.

At a change so many permits are *in use*: what the old law says that cannot be had again yet. From then on the new law
holds for what is granted, in every interval:

- in one that begins with the change, what was in use at it counts as taken then, as far as the new limit can hold it;
- another algorithm begins as used up: all that it holds counts as taken with the last that was granted before;
- a log, and a window of sub-windows that are as wide as before, know when each permit was taken: there they count
  as taken at their own time, the newest that the new limit can hold;
- what had been granted ahead stays. It counts in the intervals that begin with the last of it, or later: the new rule
  begins behind it;
- a settle or cancel gives back no more than what it gives back where those permits were never granted: so everything is
  counted as it was used in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import groupby
from math import floor

from .counted import Numbers
from .windows import Start, most

#: Token and leaky bucket keep the same state.
SAME_STATE = dict.fromkeys(("token_bucket", "leaky_bucket"), ("token_bucket", "leaky_bucket"))


def in_use(numbers: Numbers, starts: Sequence[Start], at: int) -> int:
    """Permits that were taken by ``at`` and that the law has not let come back: at the least, rounded down."""
    taken = [start for start in starts if start.at <= at]
    algorithm, n, w, _, _, extra = numbers
    if algorithm == "fixed_window":
        if extra:
            return 0  # which window is open follows from calls that were given back, too
        return sum(start.cost for start in taken if start.at // w == at // w)
    if algorithm in ("sliding_log", "sliding_window"):
        width = w if algorithm == "sliding_log" else w * (extra - 1) // extra
        return sum(start.cost for start in taken if start.at > at - width)
    missing = Fraction(0)
    for first in taken:
        used = sum(start.cost for start in taken if start.at >= first.at)
        if algorithm == "stepped_bucket":
            back: Fraction | int = n * ((at - first.at) // w + 1)
        else:
            back = Fraction((at - first.at) * n, w)
        missing = max(missing, used - back)
    return floor(missing)


def judge(
    before: Numbers, after: Numbers, at: int, old: Sequence[Start], new: Sequence[Start], kept: int | None = None
) -> None:
    """Check all that was granted after the change at ``at`` (``new``) beside what was granted before it (``old``).

    ``kept``: how much of that was in use when the store forgot it, because no call came before it was back.
    """
    used = min(after.burst, in_use(before, old, at)) if kept is None else kept
    ahead = [start for start in old if start.at > at and kept is None]
    behind = max((start.at for start in ahead), default=at)
    held = newest(old, at, used) if knows_times(before, after) else [Start(at, used)]
    if (used or ahead) and kept is None and not same_state(before, after):
        held = [Start(max(start.at for start in old), after.burst)]
    for last in new:
        taken = [*held, *(start for start in new if start.at <= last.at)]
        for first in held:
            permits = sum(start.cost for start in taken if start.at >= first.at)
            check(permits, last.at - first.at, after, "from the change on")
        for first in (*ahead, *new):
            if first.at <= last.at:
                counted = (*ahead, *new) if first.at >= behind else new
                permits = sum(start.cost for start in counted if first.at <= start.at <= last.at)
                check(permits, last.at - first.at, after, "after the change")
    if after.algorithm == "fixed_window" and not after.extra:
        for window, starts in groupby(sorted(new), key=lambda start: start.at // after.period):
            permits = sum(start.cost for start in (*starts, *held) if start.at // after.period == window)
            assert permits <= after.count, f"{permits} permits of {after} in a window"


def same_state(before: Numbers, after: Numbers) -> bool:
    """Whether the new rule goes on with what the old one has written."""
    return after.algorithm in SAME_STATE.get(before.algorithm, (before.algorithm,))


def knows_times(before: Numbers, after: Numbers) -> bool:
    """Whether each permit comes back by its own time, and not by that of the change."""
    if before.algorithm != after.algorithm:
        return False
    if after.algorithm == "sliding_window":
        return -(-before.period // before.extra) == -(-after.period // after.extra)
    return after.algorithm == "sliding_log"


def newest(starts: Sequence[Start], at: int, permits: int) -> list[Start]:
    """The last so many permits that were good by ``at``."""
    held: list[Start] = []
    for start in sorted((start for start in starts if start.at <= at), reverse=True):
        held.append(Start(start.at, min(start.cost, permits)))
        permits -= held[-1].cost
    return held


def check(permits: int, length: int, numbers: Numbers, where: str) -> None:
    bound = most(numbers, length)
    assert bound is None or permits <= bound, f"{permits} permits of {numbers} in {length} us {where}"
