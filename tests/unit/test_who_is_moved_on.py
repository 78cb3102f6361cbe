"""At the end of a task those lines move on that wait for its process or its place: not those that wait for a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit.gate.entrance import Entrance
from celery_ratelimit.gate.gate import Gate
from celery_ratelimit.gate.line import Line
from celery_ratelimit.gate.lines import Lines
from celery_ratelimit.gate.loop import Loop
from celery_ratelimit.gate.room import Room

TENANTS = 500


@pytest.fixture
def gate() -> Any:
    """A gate that holds one request of each of many lines; ``gate.moved`` are those that were moved on."""
    gate: Any = object.__new__(Gate)
    loop: Any = object.__new__(Loop)
    pool = SimpleNamespace(idle=lambda held: 1, processes=4, have_young=lambda *_: False, has_queue=True)
    worker: Any = SimpleNamespace(pool=pool, timers=SimpleNamespace(call_after=lambda *_: None))
    room = Room(pool)  # type: ignore[arg-type]
    gate._lines = loop._lines = lines = Lines()
    for number in range(TENANTS):
        lines.of(((f"tenant {number}", ""),))
    gate._presence = SimpleNamespace(limited=TENANTS)
    gate._running = SimpleNamespace(end=lambda request: gate.ran.get(request))
    gate._entrance = loop._entrance = Entrance(worker, room, lines, gate._presence)
    gate._reach = loop._reach = SimpleNamespace(look=lambda now: None)
    gate._handing = loop._handing = SimpleNamespace(give_rest=lambda: None)
    gate._loop, loop._worker, loop._room = loop, worker, room
    loop._changed, loop._is_running, loop._again, loop._cancel_look = set(), False, False, None
    gate.moved, gate.ran = [], {}
    loop._move = gate.moved.append
    return gate


def test_nobody_who_waits_for_a_time(gate: Any) -> None:
    gate.on_end(object())
    assert gate.moved == []


def test_who_waits_for_a_process(gate: Any) -> None:
    wants = list(gate._lines)[7]
    wants.wants = True
    gate._lines.wants(wants)
    gate.on_end(object())
    assert gate.moved == [wants]


def test_who_asks_for_the_place_that_is_free(gate: Any) -> None:
    asks = list(gate._lines)[3]
    request = object()
    gate.ran[request] = SimpleNamespace(demands=(), plan=SimpleNamespace(buckets=lambda demands: asks.key))
    asks.next_ask = 1e9
    gate.on_end(request)
    assert gate.moved == [asks]
    assert asks.next_ask == 0.0, "whenever it was to ask again"


def test_nobody_of_a_line_that_a_lost_connection_has_ended_meanwhile(gate: Any) -> None:
    """Greenlets let others in while they wait for the store's answer: also whoever closes the gate."""
    ended = next(iter(gate._lines))
    ended.new.append(SimpleNamespace(until=1e9, number=0))

    def lose_the_connection(line: Line) -> None:
        line.wants = True
        gate._lines.clear()

    gate._loop._move_on, gate._loop._alarms = lose_the_connection, SimpleNamespace(set=lambda line: None)
    Loop._move(gate._loop, ended)
    assert not gate._lines.wanting
