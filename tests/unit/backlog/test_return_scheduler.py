"""Polls of the return scheduler: returned tasks close their bucket, and reports are sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from celery_ratelimit.backlog.messages import Parked, PollResult
from celery_ratelimit.backlog.return_scheduler import ReturnScheduler
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limits.concurrency import Concurrency
from celery_ratelimit.limits.rate_limit import Limit
from celery_ratelimit.store_calls.store_calls import asked
from celery_ratelimit.worker.next_action import Park
from celery_ratelimit.worker.parking_batch import ParkingBatch, PendingPark

API = LimitRequest(Limit("100/s", name="api"), "api")


class Limits(dict[str, Any]):
    names = ("api", "places")


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> ReturnScheduler:
    for part in ("UnattendedTaskWatcher", "Deduplicator", "Rescheduler", "Publisher", "QueueHeartbeat"):
        monkeypatch.setattr(f"celery_ratelimit.backlog.return_scheduler.{part}", MagicMock())
    lots = MagicMock(register=SimpleNamespace(workers=1))
    lots.memory.return_value, lots.parts = (0, 0), lambda buckets: [list(buckets)]  # any number of buckets is one part
    limits: Any = Limits({"api": API.limit, "places": Concurrency(2, name="places")})
    return ReturnScheduler(MagicMock(), lots, limits, MagicMock(), MagicMock(), 60.0, MagicMock())


def let_out(scheduler: ReturnScheduler, *names: str) -> None:
    """These lots are due, and each lets three tasks out."""
    lots: Any = scheduler.parking
    lots.due = lambda _: [(name, "") for name in names]
    leaving = tuple(Parked("id", 1, 0, wait, "{}") for wait in (0.2, 0.9, 0.5))
    lots.take_due = lambda demands, **_: [PollResult((each.name, ""), 1.0, False, leaving) for each in demands]
    assert asked(scheduler._take_due(float("inf")))


def test_empty_backlog_parks_requests_that_precede_returned_tasks(scheduler: ReturnScheduler) -> None:
    parts: list[tuple[set[str], bool]] = []
    batch = ParkingBatch(MagicMock(), scheduler, MagicMock(), MagicMock(), MagicMock(), MagicMock())
    api = Park(API, 1.0, only_behind=True)
    other = Park(LimitRequest(API.limit, "other"), 1.0, only_behind=True)

    def next_part(*actions: Park) -> None:
        pending = SimpleNamespace(gone=False)
        batch._waiting = [PendingPark(MagicMock(), pending, action, MagicMock()) for action in actions]  # type: ignore[arg-type]
        part, only_behind = batch._next_part()
        parts.append(({park.bucket[0] for park in part}, only_behind))

    next_part(api, other)
    let_out(scheduler, "api")
    next_part(api, other)
    next_part(other)
    assert parts == [({"api", "other"}, True), ({"api"}, False), ({"other"}, True)]


def test_returned_task_of_a_concurrency_limit_closes_no_bucket(scheduler: ReturnScheduler) -> None:
    let_out(scheduler, "places")
    assert not scheduler.occupied.is_closed(("places", ""))


def test_poll_reports_what_was_noted_earlier(scheduler: ReturnScheduler) -> None:
    lots: Any = scheduler.parking
    told: list[bool] = []

    def tells(*, at_once: bool) -> Any:
        yield lambda: told.append(at_once)

    lots.tells, lots.due = tells, lambda _: None
    scheduler._heartbeat.report = lambda *, is_idle: iter(())  # type: ignore[method-assign, assignment]
    scheduler._worker.newly_revoked = list  # type: ignore[method-assign, assignment]
    assert asked(scheduler._poll(float("inf")))
    assert told == [False], "what has waited for a while"
