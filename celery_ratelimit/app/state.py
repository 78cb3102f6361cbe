"""The store of an app's limits, as its processes use it: one limiter, and the places that its tasks hold."""

from __future__ import annotations

import logging

from celery import Celery

from ..errors import ConfigurationError, StoreUnavailable
from ..limiter.leases import LeaseKeeper
from ..limiter.limiter import Limiter
from ..store import url
from ..store.health import is_no_store
from ..store.url_text import without_password
from .kept import is_kept, kept
from .settings import settings_of, store_options

__all__ = ["check_store", "check_url", "leases_of", "limiter_of"]

logger = logging.getLogger("celery_ratelimit")


def limiter_of(app: Celery) -> Limiter:
    """:meth:`Limiter.from_app`."""
    return Limiter.from_app(app)


def leases_of(app: Celery) -> LeaseKeeper:
    """The leases that tasks of ``app`` hold in this process."""
    leases: LeaseKeeper = kept(app, "leases", lambda: LeaseKeeper(limiter_of(app).asker))
    return leases


def check_url(app: Celery) -> None:
    """Whether the configured URL is one of a store; asks no store.

    Raises:
        ConfigurationError: it is none.
    """
    settings = settings_of(app)
    if not settings.in_memory:
        try:
            url.check_url(settings.url, **store_options(app, settings.url))
        except ConfigurationError as error:
            raise ConfigurationError(f"ratelimit_url={without_password(settings.url)!r}: {error}") from error


def check_store(app: Celery) -> StoreUnavailable | None:
    """Whether a store that can keep limits answers at the configured URL. What may go wrong with it is logged.

    Returns:
        Why it does not answer, where ``ratelimit_on_store_error`` says what to do meanwhile; None: it answers.

    Raises:
        ConfigurationError: it does not answer, and ``ratelimit_on_store_error="raise"``; or it will never do.
    """
    settings = settings_of(app)
    shown = without_password(settings.url)
    try:
        for warning in limiter_of(app).asker.check_store():
            logger.warning("ratelimit_url=%r: %s", shown, warning)
    except ConfigurationError as error:
        raise ConfigurationError(f"ratelimit_url={shown!r}: {error}") from error
    except StoreUnavailable as error:
        text = f"ratelimit_url={shown!r}: no Redis or Valkey answers there ({error.__cause__})"
        # A cluster's client is not to be had while none of its nodes answers: there is none to ask later.
        if settings.on_store_error != "raise" and is_kept(app, "limiter") and not is_no_store(error.__cause__):
            lost = StoreUnavailable(text)
            lost.__cause__ = error.__cause__
            return lost
        raise ConfigurationError(f"{text}. Start the store, or set ratelimit_url to where it is") from error
    return None
