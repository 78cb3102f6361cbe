"""When limited tasks have their turns, as far as one worker knows. Times are of ``time.monotonic``.

A turn is known of a request that waits here, of a task that is on its way back, and, as an estimate, of a backlog in
the store. Before a task takes a process for long, the scheduler asks whether a briefer one has its turn meanwhile.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from .._celery.saved_message import marker_in_headers
from ..limits.any_limit import AnyLimit
from .next_action import Park

__all__ = ["KEEP", "ExpectedTurns"]

#: Seconds before a turn from which on a process is kept for it, at the longest.
KEEP = 1.0
#: Seconds after its turn from which on a task that should be here is not waited for.
LATE = 0.1
#: A task is briefer than another one if it takes at most this share of its time.
BRIEFER = 0.25
#: Seconds that a task counts for of which no run has ended here.
UNKNOWN = 0.5


class ExpectedTurns:
    """The known turns, by task name.

    Args:
        mean_runtime: seconds that tasks of a name take; infinity: none has ended here.
        workers: how many workers share a backlog.
    """

    def __init__(self, mean_runtime: Callable[[str], float], workers: Callable[[], int] = lambda: 1) -> None:
        self._mean_runtime, self._workers = mean_runtime, workers
        self._turns: dict[str, tuple[float, str]] = {}
        self._by_name: dict[str, list[tuple[float, str]]] = {}
        self._queues: set[str] = set()  # turns of queues of this worker: they come, however late the worker is
        self._ready: dict[str, str] = {}  # queues that wait for a process or for the store's reply: the task's name
        self._ready_names: Counter[str] = Counter()
        self._paused_at = 0.0
        self._backlogs: dict[str, tuple[float, float]] = {}  # by task name: the next turn, and until when that is known

    def expect(self, id: str, name: str, at: float, now: float) -> None:
        """Task ``id``, of this name, has its turn at that time."""
        self._turns[id] = at, name
        heapq.heappush(self._by_name.setdefault(name, []), (at, id))
        self._next_of(name, now)  # forgets past turns, also where nothing asks for the next one

    def expect_queue(self, id: str, name: str, at: float, now: float) -> None:
        """A queue of this worker has its turn at that time, with a task of this name."""
        self._queues.add(id)
        self.expect(id, name, at, now)

    def note_ready(self, id: str, name: str) -> None:
        """The first task, of this name, of a queue of this worker waits for a process, or for the store's reply."""
        self._ready[id] = name
        self._ready_names[name] += 1

    def expect_return(self, headers: Mapping[str, Any], limits: Mapping[str, AnyLimit], at: float, now: float) -> None:
        """A task has left its backlog and is on its way here; the next one has its turn an interval later."""
        name, lot = str(headers.get("task")), marker_in_headers(headers).get("lot")
        self.expect(str(headers.get("id")), name, at, now)
        limit = limits.get(lot[0]) if lot else None
        if limit is not None:
            self.expect_backlog(name, at + limit.interval, limit.interval, now)

    def expect_backlog(self, name: str, at: float, interval: float, now: float) -> None:
        """Tasks of this name are parked: the next has its turn at about ``at``, others every ``interval`` seconds.

        That is known until the workers of the fleet have had a few turns each without a task of it coming here.
        """
        known_at, known_until = self._backlogs.get(name, (0.0, 0.0))
        until = max(known_until, at + max(KEEP, 2 * self._workers() * interval))
        self._backlogs[name] = min(known_at, at) if known_at > now else at, until

    def expect_parked(self, id: str, name: str, action: Park, interval: float, now: float) -> None:
        """A task is parked, or about to be; ``interval``: seconds in which a permit of its limit comes back."""
        if not action.only_behind:
            if action.wait <= KEEP:
                self.expect(id, name, now + action.wait, now)
            self.expect_backlog(name, now + action.wait, interval, now)
        elif interval <= KEEP:
            self.expect_backlog(name, now + interval, interval, now)

    def pop(self, id: str) -> float:
        """The task is here. Returns the time of its turn; 0.0: it was not expected."""
        if (name := self._ready.pop(id, None)) is not None:
            self._ready_names[name] -= 1
            if not self._ready_names[name]:
                del self._ready_names[name]
        self._queues.discard(id)
        return self._turns.pop(id, (0.0, ""))[0]

    def next(self, now: float, seconds: float = 0.0) -> float:
        """The next turn of a limited task; infinity: none is known.

        ``seconds``: what the task takes that would go first.
        """
        turns = [self._next_of(name, now) for name in list(self._by_name)]
        if seconds > KEEP:
            turns += [self._next_parked(name, now) for name in list(self._backlogs)]
        return min(turns, default=float("inf"))

    def next_briefer(self, name: str, now: float) -> float:
        """The next turn of a task that is briefer than this one, parked ones included; infinity: none is known."""
        runtime, turn = self.runtime(name), float("inf")
        for other in list(dict.fromkeys(itertools.chain(self._ready_names, self._by_name, self._backlogs))):
            if self.runtime(other) <= BRIEFER * runtime:
                if other in self._ready_names:
                    return now
                turn = min(turn, self._next_of(other, now))
                if runtime > KEEP or self._mean_runtime(name) == float("inf"):
                    # Parked tasks come back a second ahead: for less than that their turns are known.
                    turn = min(turn, self._next_parked(other, now))
        return turn

    def runtime(self, name: str) -> float:
        """Seconds that a task takes. Of two tasks at most one is briefer, so that they never wait for one another."""
        mean = self._mean_runtime(name)
        return mean if mean < float("inf") else UNKNOWN

    def pause(self, now: float) -> None:
        """The worker receives no returning tasks for now: what it knows of backlogs stays known until it does again."""
        self._paused_at = now

    def resume(self, now: float) -> None:
        """The worker receives returning tasks again."""
        passed = now - self._paused_at
        self._backlogs = {name: (at, until + passed) for name, (at, until) in self._backlogs.items()}

    def clear(self) -> None:
        """The connection is lost, or the worker stops: no task comes."""
        self._turns.clear()
        self._queues.clear()
        self._ready.clear()
        self._ready_names.clear()
        self._by_name.clear()
        self._backlogs.clear()

    def _next_of(self, name: str, now: float) -> float:
        heap = self._by_name.get(name, [])
        while heap:
            at, id = heap[0]
            if self._turns.get(id) == (at, name):
                if at > now - LATE or id in self._queues:
                    return at
                del self._turns[id]  # it was revoked, or the timer is late: it asks for a process when it comes
            heapq.heappop(heap)
        self._by_name.pop(name, None)
        return float("inf")

    def _next_parked(self, name: str, now: float) -> float:
        at, until = self._backlogs.get(name, (0.0, 0.0))
        if until > now:
            return max(at, now)
        self._backlogs.pop(name, None)
        return float("inf")
