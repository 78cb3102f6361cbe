"""Checks when a worker starts, and logs warnings: forgotten limits, other declarations, a store in memory."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from ..app.plan import AppLimits
from ..app.settings import forks_apart, settings_of
from ..app.state import check_store, limiter_of
from ..app.survey import forgotten
from ..errors import STORE_TROUBLES, ConfigurationError
from ..limiter.declared_limits import declare
from ..store.url_text import without_password
from .backlog import Backlog, backlog_of

__all__ = ["check_again", "check_memory", "left_something", "warn"]

logger = logging.getLogger("celery_ratelimit")

_T = TypeVar("_T")


def left_something(app: Any) -> bool:
    """Whether workers of this fleet have had limits: tasks of these may be parked or on their return."""
    seen = _ask(app, lambda backlog: backlog.register.seen((), ()), None)
    return seen is not None and bool(seen.limits or seen.returns)


def warn(app: Any, limited: AppLimits, *, ask_store: bool) -> None:
    """Log likely mistakes in the app's settings; ``ask_store``: also mistakes that only the store can show."""
    warnings = forgotten(app, _ask(app, lambda backlog: backlog.register.consumed(), set()) if ask_store else ())
    if ask_store and not settings_of(app).in_memory:
        with contextlib.suppress(*STORE_TROUBLES):
            warnings += declare(limiter_of(app).asker, limited)
    for warning in warnings:
        logger.warning("%s", warning)


def check_memory(app: Any, *, is_prefork: bool) -> None:
    """Warn that ``memory://`` counts limits in one process only.

    Raises:
        ConfigurationError: tasks run in other processes (prefork).
    """
    url = settings_of(app).url
    if is_prefork:
        raise forks_apart(url)
    logger.warning(
        "ratelimit_url=%r: limits are counted in this process alone. Another worker, or a process that only asks, "
        "has buckets of its own",
        without_password(url),
    )


def check_again(app: Any) -> None:
    """Check a store that was lost when the worker started. An unfit store is logged; the worker goes on."""
    try:
        check_store(app)
    except ConfigurationError as error:
        logger.error("%s", error)


def _ask(app: Any, question: Callable[[Backlog], _T], otherwise: _T) -> _T:
    """The store's reply about the app's fleet; ``otherwise`` if the store does not reply."""
    backlog = backlog_of(app)
    try:
        return question(backlog) if backlog.can_park else otherwise
    except STORE_TROUBLES:
        return otherwise
