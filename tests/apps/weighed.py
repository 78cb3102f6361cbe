"""The fleet's app with a limit that fifty tenants share, by weights from 1 to 8; a call says what it costs."""

from __future__ import annotations

from celery_ratelimit import Limit, RateLimitedTask
from tests.apps.fleet import RATE, app, note
from tests.weighed import DEAREST, WEIGHTS

__all__ = ["app"]


@app.task(
    base=RateLimitedTask,
    limits=Limit(RATE, burst=DEAREST, name="weighed", fair="{tenant}", weights=WEIGHTS, cost="cost"),
)
def weighed(index: int, tenant: str, cost: int) -> None:
    note(index)
