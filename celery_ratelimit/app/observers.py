"""Who observes what becomes of an app's tasks: ``ratelimit_observers``, and whoever was given to :func:`observe`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery import Celery
from celery.utils.imports import symbol_by_name

from ..errors import ConfigurationError
from ..observing import Observer
from .kept import kept
from .settings import settings_of

__all__ = ["observe", "observers_of"]


def observe(app: Celery, observer: Observer) -> None:
    """Tell ``observer`` what becomes of each task in the gates of this process's workers.

    >>> observe(app, lambda seen: print(seen.task, seen.outcome, seen.limit))

    Args:
        app: the Celery app; call it before its worker starts.
        observer: is called with an :class:`~celery_ratelimit.observing.Observation`, in the worker's event loop.
    """
    _given(app).append(observer)


def observers_of(app: Celery) -> Sequence[Observer]:
    """All of them. A class is called once, without arguments; one of which an observer was given is that observer.

    Raises:
        ConfigurationError: one of the setting that is not to be had, or cannot be called; names it.
    """
    named: list[tuple[Any, Observer]] = kept(
        app, "observers named", lambda: [_found(each) for each in settings_of(app).observers]
    )
    given = _given(app)
    classes = {type(each) for each in given}
    return [*(observer for found, observer in named if found not in classes), *given]


def _given(app: Celery) -> list[Observer]:
    given: list[Observer] = kept(app, "observers", list)
    return given


def _found(named: Any) -> tuple[Any, Observer]:
    """What a name means: a function or a class; and who is told."""
    try:
        found = symbol_by_name(named)
        observer: Any = found() if isinstance(found, type) else found
    except Exception as error:
        raise ConfigurationError(f"ratelimit_observers: {named!r} is not to be had: {error!r}") from error
    if not callable(observer):
        raise ConfigurationError(f"ratelimit_observers: {named!r} is {observer!r}, which cannot be called")
    return found, observer
