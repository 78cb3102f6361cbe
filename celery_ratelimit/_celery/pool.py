"""The worker's pool: its running tasks, their mean run times, and their ends.

What is relied on; line numbers are of Celery 5.7.0:

* ``pool.apply_async(…, accept_callback, callback, error_callback, timeout_callback)`` (celery/worker/request.py 1009),
  which task strategies read when they are built. All four are methods of the request. A pool calls the first when a
  process begins with the task, and one of the others at its end; gevent calls the last one alone for a task that a hard
  time limit has ended (celery/concurrency/gevent.py 28), eventlet knows no time limits.
* What the second is called with (``Request.on_success``, celery/worker/request.py 576): ``failed, result, runtime``.
* ``pool.is_green`` (celery/concurrency/base.py 61): gevent's and eventlet's ``spawn`` waits for a free greenlet. Of how
  many there may be, ``pool._pool.size`` is what counts: before Celery 5.7 gevent's ``num_processes`` is how many run
  (celery/concurrency/gevent.py 121 of 5.4.0), and its ``limit`` stays what it was when the pool grows (113).
* A cold shutdown stops the pool in the handler of the signal (celery/apps/worker.py 486), and what is in the worker's
  loop goes on after it. A prefork pool that was stopped has no ``_pool`` (celery/concurrency/prefork.py 269), and no
  ``num_processes``.
* ``Request._on_ack`` and ``_on_reject`` (celery/worker/request.py 904, 909), which answer a message in the next turn of
  the worker's loop (``Consumer.call_soon``). While the solo pool runs tasks the loop has no turn, and the gate may
  start many in one.
* ``state.reserved_requests`` (celery/worker/state.py 82): every request that was received and has not ended, however it
  did. A request that waits for a process when it is revoked, or expires, leaves it without any callback
  (celery/worker/worker.py 295).
* ``Consumer.on_close`` (celery/worker/consumer/consumer.py 581), at a lost connection: it empties
  ``reserved_requests`` and makes a prefork pool ``flush`` (celery/concurrency/asynpool.py 1079). Before Celery 5.7 the
  first forgets what runs, whose processes then look free, and the second empties ``pool._pool._cache``: the ends of
  these jobs are not heard any more. A job that no process has taken yet (``_accepted``) is let go of without a word, by
  all versions, also if it was written to a process already (``_write_to``, asynpool.py 986), which runs it.
* A process writes that a task has begun, and then its result, to a pipe, which the worker's loop reads: ``outqR_fd``
  (billiard/pool.py 258).
* ``AsynPool._busy_workers`` (celery/concurrency/asynpool.py 542): the pipes of processes that run a task, to which ``-O
  fair`` writes no other one. Before Celery 5.7 ``flush`` clears it, also of tasks that go on; then a granted task is
  written to a process that is busy, and starts when that task has ended. A job's process is its ``_write_to``, or its
  ``_scheduled_for`` (asynpool.py 1186), the pipe that process's ``inqW_fd``.
"""

from __future__ import annotations

import functools
import itertools
import select
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from celery.concurrency import prefork, solo
from celery.worker import state

from .upstream_refusal import ReturnToBacklog, refusal_in

__all__ = ["Pool", "processes_of"]

#: The weight of the newest run in the running mean of a task's run times.
NEWEST_WEIGHT = 0.1
#: Running tasks that are examined for one that may end soon: a pool of greenlets has thousands.
JOBS_EXAMINED = 50
#: Seconds from a task's end to the worker's notice, which count as its run time: not more, if a store is slow.
END_LATENCY = 0.01


@dataclass(slots=True)
class _Job:
    """A task in the pool. ``started_at`` is None until a process begins with it; ``result``: what the pool returned."""

    name: str
    submitted_at: float
    started_at: float | None = None
    result: Any = None


class Pool:
    """A worker's pool. Times are of ``time.monotonic``.

    Args:
        pool: a ``celery.concurrency.base.BasePool`` whose tasks have no strategies yet.

    Attributes:
        has_queue: whether it keeps tasks that it cannot start yet. A pool of greenlets makes the caller wait.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        pool.ratelimit_pool = self
        self.has_queue: bool = not pool.is_green
        self._jobs: dict[Any, _Job] = {}
        self._mean_runtimes: dict[str, float] = {}

    @property
    def processes(self) -> int:
        return processes_of(self._pool)

    def idle(self, held: int) -> int:
        """Free processes, if the gate has ``held`` of the received requests; below zero: tasks wait in the pool."""
        return self.processes - (len(state.reserved_requests) - held)

    def mean_runtime(self, name: str) -> float:
        """Mean seconds of the runs of a task that have ended here; infinity: none has."""
        return self._mean_runtimes.get(name, float("inf"))

    def mean_runtimes(self) -> dict[str, float]:
        """The mean run times of all tasks that have ended here, by name."""
        return self._mean_runtimes.copy()  # threads may end tasks meanwhile

    def may_free(self, number: int, now: float, seconds: float) -> bool:
        """Whether ``number`` tasks run whose mean run time is at most ``seconds``, and not exceeded yet."""
        for job in self._examined():
            if job.started_at is not None and now - job.started_at < self.mean_runtime(job.name) <= seconds:
                number -= 1
                if number <= 0:
                    return True
        return False

    def frees_soon(self, now: float, seconds: float) -> bool:
        """Whether a process is probably free within ``seconds``: by mean run times, one end or more is expected."""
        ends = 0.0
        for job in self._examined():
            runtime = max(seconds, self.mean_runtime(job.name))
            # Not a task that has run for longer, nor one that waits for such a process.
            if now - (job.submitted_at if job.started_at is None else job.started_at) < runtime:
                ends += seconds / runtime
                if ends >= 1:
                    return True
        return False

    def _examined(self) -> Iterable[_Job]:
        """The oldest jobs, of a copy: threads end tasks meanwhile, within a list(), too."""
        return itertools.islice(self._jobs.copy().values(), JOBS_EXAMINED)

    def has(self, request: Any) -> bool:
        """Whether a request waits in the pool, or runs."""
        return request in self._jobs or request in state.reserved_requests

    def has_ended(self, request: Any) -> bool:
        """Whether a task has ended, also if its result was not read yet. From any thread."""
        job = self._jobs.get(request)
        if job is None or job.started_at is None:
            return not self.has(request)
        process = getattr(job.result, "_write_to", None)
        if process is None:  # no process of a prefork pool runs it
            return False
        poll = select.poll()
        poll.register(process.outqR_fd, select.POLLIN)
        return bool(poll.poll(0))

    def survive_reconnect(self, consumer: Any) -> None:
        """Let a task that runs when the connection is lost keep its process, and let its end be noticed."""
        on_close = consumer.on_close

        @functools.wraps(on_close)
        def closed(*args: Any, **kwargs: Any) -> Any:
            cache = getattr(getattr(self._pool, "_pool", None), "_cache", None)
            running = tuple(state.active_requests)
            begun = {id: job for id, job in (cache or {}).items() if _has_process(job)}
            busy: set[int] = getattr(getattr(self._pool, "_pool", None), "_busy_workers", set())
            busy_before = set(busy)
            try:
                return on_close(*args, **kwargs)
            finally:
                state.reserved_requests.update(request for request in running if request in state.active_requests)
                if cache is not None:
                    cache.update((id, job) for id, job in begun.items() if not job.ready())
                    busy.update(busy_before & _pipes_of([job for job in begun.values() if not job.ready()]))
                    for request, job in [each for each in self._jobs.copy().items() if each[1].started_at is None]:
                        if _has_process(job.result):
                            state.reserved_requests.add(request)
                        else:
                            del self._jobs[request]

        consumer.on_close = closed

    def watch(self, on_end: Callable[[Any], None], on_refusal: Callable[[Any, ReturnToBacklog], None]) -> None:
        """Call ``on_end`` with each request that has ended, in the thread or greenlet of its end.

        If its upstream has refused its call, ``on_refusal`` is called before, and Celery's callback is not: it would
        acknowledge a message that is to be put back.
        """
        apply_async = self._pool.apply_async

        def begins(request: Any, callback: Callable[..., Any]) -> Callable[..., Any]:
            def run(pid: Any, since: float, *args: Any, **kwargs: Any) -> Any:
                job = self._jobs.get(request)
                if job is not None:
                    job.started_at = since
                return callback(pid, since, *args, **kwargs)

            return run

        def ends(request: Any, callback: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                refusal = refusal_in(args)
                try:
                    if refusal is None:
                        return callback(*args, **kwargs)
                    state.task_ready(request)
                except BaseException:
                    state.task_ready(request)  # Celery fails before it does this, if a solo task raises SystemExit
                    raise
                finally:
                    self._ended(request, _runtime_in(args))
                    if refusal is not None:
                        on_refusal(request, refusal)
                    on_end(request)

            return run

        def times_out(request: Any, callback: Callable[..., Any]) -> Callable[..., Any]:
            end = ends(request, callback)
            return lambda soft, *args, **kwargs: (callback if soft else end)(soft, *args, **kwargs)

        wrappers = {"callback": ends, "error_callback": ends, "accept_callback": begins, "timeout_callback": times_out}

        @functools.wraps(apply_async)
        def watched(target: Any, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
            callback = options.get("callback")
            request: Any = getattr(callback, "__self__", callback)
            if isinstance(self._pool, solo.TaskPool) and hasattr(request, "_on_ack"):
                message = request.message
                request._on_ack = _at_once(message.ack_log_error, request._on_ack)
                request._on_reject = _at_once(message.reject_log_error, request._on_reject)
            job = self._jobs[request] = _Job(str(args[0]) if args else "", time.monotonic())
            for name, wrapper in wrappers.items():
                options[name] = wrapper(request, options.get(name) or _ignore)
            try:
                job.result = apply_async(target, args, kwargs, **options)
            except BaseException:
                self._jobs.pop(request, None)
                raise
            return job.result

        self._pool.apply_async = watched

    def _ended(self, request: Any, runtime: float = float("inf")) -> None:
        job = self._jobs.pop(request, None)
        if job is not None:
            took = time.monotonic() - (job.submitted_at if job.started_at is None else job.started_at)
            took = min(took, runtime + END_LATENCY)
            known = self._mean_runtimes.get(job.name, took)
            self._mean_runtimes[job.name] = known + NEWEST_WEIGHT * (took - known)


def _ignore(*_: Any, **__: Any) -> None: ...


def _at_once(respond: Callable[..., Any], in_next_turn: Callable[..., Any]) -> Callable[..., Any]:
    """Acknowledge or reject a message before the tasks behind it run. If that fails, the loop has to notice it."""

    def run(*args: Any) -> None:
        try:
            respond(*args)
        except Exception:
            in_next_turn(*args)

    return run


def _has_process(job: Any) -> bool:
    """Whether a job was written to the pipe of a process of a prefork pool."""
    return bool(getattr(job, "_accepted", False) or getattr(job, "_write_to", None) is not None)


def processes_of(pool: Any) -> int:
    """How many tasks a pool can run at once; 0: it has ended."""
    if isinstance(pool, prefork.TaskPool) and pool._pool is None:
        return 0
    number: int = getattr(pool._pool, "size", pool.limit) if pool.is_green else pool.num_processes
    return number


def _pipes_of(jobs: Iterable[Any]) -> set[int]:
    """The pipes of the processes that run these jobs."""
    processes = [getattr(job, "_write_to", None) or getattr(job, "_scheduled_for", None) for job in jobs]
    return {process.inqW_fd for process in processes if process is not None and process._is_alive()}


def _runtime_in(args: Sequence[Any]) -> float:
    """A task's run time, among the arguments of its pool's callback; infinity: unknown."""
    result = args[0] if args else None
    return (
        result[2] if isinstance(result, tuple) and len(result) == 3 and isinstance(result[2], float) else float("inf")
    )
