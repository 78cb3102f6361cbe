"""Celery's ``worker_deduplicate_successful_tasks``: a redelivered task that was parked does not run again."""

from __future__ import annotations

from celery_ratelimit import Limiter
from tests.fleet_of import NewFleet, until
from tests.rabbitmq import Broker

TASK = "tests.apps.solo.parked_late"


def test_redelivered_task_that_has_succeeded_and_was_parked_does_not_run_again(
    new_fleet: NewFleet, limiter: Limiter, broker: Broker
) -> None:
    """Its worker was killed when it had stored the result, and before it acknowledged the message."""
    conf = {"worker_deduplicate_successful_tasks": True, "task_acks_late": True}
    with new_fleet(app="tests.apps.solo", prefix="tests.apps.solo.", broker=broker.url, **conf) as fleet:
        result = fleet.send("parked_late", 0, 0.0, "SIGKILL afterwards")
        fleet.launch("-P", "solo")
        until(lambda: fleet.workers[0].poll() is not None, 20, "its end")
        assert result.state == "SUCCESS"
        limiter.pause(TASK, 600, force=True)
        fleet.start("-P", "solo")
        until(lambda: fleet.parked() == 1, 10, "it being parked")
        limiter.resume(TASK, force=True)
        until(lambda: "already completed" in fleet.log(1) or fleet.started() > 1, 10, "its turn")
        assert [start.index for start in fleet.starts()] == [0]
