"""Deferral of tasks during an outage."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit import StoreUnavailable
from celery_ratelimit.errors import StoreMisconfigured
from celery_ratelimit.store_calls import outage
from celery_ratelimit.store_calls.outage import Outage
from celery_ratelimit.store_calls.tuning import LONGEST_DEFERRAL, PROBE_INTERVAL

#: What is of one bucket: a probe does not meet it.
REFUSED = StoreMisconfigured("WRONGTYPE")
STORE: Any = SimpleNamespace(link=SimpleNamespace(is_moving=False))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(outage, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(outage, "random", SimpleNamespace(uniform=lambda *_: 1.0))
    monkeypatch.setattr(outage, "threading", SimpleNamespace(Event=threading.Event, Thread=_Thread))
    return now


class _Thread:
    """Looks for no store: whether it is back is what a test says."""

    def __init__(self, **_: Any) -> None: ...

    def start(self) -> None: ...


def end(lost: Outage) -> None:
    assert lost._over is not None
    lost._end(lost._over, [])


def test_deferral_grows_while_the_store_only_seems_to_be_back(clock: list[float]) -> None:
    """The probe succeeds, and the deferred tasks fail each time."""
    lost = Outage(STORE, lambda callback: None, lambda: None)
    pauses = []
    for _ in range(12):
        lost.begin(REFUSED)
        pauses.append(lost.pause())
        clock[0] += PROBE_INTERVAL
        end(lost)
        clock[0] += pauses[-1] - PROBE_INTERVAL
    assert pauses[:4] == [1, 1, 2, 4]
    assert pauses[-1] == LONGEST_DEFERRAL


def test_separate_short_outages_do_not_add_up(clock: list[float]) -> None:
    lost = Outage(STORE, lambda callback: None, lambda: None)
    for _ in range(12):
        lost.begin(StoreUnavailable("no answer"))
        assert lost.pause() == 1
        clock[0] += PROBE_INTERVAL
        end(lost)
        clock[0] += PROBE_INTERVAL


def test_later_outage_starts_with_a_short_deferral(clock: list[float]) -> None:
    lost = Outage(STORE, lambda callback: None, lambda: None)
    lost.begin(REFUSED)
    clock[0] += 20
    assert lost.pause() == 20
    end(lost)
    clock[0] += 20 + 2 * PROBE_INTERVAL
    lost.begin(REFUSED)
    assert lost.pause() == 1


def test_log_line_has_one_full_stop(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    lost = Outage(STORE, lambda callback: None, lambda: None)
    lost.begin(StoreUnavailable("Error 111 connecting to localhost:6379. Connection refused."))
    assert "Connection refused. Limited tasks" in caplog.text
