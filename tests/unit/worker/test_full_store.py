"""While the store is full, throttled tasks wait in the worker."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from celery_ratelimit.backlog import store_memory, tuning
from celery_ratelimit.backlog.store_memory import StoreMemory
from celery_ratelimit.errors import StoreFull, StoreUnavailable
from celery_ratelimit.store_calls.store_calls import asked
from tests.unit.worker.gate_bench import Bench, ends

FULL = StoreFull("used memory > 'maxmemory'")
MB = 2**20


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch, processes=4)


@pytest.mark.parametrize("behind_parked_tasks", [False, True])
def test_throttled_task_waits_in_the_worker(bench: Bench, behind_parked_tasks: bool) -> None:
    bench.tats["r1"], bench.is_full, bench.has_parked_tasks = bench.now + 5.0, True, behind_parked_tasks
    request = bench.receive(bench.task("retry", "r1"))
    bench.run(4.0)
    assert (request.ends, bench.attempts) == ([], [])
    bench.run(2.0)
    assert request.ends == ["started"]


@pytest.mark.parametrize("full", [False, True])
def test_more_messages_are_requested_only_to_be_parked(bench: Bench, *, full: bool) -> None:
    """Else they would wait here, where no other worker can start them."""
    bench.has_parked_tasks, bench.is_full, bench.tats["r1"] = True, full, bench.now + 5.0
    bench.receive(bench.task("retry", "r1"))
    bench.run(0.1)
    bench.request_more = Mock()  # type: ignore[method-assign]
    bench.receive(bench.task("retry", "r1"))
    assert bench.request_more.called is not full


def test_tasks_refused_by_a_full_store_wait_in_the_worker(bench: Bench) -> None:
    """It is no outage: other calls are served."""
    bench.tats["r1"], bench.has_parked_tasks = bench.now + 5.0, True
    bench.on_step["park"] = [FULL]
    requests = bench.receive_batch([bench.task("retry", "r1")] * 2)
    assert (ends(requests), bench.lost, bench.is_full) == (["", ""], False, True)
    bench.run(6.0)
    assert ends(requests) == ["started", "started"]
    assert bench.attempts == [[0, 0]]


def test_possibly_parked_task_is_parked_again(bench: Bench) -> None:
    """The reply to the first park call was lost: the task must not start beside its parked copy."""
    bench.has_parked_tasks, bench.on_step["park"] = True, [StoreUnavailable("no answer")]
    requests = bench.receive_batch([bench.task("retry", "r1")] * 2)
    bench.on_step["park"] = [FULL]
    bench.end_outage()
    assert ends(requests) == ["parked", "parked"]
    assert bench.attempts == [[0, 0], [1, 1], [2], [2]]


@pytest.mark.parametrize(
    ("throttle", "returned", "end"),
    [("retry", True, ["parked"]), ("fail", False, ["failed"])],  # a returning task left the backlog a moment ago
)
def test_returning_task_is_parked_and_task_with_throttle_fail_fails(
    bench: Bench, throttle: str, returned: bool, end: list[str]
) -> None:
    bench.tats["r1"], bench.is_full = bench.now + 5.0, True
    assert bench.receive(bench.task(throttle, "r1"), returned=returned).ends == end


def test_new_waiting_task_does_not_delay_a_returning_one(bench: Bench) -> None:
    """The turn of the new one is later, and both ask the same limit."""
    bench.tats["r1"], bench.is_full = bench.now + 0.5, True
    new = bench.receive(bench.task("retry", "r1"))
    bench.tats["r1"] = bench.now
    returning = bench.receive(bench.task("retry", "r1"), returned=True)
    assert (new.ends, returning.ends) == ([], ["started"])


# -- What a worker knows -----------------------------------------------------------------------------------------------


def store_with(used: int, most: int, *, workers: int = 2) -> Any:
    """The memory of a store, as a backlog reports it."""
    return Mock(memory=Mock(return_value=(used, most)), register=SimpleNamespace(workers=workers))


def checked(store: Any, *, is_idle: bool = False) -> StoreMemory:
    memory = StoreMemory(store)
    asked(memory.look(is_idle=is_idle))
    return memory


def test_store_is_full_at_ninety_percent_of_maxmemory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Mock(return_value=100.0)
    monkeypatch.setattr(store_memory, "monotonic", clock)
    store = store_with(89 * MB, 100 * MB)
    memory = checked(store)
    assert not memory.is_full
    store.memory.return_value = 90 * MB, 100 * MB
    for _ in range(3):
        clock.return_value += tuning.HEARTBEAT
        asked(memory.look(is_idle=False))
        assert memory.is_full
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "the store has used 90% of its maxmemory" in record.message
    assert "Raise maxmemory" in record.message


def test_store_without_maxmemory_is_never_full() -> None:
    memory = checked(store_with(10**12, 0))
    memory.note_parked(10**12)
    assert not memory.is_full


def test_bytes_parked_between_checks_count_for_every_worker() -> None:
    memory = checked(store_with(89 * MB, 100 * MB, workers=10))
    memory.note_parked(MB // 20)
    assert not memory.is_full
    memory.note_parked(MB // 20)
    assert memory.is_full


def test_idle_worker_checks_memory_only_while_the_store_is_full() -> None:
    store = store_with(10, 100)
    memory = checked(store, is_idle=True)
    assert store.memory.call_count == 0
    memory.note(1, 1)
    assert memory.is_full
    asked(memory.look(is_idle=True))
    assert (memory.is_full, store.memory.call_count) == (False, 1)
    asked(memory.look(is_idle=False))
    assert store.memory.call_count == 1, "not twice within two seconds"
