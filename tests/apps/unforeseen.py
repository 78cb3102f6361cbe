"""Where in the gate something may go wrong that no code foresees."""

from __future__ import annotations

from typing import Any

from celery_ratelimit._celery import Worker, requests
from celery_ratelimit.backlog import backlog as parking
from celery_ratelimit.limiter import sync_store
from celery_ratelimit.worker import admission, concurrency, flow_control

__all__ = ["STEPS"]

#: By the beginning of the id of the task that it happens to (of several that ask together, the first): what raises.
STEPS: dict[str, list[tuple[Any, str]]] = {
    "ask": [
        (sync_store.StoreRunner, "ask"),
        (admission, "acquire_along"),
        (concurrency, "release_and_acquire"),
    ],
    "park": [(parking.Backlog, "parks")],
    "start": [(Worker, "start")],
    "leave": [(flow_control.HeldRequests, "_resume")],
    "announce": [(requests, "send_throttled_event")],
    "grant": [(admission.PermitClient, "_granted")],
}
