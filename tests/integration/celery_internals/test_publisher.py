"""What goes out to RabbitMQ: known to be there, or to have been refused; and nothing of it ends what is consumed."""

from __future__ import annotations

import itertools
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
REFUSED = {"BCC": "somebody else"}


@pytest.fixture(params=[False, True], ids=["", "confirmed"])
def connection(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Connection]:
    with Connection(broker.url, transport_options={"confirm_publish": request.param}) as connected:
        yield connected


def a_publisher(connection: Connection) -> Publisher:
    return Publisher(None, WorkersBroker(SimpleNamespace(connection=connection, hub=object())))


def nobodys(name: str) -> bool:
    """No queue is this worker's to declare."""
    return False


def declared(name: str, priorities: int = 3) -> Callable[[Any], object]:
    """Declares a queue on a channel."""
    return lambda channel: Queue(name, max_priority=priorities)(channel).queue_declare()


def drained(connection: Connection) -> None:
    while True:
        try:
            connection.drain_events(timeout=0.5)
        except TimeoutError:
            return


def wait_for_messages(connection: Connection, queue: str, number: int) -> None:
    """A channel answers when it has routed a message; the queue counts it a moment later."""
    declared = partial(connection.default_channel.queue_declare, queue, passive=True)
    until(lambda: declared().message_count >= number, 10, f"{number} messages in {queue}")
    assert declared().message_count == number


def test_a_queue_that_is_not_there_is_told_and_the_others_get_theirs(connection: Connection) -> None:
    connection.default_channel.queue_declare("there")
    publisher = a_publisher(connection)
    for _ in range(2):
        assert publisher.publish(None, [a_parcel("there"), a_parcel("nowhere"), a_parcel("there")], nobodys) == {
            "nowhere"
        }
    wait_for_messages(connection, "there", 4)


def test_a_queue_of_its_own_is_made_again(connection: Connection) -> None:
    publisher = a_publisher(connection)

    def declare(name: str) -> bool:
        return name == "mine" and publisher.refusal_of(declared(name)) is None

    parcels = [a_parcel("mine"), a_parcel("nowhere"), a_parcel("mine")]
    assert publisher.publish(None, parcels, declare) == {"nowhere"}
    Queue("mine", max_priority=3)(connection.default_channel).queue_declare()
    wait_for_messages(connection, "mine", 2)


def test_what_is_declared_otherwise_is_left_as_it_is(connection: Connection) -> None:
    publisher = a_publisher(connection)
    assert publisher.refusal_of(declared("mine")) is None
    assert publisher.refusal_of(declared("mine")) is None
    assert isinstance(publisher.refusal_of(declared("mine", 4)), amqp.PreconditionFailed)
    assert publisher.publish(None, [a_parcel("mine")], nobodys) == set()


def test_what_is_refused_is_told_and_ends_nothing_else(connection: Connection) -> None:
    came: list[Message] = []
    publisher = a_publisher(connection)
    with Consumer(connection.default_channel, [Queue("in")], on_message=came.append):
        for number in range(1, 4):
            with pytest.raises(amqp.PreconditionFailed):
                publisher.publish(None, [a_parcel("in", **REFUSED)], nobodys)
            assert publisher.publish(None, [a_parcel("in")], nobodys) == set()
            drained(connection)
            assert len(came) == number
    assert len(connection.connection.channels) <= 3, "the connection itself, what is consumed, and one to publish"


def test_who_publishes_while_another_waits_gets_an_answer_of_its_own(connection: Connection) -> None:
    """What comes in meanwhile is sent on; what the broker says of the one channel is read by who waits for another."""
    connection.default_channel.queue_declare("out")
    publisher = a_publisher(connection)
    came = itertools.count()
    sent: list[set[str]] = []

    def send_on(message: Message) -> None:
        next(came)
        message.ack()
        sent.append(publisher.publish(None, [a_parcel("out")] * 3, nobodys))

    with Consumer(connection.default_channel, [Queue("in")], on_message=send_on):
        for _ in range(10):
            with pytest.raises(amqp.PreconditionFailed):
                publisher.publish(None, [a_parcel("in"), a_parcel("in"), a_parcel("in", **REFUSED)], nobodys)
        drained(connection)
    assert next(came) == 20
    assert sent == [set()] * 20
    wait_for_messages(connection, "out", 60)


def break_by_closing(channel: Any) -> None:
    channel.basic_ack(4711)


def break_by_cancelling(channel: Any) -> None:
    with channel.connection.client.clone() as another:
        another.default_channel.queue_delete("in")


@pytest.mark.parametrize("break_it", [break_by_closing, break_by_cancelling])
def test_a_channel_that_ends_takes_its_connection_along(
    connection: Connection, break_it: Callable[[Any], None]
) -> None:
    """Whoever reads it, and whatever has become of the error: the next one who reads is told, too."""
    channel = connection.channel()
    end_connection_with(channel)
    with Consumer(channel, [Queue("in")], on_message=lambda message: None):
        break_it(channel)
        for _ in range(2):
            with pytest.raises(connection.connection_errors):
                connection.drain_events(timeout=5)


def test_a_channel_that_is_closed_in_order_takes_nothing_along(connection: Connection) -> None:
    channel = connection.channel()
    end_connection_with(channel)
    channel.close()
    connection.default_channel.queue_declare("still")
