"""A worker says which limits and return queues it attends to, and sees to those that nobody attends to any more.

A limit, a quota or a queue that was renamed or removed leaves tasks in the store and in return queues, where nobody
looks. What is found is said, and after some time handed back to the queues that its tasks were sent to.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping

from .._celery import Worker, messages_in
from ..limiter.outage import Outage
from ..limits.any_limit import AnyLimit
from .handing_back import HandingBack
from .lot import Parking
from .register import UNATTENDED, Unseen

__all__ = ["Orphans"]

logger = logging.getLogger("celery_ratelimit")

#: Seconds after which a worker says again what it attends to, at the latest. Three of them missed, and it does not.
SAY = UNATTENDED / 3
#: Seconds between two looks at what nobody attends to, and between two lines in the log about it.
LOOK, REMINDER = 10.0, 300.0
#: Seconds for which something is known where nothing waits: what was let out for it may still come there.
KEPT = 3600.0
#: Names of either kind that one look goes through, and lots in which tasks are counted.
MOST, COUNTED = 100, 1000


class Orphans:
    """What nobody attends to, as one worker sees it.

    Args:
        worker: the worker.
        parking: the lots.
        limits: that it attends to, by name; there may be more of them later.
        grace: seconds for which something may be unattended before it is handed back: a rolling deploy has workers of
            both kinds.
        outage: while it lasts nobody asks the store.
    """

    def __init__(
        self,
        worker: Worker,
        parking: Parking,
        limits: Mapping[str, AnyLimit],
        grace: float,
        outage: Outage,
    ) -> None:
        self._worker, self._limits, self._outage = worker, limits, outage
        self._parking, self._apart = parking, parking.another()
        self._grace = grace
        self._pause = max(1.0, min(SAY, grace / 3))
        self._said: set[str] = set()
        self._used: set[tuple[str, str]] = set()
        self._new: set[tuple[str, str]] = set()
        self._cancel: Callable[[], None] | None = None
        self._nothing_there: set[str] = set()
        self._warned: dict[str, float] = {}
        self._looked_at = float("-inf")
        self._looking: threading.Thread | None = None

    def begin(self) -> None:
        """Before anything is parked here: the names of its limits are in the store then."""
        if self._cancel is None:
            self._look_soon()

    def close(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    def say(self, name: str) -> None:
        """Something is about to be parked for a limit. Raises what the store raises."""
        if name not in self._said:
            self._said.update(self._say_all())

    def uses(self, return_queue: str, queue: str) -> None:
        """Something is published to a return queue, which others may consume, or nobody."""
        if (return_queue, queue) not in self._used and return_queue != queue:
            self._used.add((return_queue, queue))
            self._new.add((return_queue, queue))

    def say_now(self) -> None:
        """The worker consumes other queues than before."""
        if self._cancel is not None:
            self._cancel()
            self._look_soon()

    def _look_soon(self) -> None:
        self._cancel = self._worker.timers.call_after(self._pause, self._look_soon)
        names = self._outage.ask(self._say_all, None) if self._parking.in_use else None
        if names is not None:
            self._said = set(names)

    def _say_all(self) -> list[str]:
        names = list(self._limits)
        forget, self._nothing_there = self._nothing_there, set()
        after = min(self._grace, 3 * self._pause)
        returns = self._returns() | self._new
        unseen = self._parking.register.seen(names, sorted(returns), sorted(forget), after=max(after, 3.0), most=MOST)
        self._new -= returns
        wanted = unseen.limits or unseen.returns or unseen.queues
        busy = self._looking is not None and self._looking.is_alive()
        if wanted and not busy and time.monotonic() >= self._looked_at + min(LOOK, self._grace):
            self._looked_at = time.monotonic()
            self._looking = threading.Thread(
                target=self._see_to, args=(unseen, names), name="celery_ratelimit-orphans", daemon=True
            )
            self._looking.start()
        return names

    def _returns(self) -> set[tuple[str, str]]:
        """The return queues of what this worker consumes."""
        intake = self._worker.intake
        return {(to, queue) for queue in intake.queues if (to := intake.return_queue_for(queue)) != queue}

    # -- In a thread of its own: the worker has other things to do -------------------------------------------------

    def _see_to(self, unseen: Unseen, names: list[str]) -> None:
        try:
            self._outage.ask(lambda: self._see_to_all(unseen, names), None, quietly=True)
        except Exception as error:  # of the broker: tried again
            logger.warning("What nobody attends to could not be handed back (%r): tried again", error)

    def _see_to_all(self, unseen: Unseen, names: list[str]) -> None:
        occupied = set(self._apart.contents.occupied([*unseen.limits, *names]))
        for name, ago in unseen.limits.items():
            if name in occupied:
                self._see_to_limit(name, ago)
            elif ago >= self._grace + KEPT:
                self._nothing_there.add(name)
        absent = [queue for queue, ago in unseen.queues.items() if ago >= self._grace]
        for name in occupied.intersection(names) if absent else ():
            self._see_to_those_aside(name, absent)
        self._see_to_returns(unseen)

    def _see_to_limit(self, name: str, ago: float) -> None:
        if self._warns(f"limit {name}"):
            lots = itertools.islice(self._apart.contents.lots([name]), COUNTED)
            logger.warning(
                "%d tasks are parked for the limit %r, which no worker has had for %.0f s: was it renamed or removed? "
                "%g s after the last one (ratelimit_orphans_after) they go back to their queues, as they were sent",
                *(sum(lot.parked for lot in lots), name, ago, self._grace),
            )
        if ago >= self._grace:
            self._hand_back(f"of the limit {name!r}, which no worker has", name, [])

    def _see_to_those_aside(self, name: str, absent: list[str]) -> None:
        if any(self._apart.contents.keys(name, aside=True)):
            self._hand_back(f"of the limit {name!r} whose queue no worker consumes", name, absent)

    def _hand_back(self, what: str, name: str, queues: list[str]) -> None:
        with HandingBack(self._worker.app, self._apart) as handing_back:
            handed = handing_back.limit(name, queues)
        self._tell(what, handed.tasks, handed.queues, handed.missing)

    def _see_to_returns(self, unseen: Unseen) -> None:
        waiting = {}
        if unseen.returns:
            with self._worker.app.connection_for_read() as connection:
                waiting = {pair: messages_in(connection, pair[0]) for pair in unseen.returns}
        for (to, queue), number in waiting.items():
            ago = unseen.returns[to, queue]
            if not number:
                if ago >= self._grace + KEPT:
                    self._nothing_there.add(f"{to}\0{queue}")
                continue
            if self._warns(f"queue {to}"):
                logger.warning(
                    "%d messages are in the return queue %r, which no worker has consumed for %.0f s: was the queue %r "
                    "renamed? %g s after the last one (ratelimit_orphans_after) they go back to it, as they were sent",
                    *(number, to, ago, queue, self._grace),
                )
            if ago >= self._grace:
                with HandingBack(self._worker.app, self._apart) as handing_back:
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
