"""Which permits the gate still uses when it comes late. A stall of just so many milliseconds is not to be had."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit.gate import alarms
from celery_ratelimit.gate import loop as module
from celery_ratelimit.gate.alarms import Alarms
from celery_ratelimit.gate.held import HeldRequest, State
from celery_ratelimit.gate.holdings import Holdings
from celery_ratelimit.gate.line import Line
from celery_ratelimit.gate.loop import Loop
from celery_ratelimit.gate.room import Room
from celery_ratelimit.gate.verdict import Start

NOW = 100.0


def held_one(interval: float) -> Any:
    message = SimpleNamespace(headers={}, delivery_info={}, properties={})
    request: Any = SimpleNamespace(id="1", name="task", message=message, request_dict={}, delivery_info={})
    held = object.__new__(HeldRequest)
    for name, value in {
        "request": request,
        "demands": (SimpleNamespace(interval=interval),),
        "plan": SimpleNamespace(leased=False),
        "has_slot": True,
    }.items():
        setattr(held, name, value)
    held.state, held.at, held.until = State.ASKS, 0.0, NOW + 1e6
    return held


class Exits:
    """Notes who starts, by how late that is."""

    longest = 1440.0

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self.started: list[float] = []

    def carry_out(self, line: Line, held: HeldRequest, verdict: Any, now: float) -> bool:
        assert isinstance(verdict, Start)
        self._holdings.leave(line, held, starts=True)
        self.started.append(round(now - held.at, 3))
        return True


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Before a pool with room, at ``NOW``."""
    for each in (alarms, module):
        monkeypatch.setattr(each, "monotonic", lambda: NOW)
    loop: Any = object.__new__(Loop)
    loop._room = Room(SimpleNamespace(idle=lambda held: 8, takes=lambda name: 1.0))  # type: ignore[arg-type]
    presence: Any = SimpleNamespace(leave=lambda held: None)
    loop._holdings = Holdings(None, loop._room, presence, None)  # type: ignore[arg-type]
    loop._exits = Exits(loop._holdings)
    loop.at_hand = SimpleNamespace(pair=None)
    return loop


def line_of(loop: Any, interval: float, *lates: float) -> Line:
    line = Line()
    for late in lates:
        line.hold(held_one(interval), NOW - late, 1)
        loop._room.promises.add(NOW - late, "task")
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
    loop: Any, lates: list[float], started: list[float]
) -> None:
    line = line_of(loop, 0.01, *lates)
    loop._start_due(line)
    assert loop._exits.started == started
    asks_again = [round(NOW - held.at, 3) for held in line.with_slot]
    assert asks_again == [late for late in lates if late >= 0 and late not in started], "in their order"
    assert loop._room.promises.by(NOW + 1) == sum(late < 0 for late in lates), "those that were not used are forgotten"


def test_an_interval_late_is_not_too_late(loop: Any) -> None:
    loop._start_due(line_of(loop, 0.5, 0.45, 0.02))
    assert loop._exits.started == [0.45, 0.02]


def test_who_has_no_permit_makes_nobody_stale(loop: Any) -> None:
    line = line_of(loop, 0.01, 0.06)
    line.ask_again(held_one(0.01), NOW - 0.05)
    loop._start_due(line)
    assert loop._exits.started == [0.06]


@pytest.mark.parametrize("wants", [False, True])
def test_whose_time_has_come_while_another_asked_is_started_at_once(loop: Any, wants: bool) -> None:
    """It was not due when the line looked, and is when the timer is set. If the line wants a process, that is known."""
    line = line_of(loop, 0.01, 0.001)
    line.wants = wants
    rings: list[float] = []
    lines: Any = SimpleNamespace(note_turn=lambda line, turn: None)
    worker: Any = SimpleNamespace(timers=SimpleNamespace(call_after=lambda seconds, _: rings.append(seconds)))
    Alarms(worker, lines, loop._exits.longest, lambda line: None).set(line)
    assert rings == ([loop._exits.longest] if wants else [0.0])
