"""Rate limits that hold across a whole Celery fleet.

>>> from celery_ratelimit import RateLimitedTask
>>> @app.task(base=RateLimitedTask, limits="100/s")
... def charge(order_id): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .decision import Decision
from .errors import ConfigurationError, ImpossibleRequest, RateLimitError, StoreUnavailable, Throttled
from .limiter import Limiter
from .limits import Concurrency, Limit

if TYPE_CHECKING:
    from .async_limiter import AsyncLimiter
    from .task import RateLimitedTask
    from .worker import install

__version__ = "0.1.0"

__all__ = [
    "AsyncLimiter",
    "Concurrency",
    "ConfigurationError",
    "Decision",
    "ImpossibleRequest",
    "Limit",
    "Limiter",
    "RateLimitError",
    "RateLimitedTask",
    "StoreUnavailable",
    "Throttled",
    "install",
]


def __getattr__(name: str) -> Any:
    # Imported when first asked for, so that the limiter can be used where Celery is not loaded.
    if name == "AsyncLimiter":
        from .async_limiter import AsyncLimiter

        return AsyncLimiter
    if name == "RateLimitedTask":
        from .task import RateLimitedTask

        return RateLimitedTask
    if name == "install":
        from .worker import install

        return install
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
