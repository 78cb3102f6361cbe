"""The fleet's app with a limit that two tenants share, as far as the version that runs it knows of that."""

from __future__ import annotations

from typing import Any

from celery_ratelimit import Limit, RateLimitedTask
from tests.apps.fleet import RATE, app, note

__all__ = ["app"]

#: A version before this one has no such option.
SHARED: dict[str, Any] = {"fair": "{tenant}"} if hasattr(Limit, "fair") else {}


@app.task(base=RateLimitedTask, limits=Limit(RATE, name="both", **SHARED), acks_late=True)
def both(index: int, tenant: str) -> int:
    note(index)
    return index
