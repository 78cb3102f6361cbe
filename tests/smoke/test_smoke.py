"""The whole thing at a glance, as Celery's own smoke tests look at Celery: on each broker, with pytest-celery."""

from __future__ import annotations

import time

import pytest
from celery import chain, chord, group
from pytest_celery import RESULT_TIMEOUT, CeleryTestSetup
from pytest_celery.vendors.worker.tasks import add, fail, identity, xsum

from celery_ratelimit import Limiter
from tests.fleet_of import pool_jobs, until

RATE = 20


@pytest.fixture
def setup(celery_setup: CeleryTestSetup) -> CeleryTestSetup:
    assert celery_setup.ready(ping=True, control=True)
    return celery_setup


def logs(setup: CeleryTestSetup) -> str:
    return "".join(worker.logs() for worker in setup.worker_cluster)


def nothing_went_wrong(setup: CeleryTestSetup) -> None:
    for bad in ("Traceback", "ERROR", "CRITICAL"):
        assert bad not in logs(setup)


def test_both_work_and_the_limit_holds_over_both(setup: CeleryTestSetup) -> None:
    began = time.monotonic()
    results = group(identity.s(index) for index in range(60)).apply_async()
    assert results.get(timeout=RESULT_TIMEOUT) == list(range(60))
    took = time.monotonic() - began
    assert took >= 59 / RATE
    assert "throttled by limit 'ours'" in logs(setup)
    for worker in setup.worker_cluster:
        assert "succeeded" in worker.logs()
    nothing_went_wrong(setup)


def test_canvas(setup: CeleryTestSetup) -> None:
    assert chain(add.s(1, 2), add.s(3), identity.s()).apply_async().get(timeout=RESULT_TIMEOUT) == 6
    adds = [add.s(index, index) for index in range(20)]
    assert chord(adds, xsum.s()).apply_async().get(timeout=RESULT_TIMEOUT) == sum(2 * index for index in range(20))
    nothing_went_wrong(setup)


def test_a_task_that_fails_fails_as_itself(setup: CeleryTestSetup) -> None:
    results = [fail.s(index).apply_async() for index in range(10)]
    for index, result in enumerate(results):
        with pytest.raises(RuntimeError, match=rf"expected to fail', {index}\]"):
            result.get(timeout=RESULT_TIMEOUT)


@pytest.mark.slow
def test_a_backlog_outlives_the_restart_of_each_worker(setup: CeleryTestSetup) -> None:
    results = [identity.s(index).apply_async() for index in range(100)]
    until(lambda: "throttled" in logs(setup), 20, "a task being throttled")
    limiter = Limiter.from_url(setup.app.conf.result_backend)
    limiter.pause(
        "ours", 600, force=True
    )  # Celery forgets a task that is just being handed to a process: docs/operations.md
    time.sleep(0.5)
    until(lambda: pool_jobs(setup.app, 2) == 0, 20, "the pools being idle")
    for worker in setup.worker_cluster:
        worker.restart()
        assert worker.ready()
    limiter.resume("ours", force=True)
    assert [result.get(timeout=RESULT_TIMEOUT) for result in results] == list(range(100))
    nothing_went_wrong(setup)
