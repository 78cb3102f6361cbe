"""An app's use of its store in one process: one limiter, and the leases of its tasks."""

from __future__ import annotations

import logging

from celery import Celery

from ..errors import ConfigurationError, StoreUnavailable
from ..limiter.leases import LeaseKeeper
from ..limiter.limiter import Limiter
from ..store import url
from ..store.store_errors import is_no_store
from ..store.url_text import without_password
from .app_attributes import is_kept, kept
from .settings import settings_of

__all__ = ["check_store", "check_url", "leases_of", "limiter_of"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")


def limiter_of(app: Celery) -> Limiter:
    """:meth:`Limiter.from_app`."""
    return Limiter.from_app(app)


def leases_of(app: Celery) -> LeaseKeeper:
    """The leases of the tasks of ``app`` in this process."""
    leases: LeaseKeeper = kept(app, "leases", lambda: LeaseKeeper(limiter_of(app)._asker))
    return leases


def check_url(app: Celery) -> None:
    """Check that the configured URL names a store; calls no store.

    Raises:
        ConfigurationError: it names none.
    """
    settings = settings_of(app)
    if not settings.in_memory:
        try:
            url.check_url(settings.url, **settings.options)
        except ConfigurationError as error:
            raise ConfigurationError(f"ratelimit_url={without_password(settings.url)!r}: {error}") from error


def check_store(app: Celery) -> StoreUnavailable | None:
    """Check that the store answers at the configured URL, and can hold limits. Logs warnings.

    Returns:
        The error if the store does not answer, and ``ratelimit_on_store_error`` handles that; None: it answers.

    Raises:
        ConfigurationError: the store does not answer, and ``ratelimit_on_store_error="raise"``; or it never will.
    """
    settings = settings_of(app)
    shown = without_password(settings.url)
    try:
        for warning in limiter_of(app)._asker.check_store():
            logger.warning("ratelimit_url=%r: %s", shown, warning)
    except ConfigurationError as error:
        raise ConfigurationError(f"ratelimit_url={shown!r}: {error}") from error
    except StoreUnavailable as error:
        text = f"ratelimit_url={shown!r}: no Redis or Valkey answers there ({error.__cause__})"
        # A cluster's client cannot be made while none of its nodes answers: there is none to call later.
        if settings.on_store_error != "raise" and is_kept(app, "limiter") and not is_no_store(error.__cause__):
            lost = StoreUnavailable(text)
            lost.__cause__ = error.__cause__
            return lost
        raise ConfigurationError(f"{text}. Start the store, or set ratelimit_url to where it is") from error
    except (TypeError, ValueError, AttributeError, LookupError) as error:  # redis-py's, of the value of an option
        named = ", ".join(settings.options)
        raise ConfigurationError(
            f"ratelimit_url={shown!r}: one of its options ({named}) cannot have its value: {error!r}"
        ) from error
    return None
