"""Returning messages tell a worker the turns of their bucket."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit._celery.saved_message import RETURN_HEADER
from celery_ratelimit.backlog.backlog_contents import OccupiedBucketCache
from celery_ratelimit.backlog.fleet_registry import FleetRegistry
from celery_ratelimit.backlog.tuning import CLOSED_AHEAD, FIRST_POLL_DELAY, POLL_INTERVAL, RETURN_AHEAD, RETURN_DURATION
from celery_ratelimit.counts.counter import PAUSE
from celery_ratelimit.limiter.decision_counts import DecisionCounter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limits.concurrency import Concurrency
from celery_ratelimit.limits.limit import Limit
from celery_ratelimit.worker import gate
from tests.unit.worker.gate_bench import Bench

NOW = 100.0
API, PLACES = ("api", ""), ("places", "")
LIMITS: dict[str, Any] = {"api": Limit("100/s", name="api"), "places": Concurrency(2, name="places")}


def message(name: str = "api", **marker: Any) -> Any:
    said = {
        "queue": "q",
        "eta": None,
        "exchange": "",
        "routing_key": "q",
        "lot": [name, ""],
        "id": "a~0@q",
        "copy": 1,
        **marker,
    }
    return SimpleNamespace(headers={"id": "a", RETURN_HEADER: said})


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [NOW]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def occupied(now: list[float]) -> OccupiedBucketCache:
    return OccupiedBucketCache(LIMITS)


def test_bucket_is_closed_until_the_latest_returning_turn(occupied: OccupiedBucketCache, now: list[float]) -> None:
    occupied.note_coming(message(), 0.4)
    occupied.note_coming(message(), 0.2)
    assert occupied.is_closed(API), "the later turn counts, in whatever order they come"
    now[0] += 0.39 - CLOSED_AHEAD
    assert occupied.is_closed(API)
    now[0] += 0.02
    assert not occupied.is_closed(API)


def test_overlong_countdown_is_capped(occupied: OccupiedBucketCache, now: list[float]) -> None:
    occupied.note_coming(message(), 3600.0)
    assert occupied.is_closed(API)
    now[0] += RETURN_AHEAD
    assert not occupied.is_closed(API)


def test_sent_back_and_concurrency_messages_close_no_bucket(occupied: OccupiedBucketCache) -> None:
    occupied.note_coming(message(again=True), 0.9)
    occupied.note_coming(message("places"), 0.9)
    occupied.note_coming(SimpleNamespace(headers={"id": "a"}), 0.9)
    assert not occupied.is_closed(API)
    assert not occupied.is_closed(PLACES)


def test_gate_notes_the_countdown_of_a_returning_message(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, heard = Bench(monkeypatch, processes=1), []
    bench.note_coming = lambda message, seconds: heard.append(seconds)  # type: ignore[method-assign]
    monkeypatch.setattr(gate, "set_countdown", lambda *_: 0.5)
    bench.gate.on_message(message())
    assert heard == [pytest.approx(0.55)], "it comes back a little before its turn"


@pytest.mark.parametrize(
    ("turn", "seconds"), [(0.0, FIRST_POLL_DELAY), (0.2, FIRST_POLL_DELAY), (0.25, 0.075), (0.9, POLL_INTERVAL)]
)
def test_first_poll_of_a_bucket_precedes_its_turn(occupied: OccupiedBucketCache, turn: float, seconds: float) -> None:
    if turn:
        occupied.note_coming(message(), turn)
    assert occupied.looks_in(API) == pytest.approx(seconds)
    assert turn == 0.0 or seconds == FIRST_POLL_DELAY or seconds + RETURN_DURATION <= turn


RATE = LimitRequest(Limit("100/s", name="api"), "api")


def test_new_request_stands_behind_the_last_returned_task_until_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [NOW]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    occupied = OccupiedBucketCache({"api": RATE.limit})
    assert occupied.lot_of([RATE]) is None
    occupied.note_turn(API, NOW + 0.5)
    assert occupied.is_closed(API)
    assert occupied.lot_of([RATE]) is RATE
    occupied.forget(API)  # the backlog is empty
    assert occupied.lot_of([RATE]) is RATE
    now[0] += 0.41
    assert occupied.lot_of([RATE]) is None, "its own turn comes soon: it asks"
    occupied.note_turn(API, now[0] + 0.5)
    occupied.forget_turns({"other"})
    assert occupied.is_closed(API)
    occupied.forget_turns({"api"})  # it is another limit now
    assert occupied.lot_of([RATE]) is None


def test_turns_of_the_oldest_buckets_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_ratelimit.backlog.tuning.MAX_KNOWN_BUCKETS", 3)
    occupied, soon = OccupiedBucketCache({"api": RATE.limit}), time.monotonic() + 60.0
    for number in range(5):
        occupied.note_turn(("api", str(number)), soon)
    assert [occupied.is_closed(("api", str(number))) for number in range(5)] == [False, False, True, True, True]


def test_changed_rate_forgets_known_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, processes=1)
    forgotten: list[Any] = []
    bench.forget_turns = forgotten.append  # type: ignore[method-assign]
    bench.gate._changed({"r1"})
    assert forgotten == [{"r1"}]


@pytest.mark.parametrize(("workers", "seconds"), [(1, 1.0), (100, 1.0), (150, 1.5), (5000, 2.0)])
def test_counts_are_sent_less_often_in_a_large_fleet(workers: int, seconds: float) -> None:
    register = FleetRegistry(SimpleNamespace())  # type: ignore[arg-type]
    register.workers = workers
    later: list[float] = []
    counting = DecisionCounter(
        SimpleNamespace(core=None),  # type: ignore[arg-type]
        lambda seconds, call: later.append(seconds),
        times=lambda: register.counts_apart,
    )
    counting.counter.happened("refused", ["api"])
    assert later == [PAUSE * seconds]
