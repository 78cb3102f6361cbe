"""The whole thing at a glance, as Celery's own smoke tests look at Celery: on each broker, with pytest-celery."""

from __future__ import annotations

import time

import pytest
from celery import chain, chord, group
from pytest_celery import RESULT_TIMEOUT, CeleryTestSetup
from pytest_celery.vendors.worker.tasks import add, fail, identity, xsum

RATE = 20


def logs(setup: CeleryTestSetup) -> str:
    return "".join(worker.logs() for worker in setup.worker_cluster)


def test_two_workers_hold_the_limit_and_run_groups_chains_chords_and_failing_tasks(
    celery_setup: CeleryTestSetup,
) -> None:
    setup = celery_setup
    assert setup.ready(ping=True, control=True)
    began = time.monotonic()
    results = group(identity.s(index) for index in range(60)).apply_async()
    assert results.get(timeout=RESULT_TIMEOUT) == list(range(60))
    took = time.monotonic() - began
    assert took >= 59 / RATE
    assert "throttled by limit 'ours'" in logs(setup)
    for worker in setup.worker_cluster:
        assert "succeeded" in worker.logs()
    assert chain(add.s(1, 2), add.s(3), identity.s()).apply_async().get(timeout=RESULT_TIMEOUT) == 6
    adds = [add.s(index, index) for index in range(20)]
    assert chord(adds, xsum.s()).apply_async().get(timeout=RESULT_TIMEOUT) == sum(2 * index for index in range(20))
    for bad in ("Traceback", "ERROR", "CRITICAL"):
        assert bad not in logs(setup)
    results = [fail.s(index).apply_async() for index in range(10)]
    for index, result in enumerate(results):
        with pytest.raises(RuntimeError, match=rf"expected to fail', {index}\]"):
            result.get(timeout=RESULT_TIMEOUT)
