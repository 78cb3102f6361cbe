"""Deferral of tasks during an outage."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from celery_ratelimit import StoreUnavailable
from celery_ratelimit.errors import StoreMisconfigured
from celery_ratelimit.store_calls import outage
from celery_ratelimit.store_calls.outage import Outage
from celery_ratelimit.store_calls.tuning import LONGEST_DEFERRAL, PROBE_INTERVAL

#: What is of one bucket: a probe does not meet it.
REFUSED = StoreMisconfigured("WRONGTYPE")
NO_ANSWER = StoreUnavailable("no answer")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(outage, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(outage, "random", SimpleNamespace(uniform=lambda *_: 1.0))
    # No thread looks for a store: whether it is back is what a test says.
    monkeypatch.setattr(outage, "threading", SimpleNamespace(Event=threading.Event, Thread=Mock()))
    return now


@pytest.fixture
def lost(clock: list[float]) -> Outage:
    store: Any = SimpleNamespace(link=SimpleNamespace(is_moving=False))
    return Outage(store, lambda callback: None, lambda: None)


def end(lost: Outage) -> None:
    assert lost._over is not None
    lost._end(lost._over, [])


@pytest.mark.parametrize(
    ("error", "meets_it_again", "pauses"),
    [
        (REFUSED, True, [1, 1, 2, 4, 8, 16]),  # the probe succeeds, and the deferred tasks fail each time
        (NO_ANSWER, False, [1] * 6),  # separate short outages
    ],
)
def test_deferral_grows_only_while_the_store_only_seems_to_be_back(
    clock: list[float], lost: Outage, error: Exception, meets_it_again: bool, pauses: list[float]
) -> None:
    found = []
    for _ in range(12):
        lost.begin(error)
        found.append(lost.pause())
        clock[0] += PROBE_INTERVAL
        end(lost)
        clock[0] += found[-1] - PROBE_INTERVAL if meets_it_again else PROBE_INTERVAL
    assert found[:6] == pauses
    assert found[-1] == max(found) == (LONGEST_DEFERRAL if meets_it_again else 1)


def test_later_outage_starts_with_a_short_deferral(clock: list[float], lost: Outage) -> None:
    lost.begin(REFUSED)
    clock[0] += 20
    assert lost.pause() == 20
    end(lost)
    clock[0] += 20 + 2 * PROBE_INTERVAL
    lost.begin(REFUSED)
    assert lost.pause() == 1


def test_log_line_has_one_full_stop(lost: Outage, caplog: pytest.LogCaptureFixture) -> None:
    lost.begin(StoreUnavailable("Error 111 connecting to localhost:6379. Connection refused."))
    assert "Connection refused. Limited tasks" in caplog.text
