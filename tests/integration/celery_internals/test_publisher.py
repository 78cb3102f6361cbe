"""Publishing to RabbitMQ: each message is confirmed or refused, and consumers go on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import amqp
import pytest
from kombu import Connection, Consumer, Queue
from kombu.message import Message

from celery_ratelimit._celery.broker import Broker as WorkersBroker
from celery_ratelimit._celery.channel_patches import end_connection_with
from celery_ratelimit._celery.publisher import Publisher
from tests.fleet_of import until
from tests.rabbitmq import Broker


def a_parcel(to: str, **headers: Any) -> tuple[dict[str, Any], float, dict[str, Any]]:
    parcel = {
        "to": to,
        "body": b"[]",
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "compression": None,
        "headers": headers,
        "priority": 0,
        "delivery_mode": 2,
        "expires": None,
        "properties": {},
    }
    return parcel, 0.0, {}


#: RabbitMQ wants a list there.
REFUSED = {"BCC": "another queue"}


@pytest.fixture(params=[False, True], ids=["", "confirmed"])
def connection(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Connection]:
    with Connection(broker.url, transport_options={"confirm_publish": request.param}) as connected:
        yield connected


def a_publisher(connection: Connection) -> Publisher:
    return Publisher(None, WorkersBroker(SimpleNamespace(connection=connection, hub=object())))


def never_declared(name: str) -> bool:
    """This worker declares no queue."""
    return False


def declared(name: str, priorities: int = 3) -> Callable[[Any], object]:
    """Declares a queue on a channel."""
    return lambda channel: Queue(name, max_priority=priorities)(channel).queue_declare()


def drain(connection: Connection) -> None:
    with contextlib.suppress(TimeoutError):
        connection.drain_events(timeout=0.1)


def wait_for_messages(connection: Connection, queue: str, number: int) -> None:
    """A channel answers when it has routed a message; the queue counts it a moment later."""
    declared = partial(connection.default_channel.queue_declare, queue, passive=True)
    until(lambda: declared().message_count >= number, 10, f"{number} messages in {queue}")
    assert declared().message_count == number


def test_missing_queue_is_reported_and_other_queues_get_their_messages(connection: Connection) -> None:
    connection.default_channel.queue_declare("there")
    publisher = a_publisher(connection)
    for _ in range(2):
        assert publisher.publish(None, [a_parcel("there"), a_parcel("nowhere"), a_parcel("there")], never_declared) == {
            "nowhere"
        }
    wait_for_messages(connection, "there", 4)


def test_own_queue_is_declared_again(connection: Connection) -> None:
    publisher = a_publisher(connection)

    def declare(name: str) -> bool:
        return name == "mine" and publisher.refusal_of(declared(name)) is None

    parcels = [a_parcel("mine"), a_parcel("nowhere"), a_parcel("mine")]
    assert publisher.publish(None, parcels, declare) == {"nowhere"}
    Queue("mine", max_priority=3)(connection.default_channel).queue_declare()
    wait_for_messages(connection, "mine", 2)


def test_queue_declared_with_other_arguments_is_left_as_it_is(connection: Connection) -> None:
    publisher = a_publisher(connection)
    assert publisher.refusal_of(declared("mine")) is None
    assert publisher.refusal_of(declared("mine")) is None
    assert isinstance(publisher.refusal_of(declared("mine", 4)), amqp.PreconditionFailed)
    assert publisher.publish(None, [a_parcel("mine")], never_declared) == set()


def test_refused_message_is_an_error_and_consumers_go_on(connection: Connection) -> None:
    came: list[Message] = []
    publisher = a_publisher(connection)
    with Consumer(connection.default_channel, [Queue("in")], on_message=came.append):
        for number in range(1, 4):
            with pytest.raises(amqp.PreconditionFailed):
                publisher.publish(None, [a_parcel("in", **REFUSED)], never_declared)
            assert publisher.publish(None, [a_parcel("in")], never_declared) == set()
            until(lambda n=number: drain(connection) or len(came) >= n, 20, "the messages")
            assert len(came) == number
    assert len(connection.connection.channels) <= 3, "the connection itself, what is consumed, and one to publish"


def test_nested_publishes_get_their_own_confirmations(connection: Connection) -> None:
    """A message that comes in meanwhile is sent on; the broker's reply to one channel is read while another waits."""
    connection.default_channel.queue_declare("out")
    publisher = a_publisher(connection)
    sent: list[set[str]] = []

    def send_on(message: Message) -> None:
        message.ack()
        sent.append(publisher.publish(None, [a_parcel("out")] * 3, never_declared))

    with Consumer(connection.default_channel, [Queue("in")], on_message=send_on):
        for _ in range(10):
            with pytest.raises(amqp.PreconditionFailed):
                publisher.publish(None, [a_parcel("in"), a_parcel("in"), a_parcel("in", **REFUSED)], never_declared)
        until(lambda: drain(connection) or len(sent) >= 20, 20, "the messages")
    assert sent == [set()] * 20
    wait_for_messages(connection, "out", 60)


def break_by_closing(channel: Any) -> None:
    channel.basic_ack(4711)


def break_by_cancelling(channel: Any) -> None:
    with channel.connection.client.clone() as another:
        another.default_channel.queue_delete("in")


@pytest.mark.parametrize("break_it", [break_by_closing, break_by_cancelling])
def test_channel_closed_by_the_broker_ends_its_connection(
    connection: Connection, break_it: Callable[[Any], None]
) -> None:
    """Each later read raises the error, too."""
    channel = connection.channel()
    end_connection_with(channel)
    with Consumer(channel, [Queue("in")], on_message=lambda message: None):
        break_it(channel)
        for _ in range(2):
            with pytest.raises(connection.connection_errors):
                connection.drain_events(timeout=60)


def test_channel_closed_in_order_leaves_its_connection(connection: Connection) -> None:
    channel = connection.channel()
    end_connection_with(channel)
    channel.close()
    connection.default_channel.queue_declare("still")
