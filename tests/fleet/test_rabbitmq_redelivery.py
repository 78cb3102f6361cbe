"""``throttle="wait"`` under RabbitMQ's bounds for what a worker holds: ``consumer_timeout``, and a delivery limit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import kombu
import pytest

from benchmarks.measures import displacement
from celery_ratelimit import Limiter
from tests.fleet_of import NewFleet, assert_never_over, errors, until
from tests.rabbitmq import Broker, RabbitMQ, needs_quorum_queues, running_node, skip_without_server

WAIT = "tests.apps.fleet.wait"
#: Celery logs it with the lost connection.
TIMED_OUT = "delivery acknowledgement on channel"


def set_consumer_timeout(node: RabbitMQ, timeout: int, tick: int) -> None:
    """In milliseconds: the timeout, and how often a channel looks; channels that are there keep their next look."""
    names = ("consumer_timeout", timeout), ("channel_tick_interval", tick)
    node.ctl("eval", ", ".join(f"application:set_env(rabbit, {name}, {value})" for name, value in names) + ".")


@pytest.fixture
def brief() -> Iterator[Broker]:
    """A node of its own, which closes a channel on which a message is not acknowledged within four seconds."""
    skip_without_server()
    with running_node() as node:
        set_consumer_timeout(node, 4000, 500)
        yield node.broker()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "closed"),
    [
        pytest.param({}, 1, id="learned"),
        pytest.param(
            {"x-consumer-timeout": 4000, "x-queue-type": "quorum"},
            0,
            id="quorum",
            marks=[pytest.mark.slow, needs_quorum_queues],
        ),
    ],
)
def test_messages_are_held_for_less_than_the_consumer_timeout(
    new_fleet: NewFleet, brief: Broker, arguments: dict[str, Any], closed: int
) -> None:
    """The last of sixteen tasks waits for sixteen seconds."""
    queues = {"task_queues": {"jobs": {"queue_arguments": arguments}}, "task_default_queue": "jobs"}
    with new_fleet(rate="60/m", broker=brief.url, **queues) as fleet:
        fleet.send_each("wait", range(16))
        fleet.start()
        fleet.wait_for(16, 40)
        permits, log = fleet.permits(), fleet.log()
        assert log.count(TIMED_OUT) == closed, "it learns from the first time"
        assert log.count("its consumer_timeout is 4 s") == closed
        assert log.count("Connection to broker lost") == closed
        assert "no callbacks" not in log, "its queue is paused and consumed while its messages come"
        assert not errors(log)
        assert sorted(permit.index for permit in permits) == list(range(16))
        assert_never_over(permits, 1)
        assert displacement(permits)[0] <= 4
        # A message is on a countdown for 1.6 s, and is held for as long after it.
        assert max(Counter(re.findall(r"\[([0-9a-f-]{36})\] received", log)).values()) <= 12


def test_countdowns_stay_below_the_consumer_timeout(new_fleet: NewFleet, limiter: Limiter, brief: Broker) -> None:
    """What waits for longer than a message is held was published with a countdown, before the timeout was known."""
    limiter.pause(WAIT, 3600, force=True)
    with new_fleet(rate="100/s", broker=brief.url) as fleet:
        fleet.send_each("wait", range(4))
        fleet.start()
        until(lambda: "its consumer_timeout is 4 s" in fleet.log(), 20, "a channel being closed")
        until(lambda: fleet.log().count(": sent back") >= 20, 20, "four countdowns of each")
        limiter.resume(WAIT, force=True)
        fleet.wait_for(4, 20)
        assert fleet.log().count(TIMED_OUT) == 1
        assert sorted(start.index for start in fleet.starts()) == list(range(4))


@needs_quorum_queues
def test_requeued_task_stays_below_the_delivery_limit(new_fleet: NewFleet, limiter: Limiter, broker: Broker) -> None:
    """A quorum queue counts how often a message came back from a connection, and drops it above its limit."""
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 3}
    queues = {"task_queues": {"jobs": {"queue_arguments": arguments}}, "task_default_queue": "jobs"}

    def waiting() -> int:
        return broker.ready("jobs", "jobs.throttled")

    limiter.pause(WAIT, 600, force=True)  # less than a message is held
    with new_fleet(rate="100/s", broker=broker.url, **queues) as fleet:
        fleet.send_each("wait", range(4))
        for _ in range(2):
            with kombu.Connection(broker.url) as connection:
                channel = connection.default_channel
                until(lambda c=channel: c.basic_get("jobs") is None, 10, "all messages unacknowledged")
            until(lambda: waiting() == 4, 10, "the messages being given back")
        for index, what in enumerate([": sent back", "] received"]):
            fleet.start()
            until(lambda i=index, w=what: fleet.log(i).count(w) == 4 and not waiting(), 20, f"4 times {what!r}")
            fleet.asked("ping")  # its loop has turned: what was published again is acknowledged
            fleet.kill(index)
            # On a slow machine not each: such a message is there twice, and its task would run twice.
            until(lambda: waiting() >= 4, 10, "all of them being at the broker again")
        limiter.resume(WAIT, force=True)
        fleet.start()
        until(lambda: {start.index for start in fleet.starts()} == set(range(4)), 20, "the start of each task")


@needs_quorum_queues
def test_message_that_arrives_before_its_consumer_is_not_rejected(
    new_fleet: NewFleet, limiter: Limiter, broker: Broker
) -> None:
    """Messages of one queue are sent back while the other one's answer is on its way: each rejection would count."""
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 2}
    queues = {"task_queues": {"jobs": {"queue_arguments": arguments}}, "task_default_queue": "jobs"}
    limiter.pause(WAIT, 600, force=True)
    with new_fleet(rate="20/s", broker=broker.url, **queues) as fleet:
        fleet.send_each("wait", range(20))
        for number, (received, sent_back) in enumerate([(8, 0), (16, 8), (16, 8)]):
            fleet.start()
            until(lambda i=number, n=received: fleet.log(i).count("] received") >= n, 10, "the messages coming in")
            until(lambda i=number, n=sent_back: fleet.log(i).count(": sent back") >= n, 10, "all being sent back")
            fleet.asked("ping")  # what was published again is acknowledged
            fleet.kill(number)
            assert "no callbacks" not in fleet.log(number)
        limiter.resume(WAIT, force=True)
        fleet.start()
        # A killed worker may have published a message again and not acknowledged it: that task runs twice.
        until(lambda: {start.index for start in fleet.starts()} == set(range(20)), 20, "the start of each task")
