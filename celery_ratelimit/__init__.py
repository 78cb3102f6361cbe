"""Rate limits that hold across a whole Celery fleet.

>>> from celery_ratelimit import RateLimitedTask
>>> @app.task(base=RateLimitedTask, limits="100/s")
... def charge(order_id): ...
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .counts.stats import Stats
from .errors import (
    ConfigurationError,
    ImpossibleRequest,
    RateLimitError,
    StoreMisconfigured,
    StoreUnavailable,
    Throttled,
)
from .feedback import UpstreamThrottled
from .limiter.limiter import Limiter
from .limiter.limiter_base import LimiterBase
from .limits.adaptive import Adaptive
from .limits.breaker import Breaker
from .limits.concurrency import Concurrency
from .limits.decision import Decision, LimitState
from .limits.rate_limit import Limit
from .limits.stored_settings import LimitConfig

if TYPE_CHECKING:
    from .app.observers import observe
    from .limiter.async_limiter import AsyncLimiter
    from .lots import ParkingLots
    from .task import RateLimitedMixin, RateLimitedTask
    from .worker.bootstep import install

__version__ = "1.0.0"

__all__ = [
    "Adaptive",
    "AsyncLimiter",
    "Breaker",
    "Concurrency",
    "ConfigurationError",
    "Decision",
    "ImpossibleRequest",
    "Limit",
    "LimitConfig",
    "LimitState",
    "Limiter",
    "ParkingLots",
    "RateLimitError",
    "RateLimitedMixin",
    "RateLimitedTask",
    "Stats",
    "StoreMisconfigured",
    "StoreUnavailable",
    "Throttled",
    "UpstreamThrottled",
    "install",
    "observe",
]


#: Imported when first asked for, so that the limiter can be used where Celery is not loaded.
_LATER = {
    "AsyncLimiter": "limiter.async_limiter",
    "ParkingLots": "lots",
    "RateLimitedMixin": "task",
    "RateLimitedTask": "task",
    "install": "worker.bootstep",
    "observe": "app.observers",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        found = getattr(import_module(f".{_LATER[name]}", __name__), name)
        _be_there_for_workers()
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _of_app(kind: type[LimiterBase], app: Any) -> Any:
    # The limiter needs no Celery: only the imported module knows apps.
    from .app.limiters import async_limiter_of, limiter_of

    return limiter_of(app) if issubclass(kind, Limiter) else async_limiter_of(app)


LimiterBase._of_app = _of_app


def _be_there_for_workers() -> None:
    """Give workers of this process the gate if their app has limits; without Celery there are no workers."""
    if "celery" in sys.modules:
        import_module(".autoload", __name__)


_be_there_for_workers()
