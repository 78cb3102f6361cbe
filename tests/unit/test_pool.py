"""What is known of a pool, while its threads begin and end tasks."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest

from celery_ratelimit._celery import Pool
from celery_ratelimit._celery.pool import _Job


@pytest.fixture
def quick_switches() -> object:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_end_tasks_while_somebody_looks(quick_switches: None) -> None:
    pool = Pool(SimpleNamespace(num_processes=4, is_green=False))
    pool._takes["task"] = 1.0
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
            assert not pool.have_young(100, 0.5, 2.0), "there are twenty"
    finally:
        over.set()
        thread.join()
