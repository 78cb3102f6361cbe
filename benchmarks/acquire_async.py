"""Scenario ``acquire_async``: one permit in an event loop, beside the asyncio faces of ``limits`` and ``throttled-py``.

As :mod:`benchmarks.acquire`: rounds of a thousand calls, one awaited after the other; all contenders in each round, in
an order that turns. The ratio of a contender is the median of each round's own ratio to an ``INCR`` by redis-py. Every
contender uses redis-py, and every limit is so wide that nothing is refused.

    python -m benchmarks.acquire_async --rounds 30
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

import redis.asyncio
from limits import RateLimitItemPerSecond
from limits.aio import strategies
from limits.storage import storage_from_string
from throttled.asyncio import RedisStore, Throttled, per_sec

from benchmarks.acquire import WIDE
from celery_ratelimit import Limit
from celery_ratelimit.limiter.async_limiter import AsyncLimiter
from celery_ratelimit.testing import embedded_server

BASE = "INCR, redis-py's defaults"

Call = Callable[[], Awaitable[Any]]


async def measure(url: str, rounds: int, calls: int) -> None:
    async with AsyncLimiter.from_url(url, quotas={"stripe": {"rate": f"{WIDE}/s", "burst": 1000}}) as limiter:
        contenders = _contenders(url, limiter)
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for call in contenders.values():  # connections and scripts, before anything is timed
            await _round(call, 200)
        names = list(contenders)
        for number in range(rounds):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                times[name].append(await _round(contenders[name], calls))
    for name, us in times.items():
        ratio = median(mine / its for mine, its in zip(us, times[BASE], strict=True))
        print(f"{name:44} {median(us):7.1f} us   {ratio:5.2f} x INCR")


async def _round(call: Call, calls: int) -> float:
    """Microseconds a call."""
    gc.collect()
    gc.disable()
    try:
        began = time.perf_counter()
        for _ in range(calls):
            await call()
        return (time.perf_counter() - began) * 1e6 / calls
    finally:
        gc.enable()


def _contenders(url: str, limiter: AsyncLimiter) -> dict[str, Call]:
    client = redis.asyncio.Redis.from_url(url)
    limit = Limit(f"{WIDE}/s", burst=1000, name="bench")
    throttle = Throttled(key="bench", using="gcra", quota=per_sec(WIDE, burst=1000), store=RedisStore(server=url))
    storage: Any = storage_from_string(f"async+{url}", implementation="redispy")
    fixed, moving = strategies.FixedWindowRateLimiter(storage), strategies.MovingWindowRateLimiter(storage)
    item = RateLimitItemPerSecond(WIDE)
    return {
        BASE: lambda: client.incr("bench:incr"),
        "celery_ratelimit, AsyncLimiter.acquire": lambda: limiter.acquire(limit),
        "celery_ratelimit, by name": lambda: limiter.acquire("stripe"),
        "throttled-py, GCRA": throttle.limit,
        "limits, fixed window": lambda: fixed.hit(item, "fixed"),
        "limits, moving window": lambda: moving.hit(item, "moving"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calls", type=int, default=1000, help="a round")
    options = parser.parse_args()
    with embedded_server() as server:
        asyncio.run(measure(server.url, options.rounds, options.calls))


if __name__ == "__main__":
    main()
