"""A task that has ended without its pool saying so: its place is found and given back. No pool is made to do that."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from celery_ratelimit._celery import Pool
from celery_ratelimit.gate.gate import LOOK_FOR_ENDS, Gate
from celery_ratelimit.gate.room import Room


@pytest.fixture
def gate() -> Gate:
    gate = object.__new__(Gate)
    pool = Pool(SimpleNamespace(num_processes=4, is_green=False))
    gate.alarms = []  # type: ignore[attr-defined]
    gate.worker = SimpleNamespace(  # type: ignore[assignment]
        pool=pool,
        call_after=lambda seconds, ring: gate.alarms.append((seconds, ring)),  # type: ignore[attr-defined]
    )
    gate._room = Room(pool)
    gate._running, gate._lines_at, gate._unlimited, gate._limited = {}, {}, SimpleNamespace(), 0  # type: ignore
    gate._unlimited = ()  # type: ignore[assignment]
    gate._cancel_ends = None
    gate.ended = []  # type: ignore[attr-defined]
    gate._end_lease = gate.ended.append  # type: ignore[attr-defined,method-assign]
    return gate


def running(gate: Gate, *, known: bool) -> SimpleNamespace:
    plan = SimpleNamespace(buckets=lambda demands: (("places", ""),))
    held = SimpleNamespace(plan=plan, demands=())
    request = object()
    gate._running[request] = held  # type: ignore[assignment]
    if known:
        gate.worker.pool._jobs[request] = SimpleNamespace()  # type: ignore[assignment]
    return held


def test_a_place_is_given_back_whose_task_is_nowhere(gate: Gate) -> None:
    stays, gone = running(gate, known=True), running(gate, known=False)
    gate._look_for_ends()
    assert gate.ended == [gone]  # type: ignore[attr-defined]
    assert list(gate._running.values()) == [stays]
    assert [seconds for seconds, _ in gate.alarms] == [LOOK_FOR_ENDS], "as long as one runs"  # type: ignore[attr-defined]


def test_nobody_looks_when_nothing_runs(gate: Gate) -> None:
    gate._look_for_ends()
    assert gate.alarms == []  # type: ignore[attr-defined]
