"""Solo workers answer a message when its task begins or ends, whatever the task or the connection does."""

from __future__ import annotations

import pytest
import redis

from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import NewFleet, until
from tests.rabbitmq import Broker

SOLO = {"app": "tests.apps.solo", "prefix": "tests.apps.solo.", "rate": "1000/s"}
#: Seconds of the first task: RabbitMQ closes a connection from which it hears no heartbeat for two or three.
SECONDS = 6.0


def test_solo_worker_goes_on_after_its_connection_was_lost_during_a_task(new_fleet: NewFleet, broker: Broker) -> None:
    """A solo worker sends no heartbeat while its task runs. The tasks have no limit, and no ``acks_late``."""
    with new_fleet(**SOLO, broker=broker.url, broker_heartbeat=1) as fleet:
        fleet.send("free", 0, SECONDS)
        fleet.send_each("free", range(1, 12))
        fleet.start("-P", "solo")
        until(lambda: "Connection to broker lost" in fleet.log(), 20, "the loss being noticed")
        until(lambda: {start.index for start in fleet.starts()} >= set(range(12)), 5, "the start of each task")


@pytest.mark.parametrize("task", ["early", "parked"])
def test_solo_worker_starts_limited_tasks_after_another_worker_has_run_its_lost_ones(
    new_fleet: NewFleet, broker: Broker, task: str
) -> None:
    """The task that could not be acknowledged at its start comes to another worker, which ends later."""
    with new_fleet(**SOLO, broker=broker.url, broker_heartbeat=1) as fleet:
        fleet.send(task, 0, SECONDS)
        fleet.send_each(task, range(1, 6))
        fleet.start("-P", "solo")
        fleet.wait_for(1, 20)
        fleet.start("-P", "threads")
        until(lambda: "Connection to broker lost" in fleet.log(), 20, "the loss being noticed")
        until(lambda: {start.index for start in fleet.starts()} >= set(range(6)), 5, "the start of each task")
        until(lambda: broker.ready("celery", "celery.throttled") == 0, 5, "an empty queue")
        fleet.kill(1)
        fleet.send_each(task, range(6, 12))
        until(lambda: {start.index for start in fleet.starts()} >= set(range(6, 12)), 5, "the start of new tasks")


@pytest.mark.parametrize(
    ("task", "error"), [("parked", "SystemExit"), ("free", "SystemExit"), ("parked_late", "MemoryError")]
)
def test_solo_worker_goes_on_after_tasks_that_exit(new_fleet: NewFleet, task: str, error: str) -> None:
    """As many as it may prefetch: each is acknowledged."""
    with new_fleet(**SOLO) as fleet:
        fleet.send_each(task, range(8), 0.0, error)
        fleet.send(task, 8)
        fleet.start("-P", "solo")
        fleet.wait_for_each(range(9), 20)


@pytest.mark.parametrize(("task", "error"), [("parked_late", "Reject"), ("sparing", "OSError")])
def test_killed_solo_worker_has_rejected_the_messages_of_tasks_that_have_ended(
    new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis, task: str, error: str
) -> None:
    """The broker would deliver each again, and these tasks would run twice."""
    with new_fleet(**SOLO, worker_prefetch_multiplier=10) as fleet:
        fleet.send_each(task, range(13), 0.0, error, 13)
        fleet.launch("-P", "solo")
        until(lambda: fleet.workers[0].poll() is not None, 20, "its end")
        assert fleet.started() == 13
        assert store.hlen("unacked") <= 2, "messages of tasks that have ended"
