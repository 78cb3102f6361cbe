"""Messages received in bulk: number, order and safety are as if they were received one by one."""

from __future__ import annotations

import json
import select
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from kombu import Connection, Consumer, Exchange, Producer, Queue

from celery_ratelimit._celery import bulk_receive
from celery_ratelimit._celery.bulk_receive import MAX_BYTES, MAX_MESSAGES, BulkReceive
from celery_ratelimit.store.script import load_source
from celery_ratelimit.testing import EmbeddedServer


class Worker:
    """Consumes queues, as a worker does."""

    def __init__(self, connection: Connection, store: redis.Redis, prefetch: int = 100, names: str = "tasks") -> None:
        self.connection, self.store, self.channel = connection, store, connection.channel()
        self.after: list[int] = []
        self.come: list[Any] = []
        self.wants = True
        self.then: Callable[[Any], None] = lambda message: None
        self.queues = [Queue(name)(self.channel) for name in names.split()]
        broker: Any = SimpleNamespace(no_event_loop=False)
        self.bulk_receive = BulkReceive(broker)
        self.bulk_receive.configure(load_source("broker/fetch_batch"), lambda: self.after.append(len(self.come)))
        self.channel.basic_qos(0, prefetch, False)
        self.consumer = Consumer(self.channel, self.queues, on_message=self._on_message)
        self.consumer.consume()
        self.bulk_receive.watch(self.channel)
        self.producer = Producer(connection.channel())

    def _on_message(self, message: Any) -> None:
        self.come.append(message)
        message.ratelimit_queue = message.delivery_info["routing_key"]
        if self.wants:
            self.bulk_receive.request_more(message)
        self.then(message)

    def publish(self, *indexes: int, queue: str = "tasks", **options: Any) -> None:
        for index in indexes:
            self.producer.publish({"index": index}, routing_key=queue, declare=self.queues, **options)

    def turn(self) -> list[int]:
        """One turn of a worker's loop; the messages received in it."""
        before, cycle = len(self.come), self.connection.transport.cycle
        cycle.on_poll_start()
        for readable in select.select(list(cycle.fds), [], [], 5)[0]:
            cycle.on_readable(readable)
        return self.indexes[before:]

    @property
    def indexes(self) -> list[int]:
        return [message.payload["index"] for message in self.come]

    def noted(self, prefix: str = "") -> set[str]:
        """What the broker holds to be at work."""
        tags = {tag.decode() if isinstance(tag, bytes) else tag for tag in self.store.hkeys(f"{prefix}unacked")}
        indexed = self.store.zrange(f"{prefix}unacked_index", 0, -1)
        assert tags == {tag.decode() if isinstance(tag, bytes) else tag for tag in indexed}
        return tags

    def waiting(self, name: str = "tasks") -> int:
        return int(self.store.llen(name))


@pytest.fixture
def connection(server: EmbeddedServer) -> Iterator[Connection]:
    with Connection(server.url) as connection:
        yield connection


def test_a_dozen_more_messages_are_received_in_order(connection: Connection, store: redis.Redis) -> None:
    worker = Worker(connection, store)
    worker.publish(*range(MAX_MESSAGES + 8))
    receiving: list[bool] = []
    worker.then = lambda message: receiving.append(worker.bulk_receive.receiving)
    assert worker.turn() == list(range(MAX_MESSAGES + 1))
    assert receiving == [True] * (MAX_MESSAGES + 1)
    assert worker.after == [MAX_MESSAGES + 1], "called once, after the last"
    assert worker.waiting() == 7
    assert worker.noted() == {message.delivery_tag for message in worker.come}
    assert not worker.bulk_receive.receiving
    for message in worker.come:
        message.ack()
    assert worker.noted() == set()
    assert worker.turn() == list(range(MAX_MESSAGES + 1, MAX_MESSAGES + 8))
    worker.channel.close()
    assert (worker.waiting(), worker.noted()) == (7, set()), "a closed channel gives them back"


@pytest.mark.parametrize("reason", ["not wanted", "worker_disable_prefetch"])
def test_messages_are_received_one_by_one_where_no_more_are_wanted(
    connection: Connection, store: redis.Redis, reason: str
) -> None:
    worker = Worker(connection, store)
    if reason == "not wanted":
        worker.wants = False
    else:
        worker.channel.qos.can_consume = lambda: True  # which is what that setting does
    worker.publish(0, 1, 2)
    assert (worker.turn(), worker.after) == ([0], [])


def test_bulk_receive_pauses_longer_each_time_it_finds_nothing(
    connection: Connection, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(bulk_receive.time, "monotonic", lambda: now)
    worker = Worker(connection, store)
    worker.publish(0)
    assert (worker.turn(), worker.after) == ([0], [1]), "called although there were no others"
    worker.publish(1, 2)
    assert (worker.turn(), worker.turn()) == ([1], [2])
    rests = []
    for index in range(3, 11):
        worker.publish(index)
        now = worker.bulk_receive._pauses["tasks"][0]
        assert worker.turn() == [index]
        rests.append(round(worker.bulk_receive._pauses["tasks"][0] - now, 6))
    assert rests == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 0.64, 0.64]
    now += 1
    worker.publish(20, 21, 22)
    assert worker.turn() == [20, 21, 22]
    worker.publish(23, 24)
    assert worker.turn() == [23, 24], "more are asked for again"


@pytest.mark.parametrize(("prefetch", "come"), [(1, 1), (2, 2), (5, 5), (0, MAX_MESSAGES + 1)])
def test_no_more_messages_are_received_than_the_prefetch_allows(
    connection: Connection, store: redis.Redis, prefetch: int, come: int
) -> None:
    worker = Worker(connection, store, prefetch)
    worker.publish(*range(20))
    assert len(worker.turn()) == come
    assert len(worker.noted()) == come


def test_priorities_and_the_global_key_prefix_are_used(server: EmbeddedServer, store: redis.Redis) -> None:
    """Further messages have the priority of the first."""
    options = {"priority_steps": [0, 3, 6, 9], "global_keyprefix": "app:"}
    with Connection(server.url, transport_options=options) as connection:
        worker = Worker(connection, store)
        worker.publish(*range(5), priority=9)
        worker.publish(*range(10, 13), priority=0)
        worker.publish(*range(20, 22), priority=4)
        assert [worker.turn() for _ in range(3)] == [[10, 11, 12], [20, 21], [0, 1, 2, 3, 4]]
        assert worker.noted("app:") == {message.delivery_tag for message in worker.come}
        assert {key.split(":")[0] for key in store.keys("*")} == {"app"}


def test_long_messages_are_bounded_by_bytes(connection: Connection, store: redis.Redis) -> None:
    worker = Worker(connection, store)
    for index in range(4):
        worker.producer.publish(
            {"index": index, "text": "x" * (MAX_BYTES // 3)}, routing_key="tasks", declare=worker.queues
        )
    assert worker.turn() == [0, 1, 2]  # two of them are shorter than all that may be


def test_messages_come_one_by_one_from_a_broker_without_scripts(server: EmbeddedServer, store: redis.Redis) -> None:
    store.acl_setuser("plain", enabled=True, nopass=True, keys="*", channels="*", commands=["+@all", "-@scripting"])
    try:
        with Connection(server.url.replace("//", "//plain:x@")) as connection:
            worker = Worker(connection, store)
            worker.publish(0, 1, 2)
            assert [worker.turn() for _ in range(3)] == [[0], [1], [2]]
            assert len(worker.noted()) == 3
    finally:
        store.acl_deluser("plain")


def test_unreadable_messages_are_left_to_kombu(connection: Connection, store: redis.Redis) -> None:
    worker = Worker(connection, store)
    worker.publish(0, 1)
    store.lpush("tasks", "nonsense", '{"properties": {}}')
    assert worker.turn() == [0, 1]
    assert worker.waiting() == 2


def test_message_that_only_lua_can_read_returns_with_those_behind_it(
    connection: Connection, store: redis.Redis
) -> None:
    worker = Worker(connection, store)
    worker.publish(*range(6))
    texts = store.lrange("tasks", 0, -1)
    bad = json.loads(texts[3])  # index 2
    bad["headers"]["id"] = {"__type__": "uuid", "__value__": "none"}
    store.lset("tasks", 3, json.dumps(bad))
    assert worker.turn() == [0, 1]
    assert (worker.waiting(), len(worker.noted())) == (4, 2)
    assert store.lrange("tasks", 0, 2) == texts[:3], "as they were"


def test_returned_messages_of_a_topic_exchange_go_to_their_own_queue(
    connection: Connection, store: redis.Redis
) -> None:
    """kombu restores by exchange and routing key, which is to every queue that is bound so."""
    worker = Worker(connection, store)
    exchange = Exchange("logs", "topic")(worker.channel)
    other = Queue("other", exchange, routing_key="#")(worker.channel)
    other.declare()
    worker.queues[0].exchange, worker.queues[0].routing_key = exchange, "log.#"
    worker.queues[0].declare()
    for index in range(5):
        worker.producer.publish({"index": index}, exchange=exchange, routing_key="log.a")

    def cancel(message: Any) -> None:
        message.ratelimit_queue = "tasks"
        worker.bulk_receive.request_more(message)
        if message.payload["index"] == 2:
            worker.consumer.cancel()

    worker.then = cancel
    assert worker.turn() == [0, 1, 2]
    assert (worker.waiting(), worker.waiting("other")) == (2, 5)


def test_full_broker_is_asked_again_later(connection: Connection, store: redis.Redis) -> None:
    worker = Worker(connection, store)
    full = "if redis.call('EXISTS', 'full') == 1 then return redis.error_reply('OOM command not allowed') end\n"
    worker.bulk_receive.configure(full + load_source("broker/fetch_batch"), lambda: None)
    worker.publish(*range(30))
    store.set("full", 1)
    assert worker.turn() == [0]
    store.delete("full")
    assert worker.turn() == [1], "not yet"
    worker.bulk_receive._retry_at = 0.0
    assert worker.turn() == list(range(2, MAX_MESSAGES + 3))


def test_messages_of_a_cancelled_consumer_return_to_their_place(connection: Connection, store: redis.Redis) -> None:
    worker = Worker(connection, store)
    worker.publish(*range(6))

    def cancel(message: Any) -> None:
        if message.payload["index"] == 2:
            worker.consumer.cancel()

    worker.then = cancel
    assert worker.turn() == [0, 1, 2]
    assert len(worker.noted()) == 3
    worker.then = lambda message: None
    worker.consumer.consume()
    assert worker.turn() == [3, 4, 5]


def test_error_in_a_callback_loses_no_message(connection: Connection, store: redis.Redis) -> None:
    worker = Worker(connection, store)
    worker.publish(*range(6))

    def fall(message: Any) -> None:
        if message.payload["index"] == 2:
            raise redis.ConnectionError("lost")

    worker.then = fall
    with pytest.raises(redis.ConnectionError, match="lost"):
        worker.turn()
    assert (worker.indexes, worker.waiting(), len(worker.noted())) == ([0, 1, 2], 3, 3)
    assert worker.after == [3], "the received messages are parked"
    assert not worker.bulk_receive.receiving
    worker.channel.close()
    assert (worker.waiting(), worker.noted()) == (6, set())


def test_messages_of_a_killed_worker_are_delivered_again(server: EmbeddedServer, store: redis.Redis) -> None:
    options = {"visibility_timeout": 1}
    with Connection(server.url, transport_options=options) as connection:
        worker = Worker(connection, store)
        worker.publish(*range(5))
        assert len(worker.turn()) == 5
        assert worker.waiting() == 0
        store.zadd("unacked_index", dict.fromkeys(worker.noted(), 1))  # long ago
        with Connection(server.url, transport_options=options) as other:
            qos = other.channel().qos
            qos.restore_visible()
        assert (worker.waiting(), worker.noted()) == (5, set())
        worker.channel.qos._delivered.clear()  # it is dead: it gives nothing back


def test_bulk_receive_is_unused_on_other_brokers() -> None:
    broker: Any = SimpleNamespace(no_event_loop=False)
    unused = BulkReceive(broker)
    unused.configure("return {}", lambda: None)
    unused.request_more(SimpleNamespace(channel=None))  # which has no note of its queue
    with Connection("memory://") as connection:
        channel = connection.channel()
        unused.watch(channel)
        assert not hasattr(channel, "handlers")
