"""Throttling is normal: an INFO line, an event and a signal, once for each outcome of a delivery."""

from __future__ import annotations

import logging

from .._celery import requests
from ..limiter.demand import Demand
from ..signals import task_throttled
from .held import HeldRequest
from .line import Line
from .outcome import Outcome

__all__ = ["announce", "outcome_of"]

logger = logging.getLogger("celery_ratelimit")


def outcome_of(line: Line, held: HeldRequest, demand: Demand, wait: float, now: float, full: bool = False) -> Outcome:
    """Why a request does not start, as far as it waits for its turn."""
    interval = line.intervals.get(demand.name, 0.0)
    return Outcome("waiting", wait, demand, interval, waited=now - held.since, full=full)


def announce(held: HeldRequest, outcome: Outcome) -> None:
    """Say what has become of a request.

    While the store does not answer, which is said when it begins and ends, the line is for whoever debugs.
    """
    if held.announced == outcome.what:
        return
    held.announced = outcome.what
    request, fields = held.request, outcome.fields()
    level = logging.INFO if outcome.limit is not None else logging.DEBUG
    logger.log(level, "Task %s[%s] %s", request.name, request.id, outcome)
    requests.announce(request, fields)
    task_throttled.send(sender=request.task, request=request, **fields)
