"""Gives the next free process to a request: the one entrance to the pool.

A request whose turn has come goes first, then all others in the order of arrival. Where limited tasks
could use the whole pool, tasks without limits have a small share of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from .._celery import Worker, requests
from ..app.permits import permit_of
from ..app.plan import Plan
from ..limiter.limit_request import LimitRequest
from .announce_outcomes import Reporter
from .capacity import AHEAD, PoolCapacity
from .flow_control import HeldRequests
from .request import UnlimitedRequest
from .request_queue import ACQUIRE_EARLY, LimitQueue, task_name
from .request_queues import RequestQueues

__all__ = ["PoolScheduler"]


class PoolScheduler:
    """Holds the unlimited requests, and decides between them and the limited ones.

    Args:
        reporter: gets unlimited requests that pass limits in shadow.
    """

    def __init__(
        self,
        worker: Worker,
        capacity: PoolCapacity,
        queues: RequestQueues,
        prefetch: HeldRequests,
        reporter: Reporter,
        dispatch: Callable[[], None],
    ) -> None:
        self._worker, self._capacity, self._queues, self._prefetch = worker, capacity, queues, prefetch
        self._reporter, self._dispatch = reporter, dispatch
        self._unlimited: deque[UnlimitedRequest] = deque()
        self._passed: tuple[float, Any] | None = None  # when the last one of these was started, and which it was

    def __len__(self) -> int:
        return len(self._unlimited)

    @property
    def has_idle(self) -> bool:
        """Whether a process would start a task at once."""
        return self._capacity.idle() > 0

    def admit(
        self, request: Any, queue: str, number: int, plan: Plan | None = None, shadow: tuple[LimitRequest, ...] = ()
    ) -> None:
        """Start an unlimited request, or let it wait: for a process, or for one whose turn is about to come."""
        requests.remove_marker(request)
        waiting = UnlimitedRequest(request, queue, number, monotonic())
        if plan is not None and shadow:
            waiting.permit = permit_of(plan, queue, request.id, 0, (), shadow)
            waiting.on_start = lambda: self._reporter.passed(waiting, shadow)
        self._unlimited.append(waiting)
        self._prefetch.enter(waiting)
        if len(self._unlimited) == 1:  # else the next one that ends moves them on
            self._dispatch()
        if self._unlimited and self._unlimited[-1] is waiting:  # it waits, and none has come meanwhile
            name = request.task.name
            self._prefetch.suspend_unlimited(waiting, self._unlimited, lambda: self._capacity.seconds_of_one(name))

    def unlimited_starving(self, now: float) -> bool:
        """Whether limited tasks, more than the pool can run, would keep unlimited ones out for too long."""
        if not self._unlimited:
            return False
        since, pause = self._unlimited[0].since, self._capacity.pause_after("")
        if self._passed is not None:
            passed_at, request = self._passed
            if self._worker.pool.has(request):
                return False
            since, pause = max(since, passed_at), self._capacity.pause_after(request.task.name)
        return now - since >= pause

    def start_unlimited(self, now: float, *, owed: bool = False) -> bool:
        """Start the next unlimited request, if no limited one is to have the process; or if it is ``owed`` one."""
        if not self._unlimited or self._worker.is_stopping:
            return False
        waiting = self._unlimited[0]
        request = waiting.request
        claims, turn = 0, float("inf")
        if not owed:
            queues = [self._queues.get(key) for key in self._queues.needing_process]
            claims = sum(queue is not None and self._claims_process(queue, now) for queue in queues)
            turn = self._capacity.turns.next(now, self._worker.pool.mean_runtime(request.task.name))
        if not self._capacity.for_unlimited(now, request.task.name, claims=claims, turn=turn):
            return False
        self._passed = now, request
        self._unlimited.popleft()
        self._prefetch.leave(waiting)
        waiting.on_start()
        self._worker.start(request, waiting.permit)
        return True

    def unlimited_first(self, limit_queue: LimitQueue) -> bool:
        """Whether the first unlimited request goes before the first of a queue.

        Where the limit has a permit, and no request had to wait, requests go in the order in which they came.
        """
        return bool(
            limit_queue.permit_available
            and limit_queue.only_newcomers
            and self._unlimited
            and self._unlimited[0].number < limit_queue.new[0].number
        )

    def _claims_process(self, limit_queue: LimitQueue, now: float) -> bool:
        """Whether the first request of a queue goes before the first unlimited one."""
        if self.unlimited_first(limit_queue):
            return False
        return self._capacity.idle() > 1 or not self._capacity.kept_for_briefer(now, task_name(limit_queue))

    def may_start(self, limit_queue: LimitQueue, *, has_reservation: bool, now: float) -> bool:
        """Whether a process is there for the first request of a queue, with or without a reservation."""
        if (limit_queue.reserved and not has_reservation) or self.unlimited_first(limit_queue):
            return False
        return self._capacity.has_for_permit(now, task_name(limit_queue), owed=self.unlimited_starving(now))

    def max_permits(self, limit_queue: LimitQueue, name: str, now: float) -> int:
        """How many permits may be taken together for tasks of this name, each to start at its time."""
        return self._capacity.max_permits(now, name, limit_queue.interval)

    def ahead(self) -> float:
        """Seconds ahead that a permit may be taken: no longer than a process may be kept for it."""
        return self._capacity.ahead(self._unlimited[0].request.task.name) if self._unlimited else AHEAD

    def early(self) -> float:
        """Seconds before its turn that a queue asks: more if a process is kept from unlimited requests for it."""
        return self.ahead() if self._unlimited else ACQUIRE_EARLY

    def waiting_for_limits(self) -> int:
        """Requests that one more process would not start: all but the first of each queue that waits for a process."""
        return max(0, self._prefetch.limited - len(self._queues.needing_process))

    def clear(self) -> None:
        self._unlimited.clear()
