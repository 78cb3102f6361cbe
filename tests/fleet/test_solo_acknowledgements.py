"""Solo workers whose broker does not take the acknowledgement with which a task begins or ends."""

from __future__ import annotations

import pytest

from tests.fleet_of import NewFleet, until
from tests.rabbitmq import Broker

#: Seconds of the first task: RabbitMQ closes a connection from which it hears no heartbeat for two or three.
SECONDS = 6.0


def test_solo_worker_goes_on_after_its_connection_was_lost_during_a_task(new_fleet: NewFleet, broker: Broker) -> None:
    """A solo worker sends no heartbeat while its task runs. The tasks have no limit, and no ``acks_late``."""
    fleet = new_fleet(app="tests.apps.solo", prefix="tests.apps.solo.", broker=broker.url, broker_heartbeat=1)
    with fleet:
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
    options = {"app": "tests.apps.solo", "prefix": "tests.apps.solo.", "rate": "1000/s"}
    with new_fleet(**options, broker=broker.url, broker_heartbeat=1) as fleet:
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
