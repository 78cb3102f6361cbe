"""Keeps this package's objects for an app on the app, not in a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery

__all__ = ["is_kept", "kept"]


def kept(app: Celery, name: str, make: Callable[[], Any]) -> Any:
    """The object ``name`` of an app, made by ``make`` at the first call."""
    kept = app.__dict__.setdefault("_celery_ratelimit", {})
    if name not in kept:
        kept[name] = make()
    return kept[name]


def is_kept(app: Celery, name: str) -> bool:
    return name in app.__dict__.get("_celery_ratelimit", {})
