"""Tasks that no worker attends to: it is said, and after a grace they are handed back. In a thread of its own."""

from __future__ import annotations

import itertools
import logging
import random
import time

from celery import Celery

from .._celery import message_count
from ..limiter.outage import Outage
from .backlog import Backlog
from .fleet_registry import Unseen
from .handing_back import HandingBack

__all__ = ["Rescue"]

logger = logging.getLogger("celery_ratelimit")

#: Seconds between two lines in the log about one thing.
REMINDER = 300.0
#: Seconds for which something is known where nothing waits: what was let out for it may still come there.
KEPT = 3600.0
#: Lots in which tasks are counted.
COUNTED = 1000
#: Limits whose keys are compared in one look.
RECONCILED = 10


class Rescue:
    """What becomes of tasks that nobody attends to.

    Args:
        app: its broker is where tasks go.
        parking: the lots, for this thread alone.
        grace: seconds for which something may be unattended before it is handed back.
        outage: while it lasts nobody asks the store.

    Attributes:
        nothing_there: limits, and return queues with their queues, in which nothing waits: they may be forgotten.
    """

    def __init__(self, app: Celery, parking: Backlog, grace: float, outage: Outage) -> None:
        self._app, self._parking, self._grace, self._outage = app, parking, grace, outage
        self.nothing_there: set[str] = set()
        self._warned: dict[str, float] = {}

    def see_to(self, unseen: Unseen, names: list[str]) -> None:
        self._outage.ask(lambda: self._reconcile(names), None, quietly=True)
        if not (unseen.limits or unseen.returns or unseen.queues):
            return
        try:
            self._outage.ask(lambda: self._see_to_all(unseen, names), None, quietly=True)
        except Exception as error:  # of the broker: tried again
            logger.warning("What nobody attends to could not be handed back (%r): tried again", error)

    def _reconcile(self, names: list[str]) -> None:
        for name in random.sample(names, min(RECONCILED, len(names))):
            again, removed = self._parking.reconciliation.step(name)
            if again or removed:
                logger.error(
                    "The store has lost keys of the limit %r: %d tasks are parked again, %d parked tasks are lost. "
                    "Does it evict keys (maxmemory-policy), or was it restored in part?",
                    *(name, again, removed),
                )

    def _see_to_all(self, unseen: Unseen, names: list[str]) -> None:
        occupied = set(self._parking.contents.occupied([*unseen.limits, *names]))
        for name, ago in unseen.limits.items():
            if name in occupied:
                self._see_to_limit(name, ago)
            elif ago >= self._grace + KEPT:
                self.nothing_there.add(name)
        absent = [queue for queue, ago in unseen.queues.items() if ago >= self._grace]
        for name in occupied.intersection(names) if absent else ():
            self._see_to_those_aside(name, absent)
        self._see_to_returns(unseen)

    def _see_to_limit(self, name: str, ago: float) -> None:
        if self._warns(f"limit {name}"):
            lots = itertools.islice(self._parking.contents.lots([name]), COUNTED)
            logger.warning(
                "%d tasks are parked for the limit %r, which no worker has had for %.0f s: was it renamed or removed? "
                "%g s after the last one (ratelimit_orphans_after) they go back to their queues, as they were sent",
                *(sum(lot.parked for lot in lots), name, ago, self._grace),
            )
        if ago >= self._grace:
            self._hand_back(f"of the limit {name!r}, which no worker has", name, [])

    def _see_to_those_aside(self, name: str, absent: list[str]) -> None:
        if any(self._parking.contents.keys(name, aside=True)):
            self._hand_back(f"of the limit {name!r} whose queue no worker consumes", name, absent)

    def _hand_back(self, what: str, name: str, queues: list[str]) -> None:
        with HandingBack(self._app, self._parking) as handing_back:
            handed = handing_back.limit(name, queues)
        self._tell(what, handed.tasks, handed.queues, handed.missing)

    def _see_to_returns(self, unseen: Unseen) -> None:
        waiting = {}
        if unseen.returns:
            with self._app.connection_for_read() as connection:
                waiting = {pair: message_count(connection, pair[0]) for pair in unseen.returns}
        for (to, queue), number in waiting.items():
            ago = unseen.returns[to, queue]
            if not number:
                if ago >= self._grace + KEPT:
                    self.nothing_there.add(f"{to}\0{queue}")
                continue
            if self._warns(f"queue {to}"):
                logger.warning(
                    "%d messages are in the return queue %r, which no worker has consumed for %.0f s: was the queue %r "
                    "renamed? %g s after the last one (ratelimit_orphans_after) they go back to it, as they were sent",
                    *(number, to, ago, queue, self._grace),
                )
            if ago >= self._grace:
                with HandingBack(self._app, self._parking) as handing_back:
                    handed = handing_back.return_queue(to, queue)
                self._tell(f"of the return queue {to!r}, which no worker consumes", *handed)

    def _tell(self, what: str, tasks: int, queues: frozenset[str], missing: frozenset[str]) -> None:
        if tasks:
            logger.warning("%d tasks %s, are in their queues again: %s", tasks, what, ", ".join(sorted(queues)))
        if missing and self._warns(f"missing {sorted(missing)}"):
            logger.warning("Tasks %s, stay: the broker has no queue %s", what, ", ".join(sorted(missing)))

    def _warns(self, what: str) -> bool:
        now = time.monotonic()
        if now < self._warned.get(what, float("-inf")) + REMINDER:
            return False
        self._warned[what] = now
        return True
