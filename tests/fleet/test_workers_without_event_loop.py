"""Timers and the gate of workers without an event loop, whose timers have a thread (workers: ``test_laws.py``)."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.utils.timer2 import Entry, Timer

from celery_ratelimit._celery import Worker


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
    fired = threading.Event()

    def come_in(request: SimpleNamespace) -> None:
        if request.again:
            return
        worker.timers.call_after(0, fired.set)
        consumer.on_task_request(SimpleNamespace(name="task", message=SimpleNamespace(), again=True))
        assert not fired.wait(0.2)

    worker.intercept(come_in, on_end=print, on_message=print, on_error=print, on_revoked=print, on_refusal=print)
    try:
        consumer.on_task_request(SimpleNamespace(name="task", message=SimpleNamespace(), again=False))
        assert fired.wait(10)
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
