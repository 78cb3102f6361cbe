"""How much headroom an upstream needs that counts strict windows: ``python -m benchmarks.headroom``.

Permits are taken by real ``acquire`` calls as fast as they are given, on a clock that stands still in between
(:mod:`benchmarks.clock`). Each is followed by its call after a delay of 0 to 20 ms, evenly distributed, from a fixed
seed. The upstream refuses whatever would be more than 100 in any interval ``[t, t + 1 s)`` and does not count what it
refused. Two runs print the same table.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.clock import StandingClock, standing_clock, us
from celery_ratelimit import Limit

CALLS = 6000
ALLOWED, WINDOW = 100, us(1)
DELAY = us(0.02)
HEADROOMS = (0.0, 0.01, 0.02, 0.03, 0.05)


def main() -> None:
    table = Table(title=f"{CALLS:,} calls, each 0 to 20 ms after its permit", title_justify="left", box=box.SIMPLE)
    table.add_column("limit", no_wrap=True)
    for heading in ("permits a second", "most calls in a second", "refused"):
        table.add_column(heading, justify="right")
    limits = [Limit("100/s", headroom=share, name=f"even-{share}") for share in HEADROOMS]
    limits += [Limit("100/s", algorithm="sliding_log", headroom=share, name=f"log-{share}") for share in HEADROOMS]
    with standing_clock() as clock:
        for limit in limits:
            permits = take(clock, limit, CALLS)
            delays = random.Random(1)
            calls = sorted(permit + delays.randrange(DELAY + 1) for permit in permits)
            shown = repr(limit).replace(f", name={limit.name!r}", "")
            table.add_row(shown, f"{limit.parsed.per_second:.1f}", str(most_in_a_window(calls)), str(refused(calls)))
    Console(width=120).print(table)


def take(clock: StandingClock, limit: Limit, number: int) -> list[int]:
    """The times of ``number`` permits, for somebody who always asks."""
    permits: list[int] = []
    now = 0
    clock.set(now)
    while len(permits) < number:
        decision = clock.limiter.acquire(limit)
        if decision.allowed:
            permits.append(now)
        else:
            now += us(decision.retry_after)
            clock.set(now)
    return permits


def most_in_a_window(calls: Sequence[int]) -> int:
    recent: deque[int] = deque()
    most = 0
    for call in calls:
        recent.append(call)
        while recent[0] <= call - WINDOW:
            recent.popleft()
        most = max(most, len(recent))
    return most


def refused(calls: Sequence[int]) -> int:
    accepted: deque[int] = deque()
    number = 0
    for call in calls:
        while accepted and accepted[0] <= call - WINDOW:
            accepted.popleft()
        if len(accepted) < ALLOWED:
            accepted.append(call)
        else:
            number += 1
    return number


if __name__ == "__main__":
    main()
