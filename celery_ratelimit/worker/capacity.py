"""Which task may have a process of the pool, and when. Times are of ``time.monotonic``.

Limited tasks go first when their turn has come. A process is kept for them a little before: the sooner, the longer
the task takes that would have it otherwise. A long task leaves a process to briefer ones whose turn comes while it
would run. A task that is handed to the pool starts at once; a few very short ones wait there, or processes would wait.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable

from .._celery import Pool
from .expected_turns import KEEP, ExpectedTurns
from .request import AcquireCall
from .request_queue import ACQUIRE_EARLY

__all__ = ["AHEAD", "LISTEN", "PoolCapacity", "ProcessReservations"]

#: Seconds ahead that a permit may be taken for a task that is held. Bounded, because a permit that was taken is not
#: seen again by a pause, and is lost if the worker is killed. Some workers at 100/s fit into it with one script a task.
AHEAD = 0.1
#: The share of what the task takes that would have a process that is kept for a turn: the longer that is, the later the
#: turn would be, and the less is lost by waiting for it.
KEEP_SHARE = 0.5
#: Seconds that an unlimited task may wait in the pool itself: what a process needs to hear of the next one; and more,
#: the further away the next turn is. While no task waits: no longer than parked tasks return ahead of their slots.
LEAST_BACKLOG, MOST_BACKLOG, FREE_BACKLOG = 0.005, 0.05, 1.0
#: What unlimited tasks have of the pool's time, at the least, where limited ones could use all of it; and seconds that
#: one waits for it where the run time of the one before is not known; and at the least.
LEAST_SHARE, UNKNOWN_PAUSE, LEAST_PAUSE = 0.05, 1.0, 0.1
#: Seconds for which a worker whose processes were all busy for long keeps the first that is free, to receive what waits
#: in the return queues: a task that takes long could have it otherwise, before the worker hears of briefer ones.
LISTEN = 0.02
#: Seconds, at the least, from one task to the next that a worker which keeps its only process returns to the broker.
LEAST_GIVE_BACK = 0.2


class PoolCapacity:
    """The free processes of one worker's pool, less the reserved ones.

    Attributes:
        pending: requests that were received and are in the gate.
        turns: when limited tasks have their turns, as far as this worker knows.
    """

    def __init__(
        self, pool: Pool, workers: Callable[[], int] = lambda: 1, keeps_only_process: Callable[[], bool] = lambda: False
    ) -> None:
        self._pool, self._workers, self._keeps_only_process = pool, workers, keeps_only_process
        self.pending = 0
        self.turns = ExpectedTurns(pool.mean_runtime, workers)
        self.reservations = ProcessReservations(pool)
        self._listens_until = self._next_give_back = 0.0
        self._kept_at = self._kept_since = 0.0  # the only process was kept from a longer task: last, and all the time

    def note_saturated(self, now: float, *, saturated: bool) -> None:
        """All processes are busy for long, so that the worker hears of no task that comes back; or it listens again."""
        if saturated:
            self.turns.pause(now)
        else:
            self.turns.resume(now)
            self._listens_until = now + LISTEN

    def clear(self) -> None:
        """The connection is lost, or the worker stops: no request is here or returns."""
        self.pending = 0
        self.reservations.clear()
        self.turns.clear()

    # -- Processes -------------------------------------------------------------------------------------------------

    def idle(self) -> int:
        """Processes that would start a task at once."""
        return self._pool.idle(self.pending)

    def is_saturated(self, now: float, seconds: float = KEEP) -> bool:
        """Whether all processes are busy, and none is likely to be free within ``seconds``."""
        return self.idle() <= 0 and not self._pool.frees_soon(now, seconds)

    def stop_listening(self) -> None:
        """A task has come back: what waits in the return queues is known well enough."""
        self._listens_until = 0.0

    def kept_for_briefer(self, now: float, name: str) -> int:
        """Processes that a task of this name leaves free, as a briefer limited task has its turn while it would run.

        A pool of several processes keeps one of them. Of workers with a single process the fleet chooses one that keeps
        it; there one longer task goes first all the same when the process was kept for long: the call that says so
        begins the next wait.
        """
        if not name or (takes := self._pool.mean_runtime(name)) <= LEAST_BACKLOG:
            return 0
        turn = self.turns.next_briefer(name, now)
        if not (takes > KEEP and now < self._listens_until) and (turn == float("inf") or turn - now > takes):
            return 0
        if self._pool.processes > 1:
            return 1
        if not self._keeps_only_process():
            return 0
        if now - self._kept_at > KEEP:
            self._kept_since = now
        self._kept_at = now
        if now - self._kept_since < self.pause_after(name):
            return 1
        self._kept_since = now
        return 0

    def gives_back(self, now: float, name: str) -> bool:
        """Whether a task of this name returns to the broker now, as the only process is kept for briefer ones.

        One at a time, twice as often as one of the other workers ends such a task: if none is free, it comes back here.
        """
        if self._pool.processes > 1 or now < self._next_give_back or not self.kept_for_briefer(now, name):
            return False
        self._next_give_back = now + max(LEAST_GIVE_BACK, self.turns.runtime(name) / (2 * self._workers()))
        return True

    def has_for_permit(self, now: float, name: str = "", *, owed: bool = False) -> bool:
        """Whether a permit may be taken for one more task (of this name): whether it can start at its time.

        Where all processes are busy, for one alone, if one with a short task can be expected to be free in a moment:
        if that proves wrong, one permit is not used. ``owed``: the next process is for an unlimited task.
        """
        idle = self.idle()
        reserved = self.reservations.by(now + ACQUIRE_EARLY) + owed + self.kept_for_briefer(now, name)
        return idle > reserved or (idle == 0 and not reserved and self._pool.may_free(1, now, ACQUIRE_EARLY))

    def free(self, now: float, name: str) -> float:
        """Processes that no permit was taken for, and that tasks of this name may have."""
        return self.idle() - self.reservations.by(now + ACQUIRE_EARLY) - self.kept_for_briefer(now, name)

    def short_term_capacity(self, name: str) -> int:
        """How many tasks of this name the pool can run while permits may be taken ahead."""
        return int(self._pool.processes * max(1.0, AHEAD / max(0.001, self._pool.mean_runtime(name))))

    def max_permits(self, now: float, name: str, interval: float = 0.0) -> int:
        """How many permits may be taken together, at least one, for tasks of this name, each to start at its time.

        Their times are ``interval`` apart, where that is known: at least; processes end by then and begin anew. Brief
        tasks may stand behind one another: none is late by more than its permit may be early.
        """
        takes = self._pool.mean_runtime(name)
        free = self.free(now, name)
        later = self.reservations.after(now + ACQUIRE_EARLY)
        most = free / max(min(1.0, takes / AHEAD), 0.01)
        ended = self._pool.processes * interval / max(takes, 0.001)  # in the time from one to the next
        if takes > ACQUIRE_EARLY and 0.0 < ended < 1.0:
            most = min(most, free / (1.0 - ended))
        return max(1, int(most) - later)

    def ahead(self, name: str) -> float:
        """Seconds ahead that a permit may be taken while an unlimited task of this name waits for a process."""
        return min(AHEAD, max(ACQUIRE_EARLY, KEEP_SHARE * self._pool.mean_runtime(name)))

    def seconds_of_one(self, name: str) -> float:
        """Seconds from one to the next, when tasks of this name have all processes."""
        return self._pool.mean_runtime(name) / max(1, self._pool.processes)

    def pause_after(self, name: str) -> float:
        """Seconds after an unlimited task of this name after which another one has a process, whatever waits."""
        takes = self._pool.mean_runtime(name)
        if takes == float("inf"):
            return UNKNOWN_PAUSE
        return max(LEAST_PAUSE, takes / (LEAST_SHARE * max(1, self._pool.processes)))

    def for_unlimited(self, now: float, name: str, *, claims: int, turn: float) -> bool:
        """Whether a task of this name, which has no limit, may start.

        Args:
            claims: how many have their turn and wait for a process.
            turn: when the next limited task without a permit has its turn; infinity: none waits.
        """
        takes, idle = self._pool.mean_runtime(name), self.idle()
        if idle <= 1 and takes > KEEP and now < self._listens_until:
            return False
        kept = claims + math.ceil(self.reservations.by(now + max(LEAST_BACKLOG, 2 * takes)))
        if not kept and turn - now <= min(KEEP, max(LEAST_BACKLOG, KEEP_SHARE * takes)):
            # Not the only one, for long: nothing without limits would run any more.
            kept = self._pool.processes > 1 or takes <= LEAST_BACKLOG or self._keeps_only_process()
        if kept or idle > 0 or not self._pool.has_queue:
            return idle > kept
        # A few more may wait in the pool: as many as are through before anybody's turn.
        backlog = min(max(LEAST_BACKLOG, (turn - now) / 2), MOST_BACKLOG) if turn < float("inf") else FREE_BACKLOG
        return takes < backlog and self._pool.may_free(1 + int(-idle * takes / backlog), now, backlog)


class ProcessReservations:
    """The processes that are reserved for permits which were taken, or are being asked for.

    Tasks that are short share a process, one after the other.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._grants: list[tuple[float, float]] = []  # when, and the share of a process until the next may begin
        self._acquiring: dict[AcquireCall, float] = {}

    @property
    def times(self) -> list[float]:
        """When the permits are good."""
        return [at for at, _ in self._grants]

    def add(self, at: float, name: str) -> None:
        """Reserve a process for a permit that was taken for a task of this name, and is good at that time."""
        insort(self._grants, (at, self._share(name)))

    def remove(self, at: float) -> None:
        """Undo :meth:`add`."""
        self._grants.remove(next(each for each in self._grants if each[0] == at))

    def acquire(self, call: AcquireCall, name: str) -> None:
        """Reserve processes for the permits that a call asks for, for tasks of this name."""
        self._acquiring[call] = len(call.requests) * self._share(name)

    def end_acquiring(self, call: AcquireCall) -> None:
        """Undo :meth:`acquire`."""
        self._acquiring.pop(call, None)

    def by(self, until: float) -> float:
        """How many processes are reserved for permits that are good by then, or are being asked for."""
        reserved = sum(self._acquiring.values(), 0.0)
        for at, share in self._grants:
            if at > until:
                break
            reserved += share
        return reserved

    def after(self, until: float) -> int:
        """How many permits are good later."""
        return sum(at > until for at, _ in self._grants)

    def clear(self) -> None:
        self._grants.clear()
        self._acquiring.clear()

    def _share(self, name: str) -> float:
        """The share of a process until the next task may begin."""
        return min(1.0, self._pool.mean_runtime(name) / ACQUIRE_EARLY)
