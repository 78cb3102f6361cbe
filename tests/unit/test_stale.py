"""Which permits the gate still uses when it comes late. A stall of just so many milliseconds is not to be had."""

from __future__ import annotations

import heapq
from types import SimpleNamespace

import pytest

from celery_ratelimit.gate import gate as module
from celery_ratelimit.gate.gate import Gate
from celery_ratelimit.gate.line import Line
from celery_ratelimit.gate.room import Room

NOW = 100.0


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Before a pool with room, at ``NOW``; ``gate.started`` are the lateness of those it lets in."""
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: NOW))
    gate = object.__new__(Gate)
    gate._room = Room(SimpleNamespace(idle=lambda held: 8, takes=lambda name: 1.0))  # type: ignore[arg-type]
    gate.started = []  # type: ignore[attr-defined]
    gate._start = lambda held, granted_at: gate.started.append(held.late)  # type: ignore[attr-defined,method-assign]
    return gate


def line_of(gate: Gate, interval: float, *lates: float) -> Line:
    line = Line()
    demands = [SimpleNamespace(interval=interval)]
    for number, late in enumerate(lates):
        held = SimpleNamespace(late=late, permit_at_us=1, demands=demands, has_slot=True)
        heapq.heappush(line.due, (NOW - late, number, held))  # type: ignore[misc]
    for late in lates:
        gate._room.promise(NOW - late, "task")
    return line


@pytest.mark.parametrize(
    ("lates", "started"),
    [
        ([0.0], [0.0]),
        ([0.09], [0.09]),  # waited for a process, alone
        ([0.11], []),
        ([0.07, 0.06, 0.05, 0.03, 0.02, 0.01], [0.03, 0.02, 0.01]),  # the machine did something else
        ([0.09, -0.01], [0.09]),  # the other one is not due
        ([0.3, 0.2, 0.09], [0.09]),
    ],
)
def test_of_permits_that_are_late_together_only_the_latest_are_used(
    gate: Gate, lates: list[float], started: list[float]
) -> None:
    line = line_of(gate, 0.01, *lates)
    gate._start_due(line)
    assert gate.started == started  # type: ignore[attr-defined]
    asks_again = [held.late for held in line.with_slot]
    assert asks_again == [late for late in lates if late >= 0 and late not in started], "in their order"
    assert gate._room._promised(NOW + 1) == sum(late < 0 for late in lates), "those that were not used are forgotten"


def test_an_interval_late_is_not_too_late(gate: Gate) -> None:
    gate._start_due(line_of(gate, 0.5, 0.45, 0.02))
    assert gate.started == [0.45, 0.02]  # type: ignore[attr-defined]


def test_who_has_no_permit_makes_nobody_stale(gate: Gate) -> None:
    line = line_of(gate, 0.01, 0.06)
    heapq.heappush(line.due, (NOW - 0.05, 9, SimpleNamespace(permit_at_us=None, late=0.05, has_slot=True)))  # type: ignore[misc]
    gate._start_due(line)
    assert gate.started == [0.06]  # type: ignore[attr-defined]


@pytest.mark.parametrize("wants", [False, True])
def test_whose_time_has_come_while_another_asked_is_started_at_once(gate: Gate, wants: bool) -> None:
    """It was not due when the line looked, and is when the timer is set. If the line wants a process, that is known."""
    line = line_of(gate, 0.01, 0.001)
    line.wants = wants
    rings: list[float] = []
    gate._numbers, gate._turns, gate._lines = iter(range(9)), [], {}  # type: ignore[assignment]
    worker = SimpleNamespace(redelivery=3600.0, call_after=lambda seconds, _: rings.append(seconds))
    gate.worker = worker  # type: ignore[assignment]
    gate._set_timer((), line)
    assert rings == ([gate._longest] if wants else [0.0])
