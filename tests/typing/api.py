"""What users write, as mypy's strict mode sees it: type-checked by ``packaging/test_typing.py``, never run."""

from __future__ import annotations

from celery_ratelimit import (
    AsyncLimiter,
    Concurrency,
    Decision,
    Limit,
    LimitConfig,
    Limiter,
    LimitState,
    ParkingLots,
    RateLimitedMixin,
    RateLimitedTask,
    Stats,
    StoreMisconfigured,
    install,
)
from celery_ratelimit.feedback import Feedback, read_headers

quotas = {"stripe": Limit("100/s", name="stripe"), "gpu": Concurrency(4, name="gpu")}
limits = [Limit("5/s", name="tenant", key="{tenant_id}"), Concurrency(5, name="places")]

limiter = Limiter.from_url("redis://localhost:6379/0", quotas=quotas)
decision: Decision = limiter.acquire(limits)
limiter.acquire(quotas["gpu"])
limiter.acquire(["stripe", Limit("5/s", name="five")])
limiter.quotas["mail"] = Limit("14/s", name="mail")

peeked: Decision = limiter.peek(["stripe"], args={"tenant_id": 7})
changed: bool = limiter.set_rate("stripe", "50/s", for_=60.0)
tried: bool = limiter.set_shadow("stripe", True, reason="a trial")
sentence: str = str(limiter.shadow_report("stripe"))
states: tuple[LimitState, ...] = decision.states
refusing: str | None = decision.limited_by
room: int = min(decision.capacity, states[0].capacity)
config: LimitConfig = limiter.config("stripe")
stats: Stats = limiter.stats("stripe", totals=True)["stripe"]
of_all: dict[str, Stats] = limiter.stats(limiter.quotas, minutes=30)
some: int = limiter.acquire_up_to(["stripe", "gpu"], 50, priority=3).permits
limiter.charge("stripe", 30, args={"tenant_id": 7})
several: bool = limiter.settle(decision, {"stripe": 9, "five": 0})
told: float = limiter.report("stripe", object(), unit="tokens", max_pause=60.0)
said: Feedback = read_headers({"Retry-After": "5"}, now=0.0)
next_call: float | None = said.pause if said.is_refusal else said.reset_after
weighted = Concurrency(8, name="memory", key="{host}", cost="megabytes", missing_key="shared")
unset: bool = limiter.unset_rate("stripe") and limiter.expire_rate("stripe", 60.0)
paused: float = limiter.pause("stripe", 5.0, reason="it has said so")
reasons: list[str] = [change.reason for change in limiter.history("stripe")]


async def awaited(limiter: AsyncLimiter) -> tuple[Decision, bool, float, int]:
    """The verbs of both limiters have the same arguments, and the same answers."""
    async with limiter.permit("gpu", max_wait=2.0) as decision:
        settled: bool = await limiter.settle(decision, 5)
    taken: Decision = await limiter.acquire(limits, key=None, cost=2, max_wait=1.5)
    counted: Stats = (await limiter.stats(["stripe"]))["stripe"]
    await limiter.acquire(limits, max_wait=None, cost=counted.permits)
    await limiter.report("stripe", object())
    await limiter.charge(limits, (await limiter.acquire_up_to(limits, 5)).permits)
    return taken, settled, await limiter.pause("stripe", 5.0), await limiter.available("stripe")


__all__ = ["ParkingLots", "RateLimitedMixin", "RateLimitedTask", "StoreMisconfigured", "install"]
