"""The observers of an app's tasks: of ``ratelimit_observers`` and of :func:`observe`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery import Celery
from celery.utils.imports import symbol_by_name

from ..errors import ConfigurationError
from ..observing import Observer
from .app_attributes import kept
from .settings import settings_of

__all__ = ["observe", "observers_of"]


def observe(app: Celery, observer: Observer) -> None:
    """Call ``observer`` with the outcome of each task in the gates of this process's workers.

    >>> observe(app, lambda seen: print(seen.task, seen.outcome, seen.limit))

    Args:
        app: the Celery app; call it before its worker starts.
        observer: gets each :class:`~celery_ratelimit.observing.Observation`, in the worker's event loop.
    """
    _given(app).append(observer)


def observers_of(app: Celery) -> Sequence[Observer]:
    """All observers. A class in the setting is called once, without arguments, unless :func:`observe` got an instance.

    Raises:
        ConfigurationError: an observer of the setting cannot be imported or called; names it.
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
    """The function or class that a name means, and the observer that it gives."""
    try:
        found = symbol_by_name(named)
        observer: Any = found() if isinstance(found, type) else found
    except Exception as error:
        raise ConfigurationError(f"ratelimit_observers: {named!r} is not to be had: {error!r}") from error
    if not callable(observer):
        raise ConfigurationError(f"ratelimit_observers: {named!r} is {observer!r}, which cannot be called")
    return found, observer
