"""Who may have a process of the pool, and when. Times are those of ``time.monotonic``.

Requests with limits go first when their turn has come. So that a process is free then, one is kept a little before,
by what the task in question would otherwise wait for: a task that takes long delays a turn by long. Whatever is handed
to the pool starts at once; where tasks are very short a few wait in the pool, or processes would wait for the worker.
"""

from __future__ import annotations

import math

from .._celery import Pool
from .expected_returns import KEEP, ExpectedReturns
from .process_reservations import ProcessReservations
from .request_queue import ASK_EARLY
from .store_latency import StoreLatency

__all__ = ["AHEAD", "PoolCapacity"]

#: Seconds ahead that a permit may be taken for a task that is held. Bounded, because a permit that was taken is not
#: seen again by a pause, and is lost if the worker is killed. Some workers at 100/s fit into it with one script a task.
AHEAD = 0.1
#: The share of what the task takes that would have a process that is kept for a turn: the longer that is, the later the
#: turn would be, and the less is lost by waiting for it.
KEEP_SHARE = 0.5
#: Seconds that an unlimited task may wait in the pool itself: what a process needs to hear of the next one; and more,
#: the further away the next turn is. While nobody waits: no longer than those who come back from a lot come ahead.
LEAST_BACKLOG, MOST_BACKLOG, FREE_BACKLOG = 0.005, 0.05, 1.0
#: What unlimited tasks have of the pool's time, at the least, where limited ones could use all of it; and seconds that
#: one waits for it where nobody knows what the one before has taken; and at the least.
LEAST_SHARE, UNKNOWN_PAUSE, LEAST_PAUSE = 0.05, 1.0, 0.1
#: Seconds for which a process that has become free is kept for those who wait at the broker to come back.
RETURN_KEEP = 0.1


class PoolCapacity:
    """Processes of one worker's pool, less those that are spoken for.

    Attributes:
        pending: requests that were received and are in the gate.
        coming: who is expected to come.
        promises: processes that somebody has spoken for.
        store: how far away it is.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.pending = 0
        self.store = StoreLatency()
        self.coming = ExpectedReturns()
        self.promises = ProcessReservations(pool)
        self._kept_until = 0.0

    def keep_for_returned(self, now: float) -> None:
        """Somebody waits at the broker to come back, and may now: nobody without limits has the last process."""
        self._kept_until = now + RETURN_KEEP

    def clear(self) -> None:
        """The connection is lost, or the worker stops: nobody is held or comes."""
        self.pending = 0
        self.promises.clear()
        self.coming.clear()

    # -- Who may have one ------------------------------------------------------------------------------------------

    def idle(self, asks_at: float | None = None) -> int:
        """Processes that would start a task at once; or, if the store is asked at that time, when it has answered: of
        what ends while it is far away nobody hears before.
        """
        idle = self._pool.idle(self.pending)
        if asks_at is None or not self.store.is_far:
            return idle
        return idle + self._pool.have_ended(asks_at, self.store.round_trip)

    def is_saturated(self, now: float) -> bool:
        """Whether all processes are busy, and none is likely to be free for as long as it would be kept for a turn."""
        return self.idle() <= 0 and not self._pool.have_soon(now, KEEP)

    def has_for_permit(self, now: float, *, owed: bool = False) -> bool:
        """Whether a permit may be taken for one task more: whether it can start at its time.

        Where all processes are busy, for one alone, if one with a short task can be expected to be free in a moment:
        what proves wrong is one permit, which is not used. ``owed``: the next process is somebody else's.
        """
        idle, promised = self.idle(now), self.promises.by(now + ASK_EARLY) + owed
        return idle > promised or (idle == 0 and not promised and self._pool.have_young(1, now, ASK_EARLY))

    def is_one_near(self, now: float) -> bool:
        """Whether a process is free, or probably is in a moment."""
        return self.idle() > 0 or self._pool.have_soon(now, ASK_EARLY)

    def free(self, now: float) -> int:
        """Processes that no permit was taken for."""
        return int(self.idle() - self.promises.by(now + ASK_EARLY))

    def short_term_capacity(self, name: str) -> int:
        """How many tasks of this name the pool can run while permits may be taken ahead."""
        return int(self._pool.processes * max(1.0, AHEAD / max(0.001, self._pool.takes(name))))

    def max_permits(self, now: float, name: str, interval: float = 0.0) -> int:
        """How many permits may be taken together, at least one, for tasks of this name, each to start at its time.

        Their times are ``interval`` apart, where that is known: at least; processes end by then and begin anew. Brief
        tasks may stand behind one another: none is late by more than its permit may be early.
        """
        takes, free = self._pool.takes(name), self.idle(now) - self.promises.by(now + ASK_EARLY)
        later = self.promises.after(now + ASK_EARLY)
        most = free / max(min(1.0, takes / AHEAD), 0.01)
        ended = self._pool.processes * interval / max(takes, 0.001)  # in the time from one to the next
        if takes > ASK_EARLY and 0.0 < ended < 1.0:
            most = min(most, free / (1.0 - ended))
        return max(1, int(most) - later)

    def ahead(self, name: str) -> float:
        """Seconds ahead that a permit may be taken while an unlimited task of this name waits for a process."""
        return min(AHEAD, max(ASK_EARLY, KEEP_SHARE * self._pool.takes(name)) + self.store.reach)

    def seconds_of_one(self, name: str) -> float:
        """Seconds from one to the next, when tasks of this name have all processes."""
        return self._pool.takes(name) / max(1, self._pool.processes)

    def pause_after(self, name: str) -> float:
        """Seconds after an unlimited task of this name from which on another is to have a process, whoever waits."""
        takes = self._pool.takes(name)
        if takes == float("inf"):
            return UNKNOWN_PAUSE
        return max(LEAST_PAUSE, takes / (LEAST_SHARE * max(1, self._pool.processes)))

    def for_unlimited(self, now: float, name: str, *, claims: int, turn: float) -> bool:
        """Whether a task of this name, which has no limit, may start.

        Args:
            now: the time.
            name: the task's name.
            claims: how many have their turn and wait for a process.
            turn: when the next one has its turn, which has no permit yet; infinity: nobody waits for one.
        """
        takes, idle = self._pool.takes(name), self.idle()
        if now < self._kept_until and idle <= 1:
            return False
        kept = claims + math.ceil(self.promises.by(now + max(LEAST_BACKLOG, 2 * takes)))
        if not kept and turn - now <= min(KEEP, max(LEAST_BACKLOG, KEEP_SHARE * takes)):
            # Not the only one, for long: nothing without limits would run any more.
            kept = self._pool.processes > 1 or takes <= LEAST_BACKLOG
        if kept or idle > 0 or not self._pool.has_queue:
            return idle > kept
        # A few more may wait in the pool: as many as are through before anybody's turn.
        backlog = min(max(LEAST_BACKLOG, (turn - now) / 2), MOST_BACKLOG) if turn < float("inf") else FREE_BACKLOG
        return takes < backlog and self._pool.have_young(1 + int(-idle * takes / backlog), now, backlog)
