"""Tasks that cannot be published are listed with the broker's error and retried less and less often."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from kombu.utils.json import dumps

from celery_ratelimit import Limiter
from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.backlog.publisher import Publisher
from celery_ratelimit.backlog.tuning import MAX_PUBLISH_PAUSE, PUBLISH_TIMEOUT
from tests.conftest import START, Clock
from tests.parks import packed

from .backlog_steps import BUCKET, let_out

MARKER = {"queue": "orders", "eta": None, "exchange": "", "routing_key": "orders"}
HEADERS = {"id": "task", "celery-ratelimit-return": MARKER}
PARCEL = {"id": "task", "to": "orders.throttled", "headers": HEADERS, "body": "", "priority": 0}
PARCEL |= {"expires": None, "properties": {}}


class World:
    """One parked task, and a broker that takes it or not."""

    def __init__(self, parking: Backlog, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parking, self.clock = parking, clock
        self.answer: Callable[[], set[str]] = lambda: {"orders.throttled"}
        self.tries: list[float] = []
        addresses = SimpleNamespace(usable=lambda parcel: parcel)
        broker = SimpleNamespace(connection_errors=(OSError,))
        worker: Any = SimpleNamespace(republisher=self, return_addresses=addresses, broker=broker)
        store_clock: Any = SimpleNamespace(now_us=lambda: START + round(self.seconds * 1e6))
        self.seconds = 0.0
        monkeypatch.setattr("time.monotonic", lambda: 1000.0 + self.seconds)
        self.publisher = Publisher(worker, parking, MagicMock(), store_clock)
        parking.park({BUCKET: [packed("task@orders", 1, dumps(PARCEL), copy=1)]})

    def publish(self, parcels: Any) -> set[str]:
        self.tries.append(self.seconds)
        return self.answer()

    def wait(self, seconds: float) -> None:
        """Publish what leaves the backlog, second by second."""
        for _ in range(round(seconds)):
            self.publisher.publish({BUCKET: let_out(self.parking)})
            self.seconds += 1
            self.clock.set(START + round(self.seconds * 1e6))

    @property
    def found(self) -> bool:
        return [*self.parking.contents.find(["api"], ["task"])] == [{BUCKET: {"task@orders": "task"}}]

    @property
    def failures(self) -> list[tuple[str, str]]:
        return [(each.queue, each.error) for each in self.parking.register.publish_failures().get("api", ())]


@pytest.fixture
def world(parking: Backlog, clock: Clock, frozen: Limiter, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(parking, clock, monkeypatch)


def rejected() -> set[str]:
    raise ValueError("frame too large")


@pytest.mark.parametrize(
    ("answer", "error"),
    [(lambda: {"orders.throttled"}, "the broker has no such queue"), (rejected, "ValueError('frame too large')")],
)
def test_unroutable_task_is_listed_with_the_brokers_error_until_published(
    world: World, answer: Callable[[], set[str]], error: str
) -> None:
    world.answer = answer
    world.wait(2)
    assert world.failures == [("orders.throttled", error)]
    world.wait(2 * PUBLISH_TIMEOUT - 2)
    assert len(world.tries) > 1
    assert world.found
    assert world.parking.contents.position(BUCKET, "task@orders").where == "leaving"
    world.answer = set
    world.wait(2 * PUBLISH_TIMEOUT)
    assert not world.found
    assert world.failures == []


def test_unroutable_task_is_retried_less_and_less_often(world: World) -> None:
    world.wait(3 * MAX_PUBLISH_PAUSE)
    pauses = [later - earlier for earlier, later in zip(world.tries, world.tries[1:], strict=False)]
    assert pauses == sorted(pauses)
    assert PUBLISH_TIMEOUT <= pauses[0] <= PUBLISH_TIMEOUT + 2
    assert MAX_PUBLISH_PAUSE <= pauses[-1] <= MAX_PUBLISH_PAUSE + 2
    assert world.failures


def test_unconfirmed_publish_failure_is_forgotten(world: World) -> None:
    world.wait(2)
    world.clock.advance(3 * MAX_PUBLISH_PAUSE)
    assert world.failures == []
