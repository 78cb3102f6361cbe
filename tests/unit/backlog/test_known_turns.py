"""Returning messages tell a worker the turns of their bucket."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from celery_ratelimit._celery.saved_message import RETURN_HEADER
from celery_ratelimit.backlog.backlog_contents import OccupiedBucketCache
from celery_ratelimit.backlog.fleet_registry import FleetRegistry
from celery_ratelimit.backlog.tuning import CLOSED_AHEAD, FIRST_POLL_DELAY, POLL_INTERVAL, RETURN_AHEAD, RETURN_DURATION
from celery_ratelimit.counts.counter import PAUSE
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.report_counts import DecisionCounter
from celery_ratelimit.limits.concurrency import Concurrency
from celery_ratelimit.limits.rate_limit import Limit
from celery_ratelimit.worker import gate
from tests.unit.worker.gate_bench import Bench

NOW = 100.0
API, PLACES = ("api", ""), ("places", "")
LIMITS: dict[str, Any] = {"api": Limit("100/s", name="api"), "places": Concurrency(2, name="places")}


def message(name: str = "api", **marker: Any) -> Any:
    said = {"queue": "q", "eta": None, "exchange": "", "routing_key": "q", "lot": [name, ""], "id": "a~0@q", "copy": 1}
    return SimpleNamespace(headers={"id": "a", RETURN_HEADER: {**said, **marker}})


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [NOW]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def occupied(now: list[float]) -> OccupiedBucketCache:
    return OccupiedBucketCache(LIMITS)


@pytest.mark.parametrize(("turns", "latest"), [([0.4, 0.2], 0.4), ([3600.0], RETURN_AHEAD)])
def test_bucket_is_closed_until_the_latest_returning_turn(
    occupied: OccupiedBucketCache, now: list[float], turns: list[float], latest: float
) -> None:
    """In whatever order they come. An overlong countdown is capped."""
    for turn in turns:
        occupied.note_coming(message(), turn)
    assert occupied.is_closed(API)
    now[0] += latest - 0.01 - CLOSED_AHEAD
    assert occupied.is_closed(API)
    now[0] += 0.02
    assert not occupied.is_closed(API)


def test_sent_back_and_concurrency_messages_close_no_bucket(occupied: OccupiedBucketCache) -> None:
    occupied.note_coming(message(again=True), 0.9)
    occupied.note_coming(message("places"), 0.9)
    occupied.note_coming(SimpleNamespace(headers={"id": "a"}), 0.9)
    assert not occupied.is_closed(API)
    assert not occupied.is_closed(PLACES)


def test_gate_notes_the_countdown_of_a_returning_message(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.note_coming = Mock()  # type: ignore[method-assign]
    monkeypatch.setattr(gate, "set_countdown", lambda *_: 0.5)
    returning = message()
    bench.gate.on_message(returning)
    bench.note_coming.assert_called_once_with(returning, pytest.approx(0.55))  # it comes back a little before its turn


@pytest.mark.parametrize(
    ("turn", "seconds"), [(0.0, FIRST_POLL_DELAY), (0.2, FIRST_POLL_DELAY), (0.25, 0.075), (0.9, POLL_INTERVAL)]
)
def test_first_poll_of_a_bucket_precedes_its_turn(occupied: OccupiedBucketCache, turn: float, seconds: float) -> None:
    if turn:
        occupied.note_coming(message(), turn)
    assert occupied.looks_in(API) == pytest.approx(seconds)
    assert turn == 0.0 or seconds == FIRST_POLL_DELAY or seconds + RETURN_DURATION <= turn


def test_new_request_stands_behind_the_last_returned_task_until_its_turn(
    occupied: OccupiedBucketCache, now: list[float]
) -> None:
    rate = LimitRequest(LIMITS["api"], "api")
    assert occupied.lot_of([rate]) is None
    occupied.note_turn(API, NOW + 0.5)
    assert occupied.is_closed(API)
    assert occupied.lot_of([rate]) is rate
    occupied.forget(API)  # the backlog is empty
    assert occupied.lot_of([rate]) is rate
    now[0] += 0.41
    assert occupied.lot_of([rate]) is None, "its own turn comes soon: it asks"
    occupied.note_turn(API, now[0] + 0.5)
    occupied.forget_turns({"other"})
    assert occupied.is_closed(API)
    occupied.forget_turns({"api"})  # it is another limit now
    assert occupied.lot_of([rate]) is None


def test_turns_of_the_oldest_buckets_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, occupied: OccupiedBucketCache
) -> None:
    monkeypatch.setattr("celery_ratelimit.backlog.tuning.MAX_KNOWN_BUCKETS", 3)
    buckets = [("api", str(number)) for number in range(5)]
    for bucket in buckets:
        occupied.note_turn(bucket, NOW + 60.0)
    assert [*map(occupied.is_closed, buckets)] == [False, False, True, True, True]


def test_changed_rate_forgets_known_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.forget_turns = Mock()  # type: ignore[method-assign]
    bench.gate._changed({"r1"})
    bench.forget_turns.assert_called_once_with({"r1"})


@pytest.mark.parametrize(("workers", "seconds"), [(1, 1.0), (100, 1.0), (150, 1.5), (5000, 2.0)])
def test_counts_are_sent_less_often_in_a_large_fleet(workers: int, seconds: float) -> None:
    unused: Any = SimpleNamespace(core=None)
    register, call_after = FleetRegistry(unused), Mock()
    register.workers = workers
    DecisionCounter(unused, call_after, times=lambda: register.counts_apart).counter.happened("refused", ["api"])
    assert [call.args[0] for call in call_after.mock_calls] == [PAUSE * seconds]
