"""Free processes and mean runtimes of a pool."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from celery.concurrency.prefork import TaskPool
from celery.worker import state

from celery_ratelimit._celery import Pool
from celery_ratelimit._celery.pool import END_LATENCY, _Job


@pytest.fixture
def quick_switches() -> object:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_may_free_is_safe_while_threads_end_tasks(quick_switches: None) -> None:
    pool = Pool(SimpleNamespace(num_processes=4, is_green=False))
    pool._mean_runtimes["task"] = 1.0
    over = threading.Event()

    def come_and_go() -> None:
        number = 0
        while not over.is_set():
            pool._jobs[number] = _Job("task", 0.0, 0.0)
            pool._jobs.pop(number - 20, None)
            number += 1

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(5000):
            assert not pool.may_free(100, 0.5, 2.0), "there are twenty"
    finally:
        over.set()
        thread.join()


def test_frees_soon() -> None:
    pool = Pool(SimpleNamespace(num_processes=4, is_green=False))
    pool._mean_runtimes.update(short=0.5, long=5.0)
    assert not pool.frees_soon(10.0, 1.0), "nothing runs"
    pool._jobs["a"] = _Job("long", 9.0, 9.0)
    pool._jobs["b"] = _Job("unknown", 9.0, 9.0)
    assert not pool.frees_soon(10.0, 1.0)
    pool._jobs["c"] = _Job("short", 9.0, 9.0)
    assert not pool.frees_soon(10.0, 1.0), "it has run for longer than its kind takes"
    pool._jobs["d"] = _Job("short", 9.9, None)
    assert pool.frees_soon(10.0, 1.0)
    pool._jobs["d"] = _Job("short", 9.3, 9.3)
    assert pool.frees_soon(10.0, 1.0), "a little longer, as about half of them do"
    del pool._jobs["d"]
    pool._jobs.update((number, _Job("long", 9.0, 9.0)) for number in range(4))
    assert pool.frees_soon(10.0, 1.0), "five of five seconds"


def test_idle_greenlets_are_free() -> None:
    """Before Celery 5.7 gevent's ``num_processes`` is how many run: none, and so nothing would ever start."""
    greenlets = SimpleNamespace(size=10)
    pool = Pool(SimpleNamespace(is_green=True, limit=10, num_processes=0, _pool=greenlets))
    assert (pool.processes, pool.idle(0)) == (10, 10)
    greenlets.size = 12  # grown, which such a pool's limit does not tell
    assert pool.processes == 12
    assert Pool(SimpleNamespace(is_green=True, limit=10, num_processes=0, _pool=None)).processes == 10, "not yet begun"


def test_stopped_pool_has_no_free_process() -> None:
    """A cold shutdown stops it in the middle of whatever the worker is at: no task is to end by that."""
    pool = Pool(TaskPool(2))
    assert pool.processes == 0
    assert pool.idle(0) <= 0


def test_runtime_comes_from_the_pool_not_from_a_busy_loop() -> None:
    apply_async = Mock()
    pool = Pool(SimpleNamespace(num_processes=4, is_green=False, apply_async=apply_async))
    pool.watch(lambda request: None, lambda request, refusal: None)

    def end(name: str, callback: str, said: Any) -> None:
        """A task ends that began half a second ago."""
        pool._pool.apply_async(None, (name,), callback=None)
        (job,) = pool._jobs.values()
        job.started_at = time.monotonic() - 0.5
        apply_async.call_args.kwargs[callback](said)

    end("task", "callback", (False, None, 0.001))
    assert pool.mean_runtime("task") == pytest.approx(0.001 + END_LATENCY)
    end("other", "error_callback", "lost")
    assert pool.mean_runtime("other") >= 0.5, "the pool does not say"


def test_job_behind_a_hanging_task_does_not_count_as_freeing() -> None:
    """Else limited tasks would wait in this worker, and not in the backlog for other workers."""
    pool = Pool(SimpleNamespace(num_processes=1, is_green=False))
    pool._mean_runtimes["brief"] = 0.001
    pool._jobs["hangs"] = _Job("brief", 0.0, 0.0)
    pool._jobs["behind"] = _Job("brief", 0.0, None)
    assert pool.frees_soon(0.01, 0.02)
    assert not pool.frees_soon(10.0, 0.02)


def test_process_still_running_after_a_lost_connection_stays_busy() -> None:
    """Else Celery before 5.7 writes a granted task to it, which starts late, when the other one has ended."""

    def job(pipe: int, *, alive: bool = True, accepted: bool = True, ready: bool = False) -> Any:
        process = SimpleNamespace(inqW_fd=pipe, _is_alive=lambda: alive)
        return SimpleNamespace(_accepted=accepted, ready=lambda: ready, _write_to=None, _scheduled_for=process)

    running, dead, ended, waits = job(1), job(2, alive=False), job(3, ready=True), job(4, accepted=False)
    jobs = dict(enumerate([running, dead, ended, waits]))
    celerys = SimpleNamespace(_cache=dict(jobs), _busy_workers={1, 2, 3, 4})
    consumer = SimpleNamespace(on_close=lambda: (celerys._cache.clear(), celerys._busy_workers.clear()))
    Pool(SimpleNamespace(is_green=False, _pool=celerys)).survive_reconnect(consumer)
    consumer.on_close()
    assert celerys._busy_workers == {1}
    assert list(celerys._cache.values()) == [running, dead]


def test_job_written_to_a_process_survives_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery lets go of it, as the process has not said yet that it has begun; and the process runs it."""
    reserved: set[Any] = set()
    monkeypatch.setattr(state, "reserved_requests", reserved)
    monkeypatch.setattr(state, "active_requests", set())
    cache: dict[int, Any] = {}

    class Handler:
        """Of a request. The end of its task is told to it."""

        def on_end(self, *_: Any) -> None: ...

    def apply_async(target: Any, args: Any, kwargs: Any, **options: Any) -> Any:
        job = SimpleNamespace(_accepted=False, _write_to=args[1], ready=lambda: False)
        cache[len(cache)] = job
        return job

    celerys = SimpleNamespace(_cache=cache)
    pool = Pool(SimpleNamespace(num_processes=4, is_green=False, apply_async=apply_async, _pool=celerys))
    pool.watch(lambda request: None, lambda request, refusal: None)
    process, written, waits = SimpleNamespace(inqW_fd=1, _is_alive=lambda: True), Handler(), Handler()
    for request, written_to in ((written, process), (waits, None)):
        reserved.add(request)
        pool._pool.apply_async(None, ("task", written_to), callback=request.on_end)
    consumer = SimpleNamespace(on_close=lambda: (cache.clear(), reserved.clear()))
    pool.survive_reconnect(consumer)
    consumer.on_close()
    assert list(pool._jobs) == [written]
    assert [job._write_to for job in cache.values()] == [process], "its end is told"
    assert reserved == {written}, "its process is not free"
