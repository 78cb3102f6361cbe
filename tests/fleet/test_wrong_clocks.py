"""Workers with wrong wall clocks: tasks return at their slots by the store's clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import records
from tests.fleet_of import Fleet, NewFleet, assert_never_over, until
from tests.rabbitmq import Broker

SKEWED = Path(__file__).parents[1] / "apps" / "skewed"
TASKS, RATE = 60, 20


def start_skewed(fleet: Fleet, *skews: int) -> None:
    """Start a worker for each wall clock that is off by so many seconds."""
    for skew in skews:
        fleet.env = {**fleet.env, "PYTHONPATH": str(SKEWED), "TEST_SKEW": str(skew)}
        fleet.start()


@pytest.mark.slow
def test_wrong_clocks_expire_no_task_early(new_fleet: NewFleet, broker: Broker) -> None:
    queues = {"jobs": {"queue_arguments": {"x-message-ttl": 300_000}}}
    with new_fleet(rate=f"{RATE}/s", broker=broker.url, task_queues=queues) as fleet:
        fleet.start()
        start_skewed(fleet, -3600, 3600)
        fleet.send_each("retry", range(TASKS), queue="jobs")
        fleet.wait_for_each(range(TASKS), 20)


# Less than the visibility timeout apart: on Redis kombu notes deliveries by the worker's clock, and repeats old ones.
@pytest.mark.parametrize(
    "skews", [(-3000, 300), pytest.param((-2, 10), marks=pytest.mark.slow)], ids=["far off", "slightly off"]
)
def test_workers_with_wrong_clocks_run_each_task_once_and_hold_the_rate(
    new_fleet: NewFleet, tmp_path: Path, skews: tuple[int, int]
) -> None:
    with new_fleet(rate=f"{RATE}/s") as fleet:
        fleet.start()
        start_skewed(fleet, *skews)
        fleet.send_each("retry", range(TASKS))
        until(lambda: fleet.started() >= TASKS, 20, "the start of every task")
        permits = records.read(tmp_path / "permits")
    assert sorted(permit.index for permit in permits) == list(range(TASKS)), "each once"
    assert_never_over(permits, RATE)
    # Each worker publishes tasks for the other one. Where an eta was read by another clock, tasks came back once more.
    assert fleet.sent_back() <= 1.2 * TASKS
