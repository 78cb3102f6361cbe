"""On Redis, messages of parked tasks are acknowledged together after a moment; none is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from kombu import Connection, Consumer, Producer, Queue

from celery_ratelimit._celery.bulk_acknowledge import BATCH_SIZE, BulkAcknowledge
from celery_ratelimit._celery.channel_patches import reuse_client
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, until

QUICK = "--without-mingle"


class Timers:
    """Calls that come later, when a test says so."""

    def __init__(self) -> None:
        self.waiting: dict[object, tuple[float, Callable[[], None]]] = {}

    def call_after(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        key = object()
        self.waiting[key] = seconds, callback
        return lambda: self.waiting.pop(key, None) and None

    def fire(self) -> None:
        waiting, self.waiting = self.waiting, {}
        for _, callback in waiting.values():
            callback()


class Worker:
    """Consumes a queue, as a worker does."""

    def __init__(self, channel: Any, store: redis.Redis, name: str = "tasks") -> None:
        self.name = name
        self.channel, self.store, self.timers = channel, store, Timers()
        self.acknowledgements = BulkAcknowledge(self.timers)  # type: ignore[arg-type]
        self.messages: list[Any] = []
        self.queue = Queue(name)(channel)
        self.producer = Producer(channel)
        self.consumer = Consumer(channel, [self.queue], on_message=self.messages.append, prefetch_count=100)
        self.consumer.consume()

    def come(self, number: int = 1) -> list[Any]:
        """Receive so many messages, and return their requests."""
        for _ in range(number):
            self.producer.publish("{}", routing_key=self.name, declare=[self.queue])
            self.channel.connection.client.drain_events(timeout=60)
        return [SimpleNamespace(message=message, acknowledged=False) for message in self.messages[-number:]]

    def acknowledge(self, *requests: Any) -> None:
        for request in requests:
            self.acknowledgements.acknowledge(request)

    @property
    def at_broker(self) -> int:
        """How many unacknowledged messages the broker has."""
        noted, indexed = self.store.hlen("unacked"), self.store.zcard("unacked_index")
        assert noted == indexed
        return int(noted)


@pytest.fixture
def worker(server: EmbeddedServer, store: redis.Redis) -> Iterator[Worker]:
    with Connection(server.url) as connection:
        yield Worker(connection.channel(), store)


def execs(store: redis.Redis) -> int:
    return int(store.info("commandstats").get("cmdstat_exec", {"calls": 0})["calls"])


def test_messages_are_acknowledged_in_one_round_trip(worker: Worker) -> None:
    requests = worker.come(3)
    worker.acknowledge(*requests[:2])
    assert [seconds <= 0.02 for seconds, _ in worker.timers.waiting.values()] == [True]
    assert (worker.at_broker, requests[0].message.acknowledged) == (3, False)
    before = execs(worker.store)
    worker.timers.fire()
    assert execs(worker.store) - before == 1, "in one round trip"
    assert (worker.at_broker, requests[0].message.acknowledged) == (1, True)
    assert not worker.timers.waiting
    worker.acknowledge(*worker.come(BATCH_SIZE))
    assert worker.at_broker == 1, "a full batch is acknowledged at once"
    assert not worker.timers.waiting


def test_messages_of_several_channels_are_acknowledged_together(server: EmbeddedServer, store: redis.Redis) -> None:
    """Returned messages have a channel of their own."""
    with Connection(server.url) as connection:
        worker, beside = Worker(connection.channel(), store), Worker(connection.channel(), store, "beside")
        (first,), (second,) = worker.come(), beside.come()
        worker.acknowledge(first, second)
        before = execs(store)
        worker.timers.fire()
        assert execs(store) - before == 1
        assert (first.message.acknowledged, second.message.acknowledged, worker.at_broker) == (True, True, 0)


def test_prefetch_is_freed_at_once(worker: Worker) -> None:
    worker.channel.basic_qos(0, 1, False)
    (request,) = worker.come()
    assert not worker.channel.qos.can_consume()
    worker.acknowledge(request)
    assert worker.channel.qos.can_consume()


def test_lost_acknowledgement_is_repeated(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = worker.come(2)
    worker.acknowledge(first)
    with monkeypatch.context() as broken:

        def execute(*_: Any) -> None:
            raise redis.ConnectionError("lost")

        broken.setattr(redis.client.Pipeline, "execute", execute)
        with pytest.raises(redis.ConnectionError):
            worker.timers.fire()
    assert (worker.at_broker, first.message.acknowledged) == (2, False)
    worker.timers.fire()
    assert (worker.at_broker, first.message.acknowledged) == (1, True)


def test_stopping_worker_acknowledges_at_once(worker: Worker) -> None:
    first, second, _ = worker.come(3)
    worker.acknowledge(first, second)
    worker.acknowledgements.close()
    assert worker.at_broker == 1
    assert not worker.timers.waiting


def test_rejected_message_is_left_to_kombu(worker: Worker) -> None:
    first, second = worker.come(2)
    worker.acknowledge(first)
    second.message.reject()
    assert worker.at_broker == 1
    worker.timers.fire()
    assert worker.at_broker == 0


def test_channel_reuses_its_client_until_it_disconnects(server: EmbeddedServer) -> None:
    with Connection(server.url) as connection:
        channel = connection.channel()
        reuse_client(channel)

        def client() -> Any:
            with channel.conn_or_acquire() as given:
                assert given.ping()
                return given

        first = client()
        assert client() is first
        assert channel._create_client(asynchronous=True) is not first
        channel._disconnect_pools()
        assert client() is not first
    with Connection("memory://") as connection:
        reuse_client(connection.channel())


# -- Workers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_task_without_acks_late_is_acknowledged_while_it_runs(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, pool: str
) -> None:
    with Fleet(server, tmp_path) as fleet:
        fleet.start(QUICK, "-P", pool, "-c", "2")
        for index in range(2):
            fleet.send("place", index, 30.0)
        fleet.wait_for(2, 20)
        until(lambda: not store.hlen("unacked"), 10, "being acknowledged")
        assert fleet.started() == 2, "neither has ended"
        fleet.kill(0)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_task_that_ends_during_a_warm_shutdown_is_acknowledged(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, pool: str
) -> None:
    """With ``acks_late``, and a warm shutdown: the pool is waited for when the loop has ended."""
    with Fleet(server, tmp_path) as fleet:
        fleet.start(QUICK, "-P", pool, "-c", "2")
        for index in range(2):
            fleet.send("late_place", index, 1.0)
        fleet.wait_for(1 if pool == "solo" else 2, 20)
        fleet.stop()
        begun, ended = ({start.index for start in fleet.starts() if (start.index < 0) == end} for end in (False, True))
        assert len(begun) == len(ended)
        assert (store.hlen("unacked"), store.llen("celery")) == (0, 2 - len(ended))
