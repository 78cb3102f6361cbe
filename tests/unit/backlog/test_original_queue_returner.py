"""Parked tasks return to their original queues, some of which do not exist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.utils.json import dumps

from celery_ratelimit.backlog import publisher
from celery_ratelimit.backlog.messages import Parked
from celery_ratelimit.backlog.publisher import OriginalQueueReturner
from celery_ratelimit.backlog.tuning import PAGE


def parcel(id: str, queue: str) -> dict[str, Any]:
    marker = {"queue": queue, "eta": None, "exchange": None, "routing_key": None}
    headers = {"id": id, "celery-ratelimit-return": marker}
    return {
        "to": f"{queue}.throttled",
        "headers": headers,
        "body": "",
        "properties": {},
        "priority": 0,
        "expires": None,
    }


class Store:
    """Tasks that are parked: a page of them leaves, and what was not published leaves again behind the others."""

    can_park = True

    def __init__(self, *parked: Parked) -> None:
        self.contents = self
        self.waiting = list(parked)

    def keys(self, name: str, *, aside: bool = False) -> Iterator[list[str]]:
        yield [""]

    def take_for_original_queues(self, *_: Any, overdue: float) -> tuple[int, list[Parked]]:
        page = self.waiting[:PAGE]
        self.waiting = self.waiting[PAGE:] + page
        return 1, page

    def published(self, leaving: Any) -> None:
        sent = {each.id for several in leaving.values() for each in several}
        self.waiting = [each for each in self.waiting if each.id not in sent]


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: Counter[str] = Counter()
        self.queue: list[Any] = []
        monkeypatch.setattr(publisher, "publish_on", self.publish_on)
        monkeypatch.setattr(publisher, "fetch_messages", self.fetch_messages)
        monkeypatch.setattr(publisher, "message_count", lambda connection, queue: len(self.queue))

    @contextmanager
    def connection(self) -> Iterator[Any]:
        yield self

    connection_for_read = connection_for_write = channel = connection

    def publish_on(self, channel: Any, parcels: Any) -> set[str]:
        there = [each for each, _, _ in parcels if each["to"] != "missing"]
        self.sent.update(each["headers"]["id"] for each in there)
        return {each["to"] for each, _, _ in parcels if each["to"] == "missing"}

    @contextmanager
    def fetch_messages(self, connection: Any, queue: str, most: int) -> Iterator[Iterator[Any]]:
        taken, self.queue = self.queue[:most], self.queue[most:]
        yield iter(taken)
        self.queue = [each for each in taken if not each.acknowledged] + self.queue


def message(id: str, queue: str) -> Any:
    told = SimpleNamespace(**parcel(id, queue), acknowledged=False, delivery_info={"routing_key": ""}, payload="")
    told.content_type, told.content_encoding = "application/json", "utf-8"
    told.ack = lambda: setattr(told, "acknowledged", True)
    return told


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    return World(monkeypatch)


#: Two pages for a queue that is missing, and one behind them.
TASKS = [(f"{i}", "missing" if i < 2 * PAGE else "orders") for i in range(3 * PAGE)]


def test_missing_queue_does_not_block_later_pages(world: Any) -> None:
    store: Any = Store(*[Parked(id, 1, 0, 0.0, dumps(parcel(id, queue))) for id, queue in TASKS])
    with OriginalQueueReturner(world, store) as returner:
        returned = returner.limit("api", overdue=20.0)
    assert (returned.tasks, returned.queues, returned.missing) == (PAGE, {"orders"}, {"missing"})
    assert world.sent == dict.fromkeys([id for id, queue in TASKS if queue == "orders"], 1)


def test_missing_queue_does_not_block_a_return_queue(world: Any) -> None:
    world.queue = [message(*task) for task in TASKS]
    store: Any = Store()
    with OriginalQueueReturner(world, store) as returner:
        returned = returner.return_queue("orders.throttled", "orders")
    assert (returned.tasks, returned.missing, len(world.queue)) == (PAGE, {"missing"}, 2 * PAGE)


@pytest.mark.parametrize(("again", "sent"), [({}, {"a": 1}), ({"again": True}, {})])
def test_sent_back_copy_of_a_parked_task_is_acknowledged(
    world: Any, again: dict[str, bool], sent: dict[str, int]
) -> None:
    """Its worker had no reply when it parked the task, and sent the message back in the end."""
    told = message("a", "orders")
    told.headers["celery-ratelimit-return"] |= {"id": "a@orders", **again}
    world.queue = [told]
    store: Any = Store()
    store.register = SimpleNamespace(seen=lambda *_: SimpleNamespace(limits=["api"]))
    store.find = lambda names, tasks: [{("api", ""): {f"{task}@orders": task for task in tasks}}]
    with OriginalQueueReturner(world, store) as returner:
        returned = returner.return_queue("orders.throttled", "orders")
    assert (returned.tasks, told.acknowledged, world.sent) == (len(sent), True, sent)
