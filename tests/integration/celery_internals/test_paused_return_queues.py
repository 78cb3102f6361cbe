"""A full worker stops consuming return queues, and starts again; the last command counts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from kombu.common import QoS

from celery_ratelimit._celery.broker import Broker as WorkersBroker
from celery_ratelimit._celery.bulk_receive import BulkReceive
from celery_ratelimit._celery.consumed_queues import ConsumedQueues
from celery_ratelimit._celery.publisher import Publisher
from celery_ratelimit._celery.return_addresses import ReturnAddresses, ReturnNames
from tests.fleet_of import until
from tests.rabbitmq import Broker


class Worker:
    """The part of Celery's consumer that a ConsumedQueues needs. A test says when queued calls run."""

    def __init__(self, url: str) -> None:
        self.app = Celery(broker=url)
        self.app.amqp.queues.select(["orders"])
        self.connection = self.conninfo = self.app.connection_for_read()
        self.soon: list[Callable[[], None]] = []
        self.hub = None
        self.qos = QoS(lambda **_: None, 4)
        broker = WorkersBroker(self)
        addresses = ReturnAddresses(self, ReturnNames(self), Publisher(self.app, broker))
        self.consumption = ConsumedQueues(self, broker, addresses, BulkReceive(broker))
        self.consumption.watch(lambda message: None)
        self.consumption.consume_return_queues("{}.throttled".format)
        queues = list(self.app.amqp.queues.consume_from.values())
        self.task_consumer: Any = self.app.amqp.TaskConsumer(self.connection.default_channel, queues=queues)
        self.came: list[str] = []
        self.task_consumer.on_message = self.take

    def apply_eta_task(self, request: Any) -> None: ...

    def on_decode_error(self, message: Any, error: Exception) -> None: ...

    _limit_task = _limit_post_eta = apply_eta_task

    def call_soon(self, what: Callable[..., None], *args: Any) -> None:
        self.soon.append(lambda: what(*args))

    def take(self, message: Any) -> None:
        self.came.append(message.payload)
        message.ack()

    def leave(self, paused: bool) -> list[str]:
        """Pause or resume the return queues; the list that is returned gets an entry when they are paused."""
        then: list[str] = []
        self.consumption.pause_return_queues(paused, lambda: then.append("left"))
        return then

    def reads(self) -> list[str]:
        """Messages that come until there is none for a moment."""
        self.came.clear()
        while True:
            try:
                self.connection.drain_events(timeout=1)
            except TimeoutError:
                return self.came

    def publish(self, *payloads: str) -> None:
        with self.app.connection_for_write() as connection:
            for payload in payloads:
                self.app.amqp.Producer(connection).publish(payload, routing_key="orders.throttled", serializer="json")


@pytest.fixture
def worker(broker: Broker) -> Iterator[Worker]:
    broker.declare("orders.throttled")
    worker = Worker(broker.url)
    with worker.connection, worker.task_consumer:
        yield worker


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_last_command_counts_in_any_order_of_the_hub(worker: Worker, order: tuple[int]) -> None:
    done = [worker.leave(paused) for paused in (True, False, True)]
    for number in order:
        worker.soon[number]()
    assert sum(map(len, done)) >= 1
    worker.publish("one")
    assert worker.reads() == []
    worker.soon.clear()
    assert worker.leave(False) == []
    worker.soon.pop()()
    assert worker.reads() == ["one"]


def test_callback_is_called_after_the_brokers_reply(worker: Worker) -> None:
    done = worker.leave(True)
    worker.publish("one")
    assert done == []
    assert worker.reads() == ["one"]
    worker.soon.pop()()
    assert done == ["left"]


def test_callback_of_a_revoked_pause_is_not_called(worker: Worker) -> None:
    done = worker.leave(True)
    assert worker.leave(False) == []
    for call in worker.soon:
        call()
    assert done == []
    worker.publish("one", "two")
    assert worker.reads() == ["one", "two"]


def test_messages_returned_while_the_worker_ends_stay_at_the_broker(worker: Worker, broker: Broker) -> None:
    """The broker delivers until it answers the cancellation."""
    worker.publish(*map(str, range(20)))
    until(lambda: broker.ready("orders.throttled") == 0, 10, "the delivery")
    worker.task_consumer.cancel()
    assert worker.came == []
    worker.connection.close()
    until(lambda: broker.ready("orders.throttled") == 20, 10, "the broker having all of them again")
