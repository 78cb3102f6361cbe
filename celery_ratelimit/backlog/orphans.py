"""A worker says which limits and return queues it attends to, and sees to those that nobody attends to any more.

A limit, a quota or a queue that was renamed or removed leaves tasks in the store and in return queues, where nobody
looks. What is found is said, and after some time handed back to the queues that its tasks were sent to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from .._celery import Worker
from ..limiter.outage import Outage
from ..limits.any_limit import AnyLimit
from .backlog import Backlog
from .fleet_registry import UNATTENDED
from .rescue import Rescue

__all__ = ["Orphans"]

#: Seconds after which a worker says again what it attends to, at the latest. Three of them missed, and it does not.
SAY = UNATTENDED / 3
#: Seconds between two looks at what nobody attends to, and names of either kind that one look goes through.
LOOK, MOST = 10.0, 100


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
        parking: Backlog,
        limits: Mapping[str, AnyLimit],
        grace: float,
        outage: Outage,
    ) -> None:
        self._worker, self._limits, self._outage = worker, limits, outage
        self._parking, self._grace = parking, grace
        self._rescue = Rescue(worker.app, parking.another(), grace, outage)
        self._pause = max(1.0, min(SAY, grace / 3))
        self._said: set[str] = set()
        self._used: set[tuple[str, str]] = set()
        self._new: set[tuple[str, str]] = set()
        self._cancel: Callable[[], None] | None = None
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
        names = self._outage.ask(self._say_all, None) if self._parking.can_park else None
        if names is not None:
            self._said = set(names)

    def _say_all(self) -> list[str]:
        names = list(self._limits)
        forget, self._rescue.nothing_there = self._rescue.nothing_there, set()
        after = min(self._grace, 3 * self._pause)
        returns = self._returns() | self._new
        unseen = self._parking.register.seen(names, sorted(returns), sorted(forget), after=max(after, 3.0), most=MOST)
        self._new -= returns
        busy = self._looking is not None and self._looking.is_alive()
        if not busy and time.monotonic() >= self._looked_at + min(LOOK, self._grace):
            self._looked_at = time.monotonic()
            self._looking = threading.Thread(
                target=self._rescue.see_to, args=(unseen, names), name="celery_ratelimit-orphans", daemon=True
            )
            self._looking.start()
        return names

    def _returns(self) -> set[tuple[str, str]]:
        """The return queues of what this worker consumes."""
        consumption = self._worker.consumption
        return {(to, queue) for queue in consumption.queues if (to := consumption.return_queue_for(queue)) != queue}
