"""Gives back reservations of tasks that will not use them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..app.plan import Plan
from ..limiter.asker import Asker
from ..limiter.outage import Outage
from .request import PendingRequest

__all__ = ["Reservations"]

logger = logging.getLogger("celery_ratelimit")


class Reservations:
    """The slots that tasks of one worker have in the store.

    Args:
        asker: the way to the store.
        outage: while it lasts the store is not told: a reservation lapses by itself.
    """

    def __init__(self, asker: Asker, outage: Outage) -> None:
        self._asker, self._outage = asker, outage

    def forget(self, pending: PendingRequest) -> None:
        """Its slot is others'."""
        self._outage.ask(lambda: self._asker.forget(pending.demands, id=pending.id), None, quietly=True)

    def forget_of(self, plan_of: Callable[[], Plan | None], context: Any, marker: Mapping[str, Any]) -> None:
        """The same for a task that never came to the gate. What the user's key or cost raises is none of its affair."""
        try:
            plan = plan_of()
            if plan is None:
                return
            attempt = f"{context.id}.{context.retries}" if context.retries else context.id
            id = marker.get("id") or f"{attempt}@{marker.get('queue')}"
            demands = plan.demands(context.args, context.kwargs)
            self._outage.ask(lambda: self._asker.forget(demands, id=id), None, quietly=True)
        except Exception as error:
            logger.debug("no slot to give back for %s: %r", context.id, error)
