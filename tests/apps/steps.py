"""The steps of the throttle path, and what a worker calls there."""

from __future__ import annotations

from typing import Any

from celery_ratelimit import _celery
from celery_ratelimit._celery import parcel as parcels
from celery_ratelimit.parking import lot as parking

__all__ = ["STEPS"]

#: Where a worker can die: what it is about to do, or has just done.
STEPS: dict[str, tuple[Any, str, str]] = {
    "before it parks": (parking.Parking, "park", "before"),
    "parked, not acknowledged": (parking.Parking, "park", "after"),
    "acknowledged, not told": (parking.Parking, "flush", "before"),
    "before it lets out": (parking.Parking, "unpark", "before"),
    "let out, not published": (parcels, "publish", "before"),
    "the first of several published": (parcels, "publish", "after"),
    "published, not reported": (parking.Parking, "published", "before"),
    "reported": (parking.Parking, "published", "after"),
    "back, not told": (parking.Parking, "arrive", "before"),
    "back, and told": (parking.Parking, "arrive", "after"),
    "before it starts": (_celery.Worker, "start", "before"),
}
