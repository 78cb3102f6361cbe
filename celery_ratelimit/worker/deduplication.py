"""Decides which copy of a task may run, and which of the tasks that are coalesced waits.

A worker that is killed between two steps leaves a task twice: one copy runs, the others end. Of tasks with
``coalesce=`` one waits; the others end as revoked.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from .._celery import Worker, requests
from .._celery.saved_message import survivor_in
from ..app.plan import Plan
from ..backlog.deduplicator import Along, Deduplicator
from ..errors import RateLimitError
from ..limiter.argument_checks import microseconds
from ..limiter.limit_request import LimitRequest
from ..limiter.script_calls import ARGUMENTS, KEYS, decision_of, impossible, whole_numbers
from ..limiter.sync_store import StoreRunner
from ..limits.decision import Decision
from ..store.resp import bulk
from ..store_calls.outage import Outage
from .request import PendingRequest

__all__ = ["Deduplication", "acquire_along", "coalesce_key"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")


class Deduplication:
    """Asks the store once about each request that has come back, or was delivered again.

    Args:
        outage: while it lasts the store is not asked.
    """

    def __init__(self, worker: Worker, arrivals: Deduplicator, outage: Outage) -> None:
        self._worker, self._arrivals, self._outage = worker, arrivals, outage

    def forget(self, pending: PendingRequest) -> None:
        """A request is sent back: which copy may run is asked by the worker that has it next."""
        self._arrivals.forget(pending)

    def may_run(self, pending: PendingRequest) -> bool:
        """Ask about a request. True also where the store does not answer."""
        # Of a task that is never parked there are no copies.
        return not pending.can_park or self._outage.ask(lambda: self._arrivals.may_run(pending), True)

    def ends(self, pending: PendingRequest) -> bool:
        """Ask about a request, and end it if another copy may run. Returns whether it has ended."""
        pending.duplicate_checked = True
        if self.may_run(pending):
            return False
        self.end(pending)
        return True

    def ends_unchecked(self, pending: PendingRequest) -> bool:
        """End a duplicate that is about to ask, unless the script for its permit says which copy may run.

        The script for a lease does not.
        """
        if pending.duplicate_checked or (
            pending.can_park and not pending.plan.leased and self._arrivals.asks_along(pending)
        ):
            return False
        return self.ends(pending)

    def end(self, pending: PendingRequest) -> None:
        """Another copy is parked or may run."""
        request = pending.request
        logger.info("Another copy of %s[%s] is parked or may run: this one ends", request.name, request.id)
        self._worker.republisher.acknowledge(request)

    def acquire(
        self,
        asking: Sequence[PendingRequest],
        acquire: Callable[[Sequence[PendingRequest]], Sequence[Decision]],
        acquire_along: Callable[[Sequence[PendingRequest], Along], tuple[Sequence[Decision | None], Sequence[bool]]],
    ) -> Sequence[Decision | None]:
        """Ask for permits, and tell in the same script which copies have come.

        Args:
            acquire: asks for permits alone.
            acquire_along: asks for permits, and which of these copies may run.

        Returns:
            A decision for each that was asked for; None: another copy may run.
        """
        first, *_ = asking
        if not first.duplicate_checked and not self._arrivals.asks_along(first):  # a greenlet has told of it meanwhile
            if not self._arrivals.may_run(first):
                return [None]
            first.duplicate_checked = True
        # Up to the first of which it is not known by the reply.
        asking = list(
            itertools.takewhile(lambda each: each.duplicate_checked or self._arrivals.asks_along(each), asking)
        )
        with self._arrivals.told_along(asking) as told:
            if told is None:
                return acquire(asking)
            decisions, told.may = acquire_along(asking, told.along)
            told.answered = len(decisions)
        for pending, _ in zip(asking, decisions, strict=False):
            pending.duplicate_checked = True
        return decisions

    # -- Coalesced tasks -------------------------------------------------------------------------------------------

    def ends_coalesced(self, pending: PendingRequest) -> bool:
        """End a request that has come back, if another task waits in its place. Returns whether it has ended."""
        survivor = survivor_in(pending.request.message)
        if survivor and not self.ends(pending):
            self.end_coalesced(pending, survivor)
        return bool(survivor)

    @staticmethod
    def end_coalesced(pending: PendingRequest, survivor: str) -> None:
        """End a request as revoked: the task with id ``survivor`` waits in its place."""
        request = pending.request
        reason = f"coalesced: task {survivor} waits in its place"
        logger.info("Task %s[%s] %s", request.name, request.id, reason)
        requests.revoke(request, "coalesced", reason)


def acquire_along(
    asker: StoreRunner,
    demands: Sequence[LimitRequest],
    ids: Sequence[str],
    along: Along,
    *,
    horizon: float,
    claim: float,
) -> tuple[list[Decision | None], list[bool]]:
    """Acquire the same permits for several tasks that have returned, and check copies for duplicates, in one script.

    Returns the decisions, ``None`` for each task that may not run; and for each copy if it may run.
    """
    number, packed_keys, arguments = asker.core.calls.packed(tuple(demands))
    asked = [value for pair in zip(ids, along.places, strict=True) for value in pair]
    first, last = (number, microseconds(horizon), microseconds(claim), len(ids)), [*asked, *along.copies]
    keys = KEYS * number + along.number
    pieces = [packed_keys, *along.keys, bulk(*first), arguments, bulk(*last)]
    values = keys + len(first) + ARGUMENTS * number + len(last)
    try:
        said, may = asker.run_script(asker.core.scripts.filter_copies_and_acquire, keys, values, pieces)
    except RateLimitError as error:
        raise impossible(demands, error) from error.__cause__
    decisions = [
        None if isinstance(reply, int) else decision_of(demands, whole_numbers(reply), id)
        for reply, id in zip(said, ids, strict=False)
    ]
    return decisions, [int(each) == 1 for each in may]


def coalesce_key(plan: Plan, request: Any) -> str:
    """The key that tasks share of which only one is to wait; empty: the task is not coalesced.

    A task of a canvas is not, as other tasks go on with its result.
    """
    if plan.policy.coalesce is None or requests.is_of_canvas(request):
        return ""
    return plan.alone(request.task.name, request.args, request.kwargs)
