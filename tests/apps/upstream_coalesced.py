"""Tasks of which one waits, whose upstream refuses calls."""

from __future__ import annotations

from typing import Any, Literal

from celery_ratelimit import Limit, RateLimitedTask, UpstreamThrottled
from tests.apps.fleet import RATE, app
from tests.apps.upstream import TooMany, call

__all__ = ["app"]


def refresh(account: str, index: int, refusals: int, seconds: float | None) -> int:
    try:
        call(index, refusals, seconds)
    except TooMany as error:
        raise UpstreamThrottled(seconds) from error
    return index


def made(which: Literal["newest", "oldest"], **options: Any) -> None:
    limit = Limit(RATE, name=which)
    one = {"coalesce": which, "coalesce_key": "{account}"}
    app.task(name=which, base=RateLimitedTask, limits=limit, **one, **options)(refresh)


made("newest")
made("oldest", acks_late=True)
