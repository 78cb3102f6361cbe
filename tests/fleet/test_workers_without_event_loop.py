"""The laws in workers without an event loop: their timers have a thread, and another one reads from the broker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from celery.utils.timer2 import Entry, Timer

from celery_ratelimit._celery import Worker
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, assert_never_over, assert_over, until
from tests.rabbitmq import Broker

RATE, TASKS = 50, 100
POOLS = {"threads": ("-P", "threads", "-c", "8"), "solo": ("-P", "solo"), "prefork": ("-c", "4")}


def a_backlog_leaves(fleet: Fleet, pool: str, *throttles: str, then: Callable[[], None] = lambda: None) -> None:
    """``then`` runs before the workers are killed, which may not have acknowledged the last tasks yet."""
    with fleet:
        for index in range(TASKS):
            fleet.send(throttles[index % len(throttles)], index)
        fleet.start(*POOLS[pool])
        fleet.wait_for(TASKS, 30)
        starts = fleet.starts()
        assert sorted(start.index for start in starts) == list(range(TASKS))
        if len(throttles) == 1:  # else each of the two tasks has a limit of its own
            assert_never_over(fleet.permits(), RATE)
            assert_over(fleet.permits(), RATE / 2)
        then()
        assert "Traceback" not in fleet.log()


@pytest.mark.parametrize("pool", ["solo", pytest.param("threads", marks=pytest.mark.slow)])
def test_backlog_on_redis_leaves_at_the_rate(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, pool: str
) -> None:
    a_backlog_leaves(Fleet(server, tmp_path, rate=f"{RATE}/s", app="tests.apps.loopless"), pool, "retry")
    assert not store.exists("celery", "celery.throttled")
    assert not store.keys("ratelimit:*:payloads@*")


@pytest.mark.parametrize(
    ("pool", "throttles"),
    [
        ("threads", ("retry",)),
        pytest.param("solo", ("retry", "wait"), marks=pytest.mark.slow),
        pytest.param("prefork", ("wait",), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_on_rabbitmq(
    server: EmbeddedServer, store: redis.Redis, broker: Broker, tmp_path: Path, pool: str, throttles: tuple[str, ...]
) -> None:
    """Whoever publishes reads from the connection: never a timer from the one that another thread reads from."""
    options = {"rate": f"{RATE}/s", "app": "tests.apps.loopless", "ratelimit_url": server.url}

    def queues_are_empty() -> None:
        until(lambda: broker.ready("celery", "celery.throttled") == 0, 10, "empty queues")

    a_backlog_leaves(Fleet(server, tmp_path, broker=broker.url, **options), pool, *throttles, then=queues_are_empty)
    assert not store.keys("ratelimit:*:payloads@*")


def a_consumer(timer: Any, *, is_green: bool) -> SimpleNamespace:
    pool = SimpleNamespace(is_green=is_green, apply_async=lambda *args, **options: None)
    app = Celery(set_as_current=False)
    names = (
        "on_task_request",
        "apply_eta_task",
        "_limit_task",
        "_limit_post_eta",
        "on_close",
        "perform_pending_operations",
    )
    consumer = SimpleNamespace(app=app, hostname="worker", hub=None, timer=timer, pool=pool)
    vars(consumer).update(dict.fromkeys(names, print), create_task_handler=lambda: print)
    consumer.controller = SimpleNamespace(_process_task=print)
    return consumer


def test_gate_runs_in_one_thread_at_a_time() -> None:
    """Timers and messages come from different threads; the thread inside may enter again, as a solo pool's tasks do."""
    consumer = a_consumer(Timer(), is_green=False)
    worker = Worker(consumer)
    rang = threading.Event()

    def come_in(request: SimpleNamespace) -> None:
        if request.again:
            return
        worker.timers.call_after(0, rang.set)
        consumer.on_task_request(SimpleNamespace(name="task", message=SimpleNamespace(), again=True))
        assert not rang.wait(0.2)

    worker.intercept(come_in, on_end=print, on_message=print, on_error=print, on_revoked=print, on_refusal=print)
    try:
        consumer.on_task_request(SimpleNamespace(name="task", message=SimpleNamespace(), again=False))
        assert rang.wait(10)
    finally:
        consumer.timer.stop()


def test_timer_checks_for_new_entries_every_10_ms() -> None:
    """With Celery's own precision a timer is up to a second late."""
    consumer = a_consumer(timer := Timer(), is_green=False)
    Worker(consumer).intercept(
        print, on_end=print, on_message=print, on_error=print, on_revoked=print, on_refusal=print
    )
    assert timer.schedule.max_interval <= 0.01


def sent_back() -> SimpleNamespace:
    marker = {"queue": "celery", "eta": None, "exchange": "", "routing_key": "celery"}
    return SimpleNamespace(message=SimpleNamespace(headers={"celery-ratelimit-return": marker}))


@pytest.mark.parametrize("is_green", [False, True], ids=["thread", "greenlet"])
def test_task_fired_early_does_not_fire_again(is_green: bool) -> None:
    """Timers may wake while others are called; an eventlet cannot be ended without letting others run."""
    came: list[SimpleNamespace] = []
    entries: list[Entry] = []

    def apply_eta_task(request: SimpleNamespace) -> None:
        came.append(request)
        for entry in entries:
            entry()

    requests = [sent_back() for _ in range(3)]
    entries += [Entry(apply_eta_task, (request,)) for request in requests]
    queue = [SimpleNamespace(eta=60.0, entry=entry) if is_green else (60.0, 0, entry) for entry in entries]
    Worker(a_consumer(SimpleNamespace(queue=queue), is_green=is_green)).timers.fire_early(lambda request: True)
    assert came == requests


def test_task_that_could_not_be_fired_early_fires_at_its_countdown() -> None:
    came: list[SimpleNamespace] = []

    def apply_eta_task(request: SimpleNamespace) -> None:
        came.append(request)
        if len(came) == 1:
            raise ConnectionError

    requests = [sent_back() for _ in range(3)]
    entries = [Entry(apply_eta_task, (request,)) for request in requests]
    timer = SimpleNamespace(queue=[(60.0, 0, entry) for entry in entries])
    with pytest.raises(ConnectionError):
        Worker(a_consumer(timer, is_green=False)).timers.fire_early(lambda request: True)
    for entry in entries:
        entry()
    assert came == requests
