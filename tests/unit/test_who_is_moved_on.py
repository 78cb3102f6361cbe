"""At the end of a task those lines move on that wait for its process or its place: not those that wait for a time."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit.gate.gate import Gate
from celery_ratelimit.gate.line import Line
from celery_ratelimit.gate.room import Room

TENANTS = 500


@pytest.fixture
def gate() -> Any:
    """A gate that holds one request of each of many lines; ``gate.moved`` are those that were moved on."""
    gate: Any = object.__new__(Gate)
    pool = SimpleNamespace(idle=lambda held: 1, processes=4, have_young=lambda *_: False, has_queue=True)
    gate.worker = SimpleNamespace(pool=pool, call_after=lambda *_: None)
    gate._room, gate._running, gate._unlimited, gate._limited = Room(pool), {}, deque(), TENANTS  # type: ignore[arg-type]
    gate._lines = {((f"tenant {n}", ""),): Line() for n in range(TENANTS)}
    gate._lines_at = {key[0]: {key: None} for key in gate._lines}
    gate._wants, gate._changed_names, gate._pumping, gate._again, gate._cancel_look = {}, set(), False, False, None
    gate.moved = []
    gate._pump = gate.moved.append
    gate._end_lease = lambda held: None
    return gate


def test_nobody_who_waits_for_a_time(gate: Any) -> None:
    gate.on_end(object())
    assert gate.moved == []


def test_who_waits_for_a_process(gate: Any) -> None:
    wants = list(gate._lines)[7]
    gate._wants[wants] = None
    gate.on_end(object())
    assert gate.moved == [wants]


def test_who_asks_for_the_place_that_is_free(gate: Any) -> None:
    asks = list(gate._lines)[3]
    request = object()
    gate._running[request] = SimpleNamespace(demands=(), plan=SimpleNamespace(buckets=lambda demands: asks))
    gate._lines[asks].next_ask = 1e9
    gate.on_end(request)
    assert gate.moved == [asks]
    assert gate._lines[asks].next_ask == 0.0, "whenever it was to ask again"


def test_nobody_of_a_line_that_a_lost_connection_has_ended_meanwhile(gate: Any) -> None:
    """Greenlets let others in while they wait for the store's answer: also whoever closes the gate."""
    ended = next(iter(gate._lines))
    line = gate._lines[ended]
    line.new.append(SimpleNamespace(until=1e9, number=0))

    def lose_the_connection(line: Line) -> None:
        line.wants = True
        gate._lines.clear()
        gate._lines_at.clear()
        gate._wants.clear()

    gate._move_on, gate._set_timer = lose_the_connection, lambda key, line: None
    Gate._pump(gate, ended)
    assert not gate._wants
