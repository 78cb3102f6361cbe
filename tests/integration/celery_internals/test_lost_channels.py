"""Two channels of one connection to Redis: when it is lost, each returns its messages."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
import redis
from kombu import Connection, Consumer, Producer, Queue

from celery_ratelimit._celery.channel_patches import end_connection_with
from celery_ratelimit.testing import EmbeddedServer, embedded_server


def receive_on_two_channels(connection: Connection) -> None:
    """Each channel holds a message that is not acknowledged, and has asked for another one."""
    came: list[Any] = []
    for number, channel in enumerate([connection.default_channel, connection.channel()]):
        end_connection_with(channel)
        Consumer(channel, [Queue(f"q{number}")], on_message=came.append).consume()
        Producer(channel).publish({}, routing_key=f"q{number}")
    while len(came) < 2:
        connection.drain_events(timeout=60)
    with contextlib.suppress(TimeoutError):
        connection.drain_events(timeout=0.1)


def test_each_channel_of_a_lost_connection_returns_its_messages(server: EmbeddedServer, store: redis.Redis) -> None:
    """As Celery closes it: kombu still reads what a channel has asked for, and leaves it at the error of that."""
    connection = Connection(server.url)
    receive_on_two_channels(connection)
    store.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(connection.connection_errors):
        connection.drain_events(timeout=60)
    for close in (connection.collect, connection.close):  # celery/worker/consumer/consumer.py 476 and 487
        with contextlib.suppress(Exception):
            close()
    assert not store.hlen("unacked")
    assert [store.llen("q0"), store.llen("q1")] == [1, 1]


def test_message_read_while_a_channel_closes_is_put_back(server: EmbeddedServer, store: redis.Redis) -> None:
    """Each asks for messages until it is closed; kombu loses what the last one reads then."""
    connection = Connection(server.url)
    consumers = []
    for number, channel in enumerate([connection.default_channel, connection.channel()]):
        end_connection_with(channel)
        consumers.append(Consumer(channel, [Queue(f"q{number}")], on_message=print))
        consumers[-1].consume()
    with contextlib.suppress(TimeoutError):
        connection.drain_events(timeout=0.1)
    for consumer in consumers:
        consumer.cancel()
    for number in range(2):
        Producer(Connection(server.url).default_channel).publish({}, routing_key=f"q{number}")
    connection.close()
    assert not store.hlen("unacked")
    assert [store.llen("q0"), store.llen("q1")] == [1, 1]


def test_connection_to_a_killed_server_can_be_closed() -> None:
    """Nothing can be given back then: the channels end all the same, and so does the loop that closes them."""
    with embedded_server() as own:
        connection = Connection(own.url)
        receive_on_two_channels(connection)
        transport = connection.transport
        own.kill()
        with pytest.raises(connection.connection_errors):
            connection.drain_events(timeout=60)
        closed = threading.Thread(target=lambda: (connection.collect(), connection.close()), daemon=True)
        closed.start()
        closed.join(60)
        assert not closed.is_alive()
        assert not transport.channels
