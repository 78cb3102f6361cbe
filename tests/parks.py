"""One message for a parking lot."""

from __future__ import annotations

from celery_ratelimit.backlog.backlog import Backlog, ToPark
from celery_ratelimit.limiter.demand import Demand

__all__ = ["park_one"]


def park_one(
    parking: Backlog,
    demand: Demand,
    id: str,
    message: str,
    *,
    copy: int = 1,
    since: int = 0,
    expires: float = 0.0,
    only_behind: bool = False,
    most: int | None = None,
    token: str = "",
    attempt: int = 0,
) -> int:
    """Park it; returns what the store says. ``token``: another one for each copy, if none is given."""
    one = ToPark(id, demand.cost, message, copy, token or f"t{copy}", since, expires, attempt)
    bucket = demand.name, demand.key
    (said,) = parking.park({bucket: [one]}, only_behind=only_behind, most=most)[bucket]
    return said
