"""What users write, as mypy's strict mode sees it: type-checked by ``tests/integration/test_typing.py``, never run."""

from __future__ import annotations

from celery_ratelimit import (
    Concurrency,
    Decision,
    Limit,
    Limiter,
    ParkingLots,
    RateLimitedMixin,
    RateLimitedTask,
    install,
)

quotas = {"stripe": Limit("100/s", name="stripe"), "gpu": Concurrency(4, name="gpu")}
limits = [Limit("5/s", name="tenant", key="{tenant_id}"), Concurrency(5, name="places")]

limiter = Limiter.from_url("redis://localhost:6379/0", quotas=quotas)
decision: Decision = limiter.acquire(limits)
limiter.acquire(quotas["gpu"])
limiter.acquire(["stripe", Limit("5/s", name="five")])
limiter.quotas["mail"] = Limit("14/s", name="mail")

__all__ = ["ParkingLots", "RateLimitedMixin", "RateLimitedTask", "install"]
