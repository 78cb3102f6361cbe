"""The longest hold of a message, and the delivery limit of quorum queues."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu import Queue

from celery_ratelimit import RateLimitedTask
from celery_ratelimit._celery.broker import HOLD_SHARE, Broker
from celery_ratelimit._celery.message_fields import nears_delivery_limit
from celery_ratelimit.operations.setup_checks import InformationalFinding
from celery_ratelimit.operations.task_checks import check_tasks
from celery_ratelimit.worker.request import State
from celery_ratelimit.worker.request_queue import LimitQueue

CLOSED = (
    "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: {} ms. This timeout "
    "value can be configured, see consumers doc guide to learn more"
)


def timeout_of(seconds: int) -> dict[str, Any]:
    return {"x-consumer-timeout": 1000 * seconds}


def broker_with(**queues: dict[str, Any]) -> Broker:
    app = Celery("held", broker="amqp://", set_as_current=False)
    app.conf.task_queues = [Queue(name, **options) for name, options in queues.items()]
    return Broker(SimpleNamespace(app=app, hub=object()))


@pytest.mark.parametrize(
    ("options", "timeout"),
    [
        ({}, 1800),
        ({"queue_arguments": timeout_of(60)}, 60),
        ({"consumer_arguments": timeout_of(60)}, 60),
        ({"queue_arguments": timeout_of(60), "consumer_arguments": timeout_of(90)}, 90),
        ({"queue_arguments": timeout_of(7200)}, 1800),
        ({"queue_arguments": timeout_of(0)}, 1800),
    ],
)
def test_hold_time_follows_the_consumer_timeout_of_the_queue(options: dict[str, Any], timeout: float) -> None:
    broker = broker_with(jobs=options, others={})
    assert broker.max_hold("jobs") == timeout * HOLD_SHARE
    assert broker.max_hold("others") == broker.max_hold("unknown") == 1800 * HOLD_SHARE


def test_closed_channel_lowers_the_hold_time(caplog: pytest.LogCaptureFixture) -> None:
    broker = broker_with(jobs={"queue_arguments": timeout_of(60)}, others={})
    with caplog.at_level(logging.WARNING):
        broker.on_channel_closed(CLOSED.format(5000))  # it has held no message with a limit
        holds = [broker.max_hold("jobs"), broker.max_hold("others")]
        broker.on_channel_closed("PRECONDITION_FAILED - unknown delivery tag 7")
        broker.on_channel_closed(CLOSED.format(1_800_000))  # a task with acks_late that runs for long
        assert [broker.max_hold("jobs"), broker.max_hold("others")] == holds
        assert not caplog.records
        for timeout in (120_000, 120_000, 30_000):
            broker.on_channel_closed(CLOSED.format(timeout))
    assert broker.max_hold("jobs") == broker.max_hold("others") == 30 * HOLD_SHARE
    assert [record.args for record in caplog.records] == [(120, 120 * HOLD_SHARE), (30, 30 * HOLD_SHARE)]


@pytest.mark.parametrize(
    ("headers", "arguments", "nears"),
    [
        (None, {}, False),
        ({}, {}, False),
        ({"x-delivery-count": 9}, {}, False),
        ({"x-delivery-count": 10}, {}, True),
        ({"x-delivery-count": 1}, {"x-delivery-limit": 3}, False),
        ({"x-delivery-count": 2}, {"x-delivery-limit": 3}, True),
        ({"x-delivery-count": 99}, {"x-delivery-limit": -1}, False),
        ({"x-acquired-count": 99}, {}, False),
        ({"x-delivery-count": "many"}, {}, False),
    ],
)
def test_message_nears_the_delivery_limit_at_half_of_it(
    headers: dict[str, Any] | None, arguments: dict[str, Any], nears: bool
) -> None:
    message = SimpleNamespace(headers=headers)
    assert nears_delivery_limit(message, Queue("jobs", queue_arguments=arguments)) is nears
    assert arguments or nears_delivery_limit(message, None) is nears


@pytest.mark.parametrize(
    ("options", "arguments", "parts"),
    [
        ({}, timeout_of(60), ["has x-consumer-timeout 60 s"]),
        ({}, {"x-queue-type": "quorum"}, []),
        ({"acks_late": True}, {"x-queue-type": "quorum"}, ["more than 20 workers"]),
        ({"acks_late": True}, {"x-queue-type": "quorum", "x-delivery-limit": 3}, ["more than 3 workers"]),
        ({"acks_late": True}, {"x-queue-type": "quorum", "x-delivery-limit": -1}, []),
        ({"acks_late": True}, {}, []),
        ({"acks_late": True, "throttle": "retry"}, {"x-queue-type": "quorum", "x-consumer-timeout": 60_000}, []),
    ],
)
def test_check_reports_queue_settings_that_affect_waiting_tasks(
    options: dict[str, Any], arguments: dict[str, Any], parts: list[str]
) -> None:
    app = Celery("checked", broker="amqp://", set_as_current=False)
    app.conf.update(ratelimit_url="redis://", task_queues=[Queue("jobs", queue_arguments=arguments)])

    @app.task(base=RateLimitedTask, limits="5/s", **{"throttle": "wait", **options})
    def held() -> None:
        pass

    app.finalize()
    found = list(check_tasks(app))
    assert len(found) == len(parts), found
    for finding, part in zip(found, parts, strict=True):
        assert isinstance(finding, InformationalFinding)
        assert finding.startswith("queue 'jobs' ")
        assert part in finding


def test_messages_near_their_release_deadline_go_first() -> None:
    limit_queue = LimitQueue()
    for deadline, is_first in [(720.0, False), (1.0, True), (721.0, False), (1.5, True)]:
        pending: Any = SimpleNamespace(has_reservation=False, release_deadline=deadline, state=State.QUEUED)
        limit_queue.enqueue(pending, is_new=True, first=is_first)
    assert [each.release_deadline for each in limit_queue.new] == [1.0, 1.5, 720.0, 721.0]
