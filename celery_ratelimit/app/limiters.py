"""The limiters of a Celery app: they know its quotas, and the limits of its tasks and queues, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from billiard.process import current_process
from celery import Celery

from ..limiter.limiter import Limiter
from ..limits.any_limit import AnyLimit
from .app_attributes import kept
from .app_limits import AppLimits
from .plan import goes_by
from .settings import Settings, forks_apart, settings_of

if TYPE_CHECKING:
    from ..limiter.async_limiter import AsyncLimiter

__all__ = ["async_limiter_of", "limiter_of"]


def limiter_of(app: Celery) -> Limiter:
    """The limiter of ``app``: one for each app and process; a fork opens connections of its own."""
    limiter: Limiter = kept(app, "limiter", lambda: _make(Limiter, app))
    return limiter


def async_limiter_of(app: Celery) -> AsyncLimiter:
    """A new limiter for asyncio at each call, since it belongs to an event loop."""
    from ..limiter.async_limiter import AsyncLimiter

    limiter: AsyncLimiter = _make(AsyncLimiter, app)
    return limiter


def _make(kind: Any, app: Celery) -> Any:
    settings: Settings = settings_of(app)
    if settings.in_memory and current_process().name != "MainProcess":
        raise forks_apart(settings.url)
    limiter = kind.from_url(
        settings.url, quotas=settings.quotas, prefix=settings.prefix, counts=settings.counts, **settings.options
    )
    limiter._reader.others = _others(app)
    limiter._reader.goes_by = lambda: goes_by(app)
    limiter._reader.missing_key = settings.missing_key
    return limiter


def _others(app: Celery) -> Callable[[], Mapping[str, AnyLimit]]:
    """The limits of the app's tasks and queues, computed at first use: tasks may yet be registered."""
    return lambda: kept(app, "limits by name", lambda: AppLimits(app))
