"""An HTTP service that protects itself: 100 calls a second, 20 at once, and 429 beyond that.

The judge of the demo, so its limiter is not ours: GCRA in memory, from throttled-py. The first segment of
the path names the service; each has an allowance of its own.

``POST /<service>/<item>`` is a call. ``GET /stats`` counts by service, ``GET /calls`` lists ``[time, path,
accepted]`` of the latest, ``POST /reset`` forgets both and starts with full buckets.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter, deque

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from throttled import RateLimiterType, Throttled, rate_limiter
from throttled.store import MemoryStore

RATE = 100  # calls a second
BURST = 20  # calls at once: a machine with other work may start calls 0.1 s late, and then several together
REMEMBERED = 100_000  # latest calls kept for /calls, so that a server left running does not grow


class Upstream:
    """The allowance of every service, and a record of the calls to it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        # burst is the bucket's capacity in throttled-py: 20 at once, then one every 10 ms.
        quota = rate_limiter.per_sec(RATE, burst=BURST)
        self._throttled = Throttled(using=RateLimiterType.GCRA.value, quota=quota, store=MemoryStore())
        self.calls: deque[tuple[float, str, bool]] = deque(maxlen=REMEMBERED)
        self.accepted: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def call(self, service: str, item: str) -> float | None:
        """None if the call is within the allowance, else the seconds to wait."""
        result = self._throttled.limit(service)
        self.calls.append((time.monotonic(), f"{service}/{item}", not result.limited))
        (self.refused if result.limited else self.accepted)[service] += 1
        return result.state.retry_after if result.limited else None

    def stats(self) -> dict[str, dict[str, int]]:
        services = sorted({*self.accepted, *self.refused})
        return {name: {"accepted": self.accepted[name], "refused": self.refused[name]} for name in services}


def build(upstream: Upstream) -> Starlette:
    """The HTTP face of ``upstream``."""

    async def call(request: Request) -> JSONResponse:
        wait = upstream.call(request.path_params["service"], request.path_params["item"])
        if wait is None:
            return JSONResponse({"ok": True})
        headers = {"Retry-After": str(max(1, math.ceil(wait)))}  # the header knows whole seconds only
        return JSONResponse({"error": "too many calls", "retry_after": wait}, 429, headers)

    async def stats(request: Request) -> JSONResponse:
        return JSONResponse(upstream.stats())

    async def calls(request: Request) -> JSONResponse:
        return JSONResponse(list(upstream.calls))

    async def reset(request: Request) -> JSONResponse:
        upstream.reset()
        return JSONResponse({"ok": True})

    return Starlette(
        routes=[
            Route("/stats", stats),
            Route("/calls", calls),
            Route("/reset", reset, methods=["POST"]),
            Route("/{service}/{item:path}", call, methods=["POST"]),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=f"An upstream that allows {RATE} calls/s, {BURST} at once.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    # One process: the allowance is in its memory.
    uvicorn.run(build(Upstream()), host=options.host, port=options.port, access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
