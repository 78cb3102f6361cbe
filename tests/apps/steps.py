"""The steps of the throttle path, and what a worker calls there."""

from __future__ import annotations

from typing import Any

from celery_ratelimit import _celery
from celery_ratelimit._celery import bulk_acknowledge, bulk_receive, publish_again
from celery_ratelimit.backlog import backlog as parking
from celery_ratelimit.backlog import return_scheduler, scripts
from celery_ratelimit.worker import admission, parking_batch

__all__ = ["STEPS", "TOGETHER"]

#: Where a worker can die: what it is about to do, or has just done.
STEPS: dict[str, tuple[Any, str, str]] = {
    "before it parks": (parking, "arguments_of", "before"),
    "parked, not acknowledged": (return_scheduler.ReturnScheduler, "_acknowledge", "before"),
    "acknowledged, not told": (parking.Backlog, "tells", "before"),
    "before it lets out": (parking.Backlog, "take_due", "before"),
    "let out, not published": (publish_again, "publish", "before"),
    "the first of several published": (publish_again, "publish", "after"),
    "published, not reported": (scripts.Scripts, "confirm", "before"),
    "reported": (scripts.Scripts, "confirm", "after"),
    "back, not told": (admission, "acquire_along", "before"),
    "back, told, and granted": (admission, "acquire_along", "after"),
    "before it starts": (_celery.Worker, "start", "before"),
}

#: Those of a Redis broker, whose messages come in together.
TOGETHER: dict[str, tuple[Any, str, str]] = {
    "taken, not delivered": (bulk_receive.BulkReceive, "_deliver", "before"),
    "in the gate, not parked": (parking_batch.ParkingBatch, "flush", "before"),
    "parked together, not acknowledged": (parking_batch.ParkingBatch, "flush", "after"),
    "acknowledgements are due": (bulk_acknowledge.BulkAcknowledge, "flush", "before"),
    "before it asks": (admission, "acquire_in_order", "before"),
    "it was told": (admission, "acquire_in_order", "after"),
}

for _owner, _name, _ in [*STEPS.values(), *TOGETHER.values()]:
    assert callable(getattr(_owner, _name)), f"{_name} has moved"
