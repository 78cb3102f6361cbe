"""An HTTP service like the API of a model: quotas of requests and of tokens a minute for each model.

``POST /<model>`` with ``{"customer": …, "tokens": …}`` is a call that uses so many tokens. ``GET /calls`` lists
``[time, model, customer, tokens, accepted]``. Headers are in OpenAI's dialect. Its buckets are not ours.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

#: Requests and tokens a minute of each model.
QUOTAS = {"large": (300, 150_000), "small": (400, 300_000)}
SAVED = 10.0  # seconds of its quota that a bucket holds
SECONDS = 0.2  # that a call takes


@dataclass
class Bucket:
    """A quota that refills little by little."""

    per_minute: int
    left: float = 0.0
    at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.left = self.most

    @property
    def most(self) -> float:
        return self.per_minute * SAVED / 60

    def refill(self) -> None:
        now = time.monotonic()
        self.left = min(self.most, self.left + (now - self.at) * self.per_minute / 60)
        self.at = now

    def wait(self, cost: float) -> float:
        """Seconds until ``cost`` is there."""
        return max(0.0, (min(cost, self.most) - self.left) * 60 / self.per_minute)

    def headers(self, unit: str) -> dict[str, str]:
        return {
            f"x-ratelimit-limit-{unit}": str(self.per_minute),
            f"x-ratelimit-remaining-{unit}": str(max(0, int(self.left))),
            f"x-ratelimit-reset-{unit}": f"{self.wait(self.most):.3f}s",
        }


def build() -> Starlette:
    buckets = {model: [Bucket(each) for each in quotas] for model, quotas in QUOTAS.items()}
    calls: list[tuple[float, str, str, int, bool]] = []

    async def call(request: Request) -> JSONResponse:
        model, body = request.path_params["model"], await request.json()
        requests, tokens = buckets[model]
        costs = [(requests, 1), (tokens, body["tokens"])]
        for bucket, _ in costs:
            bucket.refill()
        wait = max(bucket.wait(cost) for bucket, cost in costs)
        calls.append((time.time(), model, body["customer"], body["tokens"], wait == 0))
        if not wait:
            for bucket, cost in costs:
                bucket.left -= cost
        headers = {**requests.headers("requests"), **tokens.headers("tokens")}
        if wait:
            return JSONResponse({"error": "rate_limit_exceeded"}, 429, {**headers, "retry-after": f"{wait:.3f}"})
        await asyncio.sleep(SECONDS)
        return JSONResponse({"tokens": body["tokens"]}, headers=headers)

    async def listed(request: Request) -> JSONResponse:
        return JSONResponse(calls)

    return Starlette(routes=[Route("/calls", listed), Route("/{model}", call, methods=["POST"])])


if __name__ == "__main__":
    uvicorn.run(build(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
