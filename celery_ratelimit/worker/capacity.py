"""Decides which task may start in a pool process, and when. Times are of ``time.monotonic``.

Limited tasks go first when their slot has come. A process is kept for them shortly before the slot: earlier, the longer
the other task would run. A long task leaves a process to briefer tasks whose slots come while it would run. A task that
is passed to the pool starts at once, except for a few very short ones, which keep processes from waiting.
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

#: Seconds ahead that a permit may be taken for a held task. Bounded, because a later pause does not stop a taken
#: permit, and a killed worker loses it. Several workers at 100/s need no more, with one script call for each task.
AHEAD = 0.1
#: A process is kept for a slot from this share of the other task's run time before it: the longer that task would run,
#: the later the slot's task would start, and the less is lost by waiting.
KEEP_SHARE = 0.5
#: Seconds that unlimited tasks may wait in the pool itself: the time that a process needs to get the next one; more
#: if the next slot is further away. While no task waits: no longer than parked tasks return ahead of their slots.
LEAST_BACKLOG, MOST_BACKLOG, FREE_BACKLOG = 0.005, 0.05, 1.0
#: The least share of the pool's time for unlimited tasks where limited ones could use all of it; the pause in seconds
#: after an unlimited task of unknown run time; and the least pause.
LEAST_SHARE, UNKNOWN_PAUSE, LEAST_PAUSE = 0.05, 1.0, 0.1
#: Seconds for which a worker whose processes were all busy for long keeps the first free one, and receives from the
#: return queues: otherwise a long task could take the process before the worker receives briefer tasks.
LISTEN = 0.02
#: Least seconds between two tasks that a worker returns to the broker while it keeps its only process.
LEAST_GIVE_BACK = 0.2


class PoolCapacity:
    """The free processes of one worker's pool, less the reserved ones.

    Attributes:
        pending: received requests that are in the gate.
        turns: slots of limited tasks, as far as this worker knows.
    """

    def __init__(
        self, pool: Pool, workers: Callable[[], int] = lambda: 1, keeps_only_process: Callable[[], bool] = lambda: False
    ) -> None:
        self._pool, self._workers, self._keeps_only_process = pool, workers, keeps_only_process
        self.pending: int = 0
        self.turns: ExpectedTurns = ExpectedTurns(pool.mean_runtime, workers)
        self.reservations: ProcessReservations = ProcessReservations(pool)
        self._listens_until = self._next_give_back = 0.0
        self._kept_at = self._kept_since = 0.0  # when the only process was kept from a longer task: last, and first

    def note_saturated(self, now: float, *, saturated: bool) -> None:
        """Note whether all processes are busy for long, so that the worker receives no returned tasks."""
        if saturated:
            self.turns.pause(now)
        else:
            self.turns.resume(now)
            self._listens_until = now + LISTEN

    def clear(self) -> None:
        """Forget all requests: the connection is lost, or the worker stops."""
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
        """Stop keeping a process for returned tasks: one was received."""
        self._listens_until = 0.0

    def kept_for_briefer(self, now: float, name: str) -> int:
        """Processes that a task of this name leaves free for briefer limited tasks whose slots come while it would run.

        A pool of several processes keeps one. Among workers with a single process the fleet chooses one that keeps it.
        That worker starts one longer task after it has kept the process for long: the call that allows this begins the
        next wait.
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
        """Whether a task of this name returns to the broker now, as the only process is kept for briefer tasks.

        Tasks return one at a time, twice as often as the other workers end such tasks. If no other worker is free, the
        task comes back here.
        """
        if self._pool.processes > 1 or now < self._next_give_back or not self.kept_for_briefer(now, name):
            return False
        self._next_give_back = now + max(LEAST_GIVE_BACK, self.turns.runtime(name) / (2 * self._workers()))
        return True

    def has_for_permit(self, now: float, name: str = "", *, owed: bool = False) -> bool:
        """Whether a permit may be taken for one more task of this name, because the task can start at its time.

        If all processes are busy, one permit may be taken when a process with a short task will probably be free in a
        moment: if not, one permit is not used. ``owed``: the next process is for an unlimited task.
        """
        idle = self.idle()
        reserved = self.reservations.by(now + ACQUIRE_EARLY) + owed + self.kept_for_briefer(now, name)
        return idle > reserved or (idle == 0 and not reserved and self._pool.may_free(1, now, ACQUIRE_EARLY))

    def free(self, now: float, name: str) -> float:
        """Processes without a permit's reservation that tasks of this name may use."""
        return self.idle() - self.reservations.by(now + ACQUIRE_EARLY) - self.kept_for_briefer(now, name)

    def short_term_capacity(self, name: str) -> int:
        """How many tasks of this name the pool can run while permits may be taken ahead."""
        return int(self._pool.processes * max(1.0, AHEAD / max(0.001, self._pool.mean_runtime(name))))

    def max_permits(self, now: float, name: str, interval: float = 0.0) -> int:
        """How many permits may be taken together for tasks of this name, so that each starts at its time; at least one.

        The times are at least ``interval`` apart, if known, and processes become free in between. Brief tasks may queue
        behind one another: none is later than a permit may be early.
        """
        takes = self._pool.mean_runtime(name)
        free = self.free(now, name)
        later = self.reservations.after(now + ACQUIRE_EARLY)
        most = free / max(min(1.0, takes / AHEAD), 0.01)
        ended = self._pool.processes * interval / max(takes, 0.001)  # within one interval
        if takes > ACQUIRE_EARLY and 0.0 < ended < 1.0:
            most = min(most, free / (1.0 - ended))
        return max(1, int(most) - later)

    def ahead(self, name: str) -> float:
        """Seconds ahead that a permit may be taken while an unlimited task of this name waits for a process."""
        return min(AHEAD, max(ACQUIRE_EARLY, KEEP_SHARE * self._pool.mean_runtime(name)))

    def seconds_of_one(self, name: str) -> float:
        """Seconds from one end to the next, when tasks of this name use all processes."""
        return self._pool.mean_runtime(name) / max(1, self._pool.processes)

    def pause_after(self, name: str) -> float:
        """Seconds after an unlimited task of this name until another one goes before waiting limited tasks."""
        takes = self._pool.mean_runtime(name)
        if takes == float("inf"):
            return UNKNOWN_PAUSE
        return max(LEAST_PAUSE, takes / (LEAST_SHARE * max(1, self._pool.processes)))

    def for_unlimited(self, now: float, name: str, *, claims: int, turn: float) -> bool:
        """Whether a task of this name, which has no limit, may start.

        Args:
            claims: number of limited tasks whose slot has come and that wait for a process.
            turn: the slot of the next limited task without a permit; infinity: none waits.
        """
        takes, idle = self._pool.mean_runtime(name), self.idle()
        if idle <= 1 and takes > KEEP and now < self._listens_until:
            return False
        kept = claims + math.ceil(self.reservations.by(now + max(LEAST_BACKLOG, 2 * takes)))
        if not kept and turn - now <= min(KEEP, max(LEAST_BACKLOG, KEEP_SHARE * takes)):
            # Not the only process for long: no unlimited task would run any more.
            kept = self._pool.processes > 1 or takes <= LEAST_BACKLOG or self._keeps_only_process()
        if kept or idle > 0 or not self._pool.has_queue:
            return idle > kept
        # A few more may wait in the pool: as many as end before the next slot.
        backlog = min(max(LEAST_BACKLOG, (turn - now) / 2), MOST_BACKLOG) if turn < float("inf") else FREE_BACKLOG
        return takes < backlog and self._pool.may_free(1 + int(-idle * takes / backlog), now, backlog)


class ProcessReservations:
    """The processes that are reserved for permits which were taken, or are being acquired.

    Short tasks share a process, one after the other.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._grants: list[tuple[float, float]] = []  # time, and share of a process until the next task
        self._acquiring: dict[AcquireCall, float] = {}

    @property
    def times(self) -> list[float]:
        """The times at which the permits are good."""
        return [at for at, _ in self._grants]

    def add(self, at: float, name: str) -> None:
        """Reserve a process for a taken permit of a task of this name that is good at that time."""
        insort(self._grants, (at, self._share(name)))

    def remove(self, at: float) -> None:
        """Undo :meth:`add`."""
        self._grants.remove(next(each for each in self._grants if each[0] == at))

    def acquire(self, call: AcquireCall, name: str) -> None:
        """Reserve processes for the permits that a call acquires for tasks of this name."""
        self._acquiring[call] = len(call.requests) * self._share(name)

    def end_acquiring(self, call: AcquireCall) -> None:
        """Undo :meth:`acquire`."""
        self._acquiring.pop(call, None)

    def by(self, until: float) -> float:
        """The number of processes reserved for permits that are good by ``until``, or are being acquired."""
        reserved = sum(self._acquiring.values(), 0.0)
        for at, share in self._grants:
            if at > until:
                break
            reserved += share
        return reserved

    def after(self, until: float) -> int:
        """The number of permits that are good after ``until``."""
        return sum(at > until for at, _ in self._grants)

    def clear(self) -> None:
        self._grants.clear()
        self._acquiring.clear()

    def _share(self, name: str) -> float:
        """The share of a process until the next task may begin."""
        return min(1.0, self._pool.mean_runtime(name) / ACQUIRE_EARLY)
