"""Tasks of which one is to wait: the others end as revoked, and say in whose favour."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from .._celery import requests
from .._celery.saved_message import survivor_in
from ..app.plan import Plan
from .request import PendingRequest

__all__ = ["alone", "end", "ends"]

logger = logging.getLogger("celery_ratelimit")


def alone(plan: Plan, request: Any) -> str:
    """What a request has in common with others of which one is to wait; empty: all may.

    A task of a canvas is left alone: other tasks go on with its result.
    """
    if plan.policy.coalesce is None or requests.is_of_canvas(request):
        return ""
    return plan.alone(request.task.name, request.args, request.kwargs)


def ends(pending: PendingRequest, ends_duplicate: Callable[[PendingRequest], bool]) -> bool:
    """Whether another one waits in the place of one that has come back: it ends, once, whatever copies there are."""
    survivor = survivor_in(pending.request.message)
    if survivor and not ends_duplicate(pending):
        end(pending, survivor)
    return bool(survivor)


def end(pending: PendingRequest, survivor: str) -> None:
    """It ends without having run."""
    request = pending.request
    reason = f"coalesced: task {survivor} waits in its place"
    logger.info("Task %s[%s] %s", request.name, request.id, reason)
    requests.revoke(request, reason)
