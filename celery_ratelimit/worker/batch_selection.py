"""Selects the requests of a queue that acquire permits in one script call."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from .actions import Actions
from .admission import MAX_BATCH, PermitClient
from .capacity import PoolCapacity
from .error_attribution import ErrorAttribution
from .request import PendingRequest
from .request_queue import LimitQueue

__all__ = ["BatchSelector"]


class BatchSelector:
    """Selects them, in one worker.

    Args:
        admission: of the store.
        capacity: of the pool.
        actions: drop requests that need not ask any more.
        attribution: the request that is looked at.
    """

    def __init__(
        self, admission: PermitClient, capacity: PoolCapacity, actions: Actions, attribution: ErrorAttribution
    ) -> None:
        self._admission, self._capacity, self._actions, self._attribution = admission, capacity, actions, attribution

    def select(
        self, limit_queue: LimitQueue, first: PendingRequest, asking: Sequence[PendingRequest], now: float
    ) -> list[PendingRequest]:
        """Select the first request and those that ask for permits with it.

        A request with a reservation takes its permit from no other; new ones compete with other workers, so no more of
        them than have to. For leases, which are held from then on, as many as there are free processes. Not a request
        that may be a duplicate.
        """
        if len(asking) < 2 or (first.plan.leased and not first.waits_in_worker):
            return [first]
        most = (
            MAX_BATCH
            if first.has_reservation and not first.plan.leased
            else self._admission.batch_size(limit_queue, first)
        )
        if not first.plan.leased:
            most = min(most, self._capacity.max_permits(now, first.request.task.name, limit_queue.interval))
        together = [first]
        for pending in list(itertools.islice(asking, 1, most)):
            if len(together) >= most or now >= pending.release_deadline or not _asks_the_same(first, pending):
                break
            self._attribution.pair = limit_queue, pending
            if self._actions.drop_if_finished(limit_queue, pending):
                continue
            if pending.park_unconfirmed:  # the store did not say
                break
            together.append(pending)
        self._attribution.pair = limit_queue, first
        return together


def _asks_the_same(one: PendingRequest, other: PendingRequest) -> bool:
    return one.plan is other.plan and one.demands == other.demands
