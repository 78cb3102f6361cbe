"""What a call of unknown cost should be charged before it runs: ``python -m benchmarks.declared_costs``.

Calls of a model API take between 1 and 4,000 tokens, 480 on average (log-normal, from a fixed seed), and are settled at
their end. Real ``acquire`` and ``settle`` calls, as fast as permits are given, on a clock that stands still in between
(:mod:`benchmarks.clock`). The upstream counts what each call really takes when it arrives, refuses more than 120,000
tokens in any minute, and does not count what it refuses. Two runs print the same table.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.clock import StandingClock, standing_clock, us
from celery_ratelimit import Decision, Limit

QUOTA, MINUTE, MINUTES = 120_000, us(60), 10
MOST, MEAN = 4000, 480
LONG = (2.0, 20.0)  # seconds that a call takes on average; each takes half to one and a half of it


def learned(costs: Sequence[int]) -> int:
    """The 90th percentile of what the last calls took."""
    return sorted(costs)[len(costs) * 9 // 10] if len(costs) >= 10 else MOST


DECLARED: dict[str, Callable[[Sequence[int]], int]] = {
    "the most that it may take (4,000)": lambda _: MOST,
    "the 90th percentile of the last 200 calls": learned,
    "the mean (480)": lambda _: MEAN,
    "a quarter more than the mean (600)": lambda _: MEAN * 5 // 4,
}


def main() -> None:
    table = Table(title=f"{QUOTA:,} tokens a minute, {MINUTES} minutes", title_justify="left", box=box.SIMPLE)
    for heading in ("a call is charged", "calls take", "limit"):
        table.add_column(heading)
    for heading in ("used after the first minute", "refused"):
        table.add_column(heading, justify="right")
    with standing_clock() as clock:
        for name, declare in DECLARED.items():
            for seconds in LONG:
                for rate in ("115000/m", "108000/m"):
                    limit = Limit(rate, algorithm="sliding_log", name=f"tokens-{name}-{seconds}-{rate}")
                    used, refused = run(clock, limit, declare, seconds)
                    table.add_row(name, f"{seconds:g} s", rate, f"{used:.2f}", refused)
    Console(width=120).print(table)


def run(
    clock: StandingClock, limit: Limit, declare: Callable[[Sequence[int]], int], seconds: float
) -> tuple[float, str]:
    """The share of the quota that was used, and the calls that were refused."""
    rng, now, calls = random.Random(1), 0, 0
    running: list[tuple[int, int, Decision, int]] = []  # end, number, decision, tokens
    last: deque[int] = deque(maxlen=200)
    arrived: deque[tuple[int, int]] = deque()  # at the upstream in the last minute
    used = in_minute = refused = 0
    while now < MINUTES * MINUTE:
        clock.set(now)
        decision = clock.limiter.acquire(limit, cost=declare(last))
        if not decision.allowed:
            now += max(1000, us(decision.retry_after))
            if running and running[0][0] <= now:
                now, _, settled, tokens = heapq.heappop(running)
                clock.set(now)
                clock.limiter.settle(settled, tokens)
                last.append(tokens)
            continue
        calls += 1
        tokens = min(max(1, int(rng.lognormvariate(6, 0.6))), MOST)
        while arrived and arrived[0][0] <= now - MINUTE:
            in_minute -= arrived.popleft()[1]
        if in_minute + tokens > QUOTA:
            refused += 1
            clock.limiter.settle(decision, 0)
            clock.limiter.pause(limit, 1.0)
            continue
        arrived.append((now, tokens))
        in_minute += tokens
        used += tokens if now >= MINUTE else 0
        heapq.heappush(running, (now + us(seconds * rng.uniform(0.5, 1.5)), calls, decision, tokens))
    return used / (MINUTES - 1) / QUOTA, f"{refused} of {calls}"


if __name__ == "__main__":
    main()
