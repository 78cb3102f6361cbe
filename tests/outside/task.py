"""The task class that Celery's suite runs with in place of ``celery.Task``."""

from __future__ import annotations

from typing import ClassVar

from celery_ratelimit import Limit, RateLimitedTask

__all__ = ["LimitedTask"]


class LimitedTask(RateLimitedTask):
    """All tasks of the suite share one quota, so that a chain's second step is too early as its first one ends."""

    limits: ClassVar[Limit] = Limit("25/s", name="suite")
    #: Nobody is held for being a little too early: whoever is throttled is sent back.
    inline_wait = 0.0
