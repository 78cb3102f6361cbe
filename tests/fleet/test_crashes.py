"""A worker is killed at every step of the throttle path: nothing is lost, nothing runs twice."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_ratelimit.testing import EmbeddedServer
from tests.apps.steps import STEPS, TOGETHER
from tests.far_away import far_away
from tests.fleet_of import NewFleet, assert_never_over, until
from tests.rabbitmq import Broker

#: How often workers are killed, every five seconds. ``TEST_KILLS=12``: for a minute.
KILLS = int(os.environ.get("TEST_KILLS", "2"))


@pytest.mark.parametrize(
    ("step", "broker_url"),
    [
        (next(iter(STEPS)), "rabbitmq"),
        *(pytest.param(step, "rabbitmq", marks=pytest.mark.slow) for step in list(STEPS)[1:]),
        *(pytest.param(step, "redis", marks=pytest.mark.slow) for step in TOGETHER),
    ],
    indirect=["broker_url"],
)
def test_worker_killed_at_a_step_loses_and_repeats_no_task(
    new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis, tmp_path: Path, broker_url: str, step: str
) -> None:
    """With ``acks_late``. RabbitMQ loses nothing by itself; on Redis kombu does, see docs/operations.md."""
    conf: dict[str, Any] = {}
    tasks, rate = 20, 10
    if broker_url == server.url:  # kombu hands out anew what was not acknowledged for so long
        conf["broker_transport_options"] = {"visibility_timeout": 6, "unacked_restore_throttle": 1}
        tasks, rate = 80, 20
    with new_fleet(rate=f"{rate}/s", app="tests.apps.crashing", broker=broker_url, **conf) as fleet:

        def no_copy_is_left() -> bool:
            if broker_url == server.url:
                return not store.zcard("unacked_index") and not fleet.parked()
            return not Broker(broker_url).ready("celery", "celery.throttled")

        fleet.env["TEST_DIES"] = step
        fleet.send_each("late", range(tasks))
        doomed = fleet.launch()
        until(lambda: doomed.poll() is not None, 40, f"its death {step}")
        assert (tmp_path / "died").exists()
        before = {start.index for start in fleet.starts()}
        fleet.launch()
        until(lambda: {start.index for start in fleet.starts()} == set(range(tasks)), 60, "every task being run")
        # A second copy may still be on its way, and end where it arrives; one that comes as the worker stops goes back.
        until(no_copy_is_left, 40, "every copy having come")
        fleet.stop()
        if not no_copy_is_left():
            fleet.launch()
            until(no_copy_is_left, 40, "every copy having come")
            fleet.stop()
        ran = Counter(start.index for start in fleet.starts())
        # What ran when the worker was killed may run again: that is what acks_late is for.
        assert {index for index, times in ran.items() if times > 1} <= before
        assert all(times <= 2 for times in ran.values())
        assert_never_over(fleet.permits(), rate)
        assert not fleet.parked()


@pytest.mark.slow
@pytest.mark.parametrize("away", [0.0, 0.005], ids=["near", "far"])
def test_repeatedly_killed_workers_lose_no_task(
    new_fleet: NewFleet, server: EmbeddedServer, broker: Broker, away: float
) -> None:
    """Two workers under load; every five seconds the one that is at it for longer is killed, and another started."""
    rate, tasks = 40, 40 * (5 * KILLS + 5)
    with (
        far_away(server, away) as address,
        new_fleet(rate=f"{rate}/s", broker=broker.url, ratelimit_url=address) as fleet,
    ):
        fleet.send_each("late", range(tasks))
        fleet.start(number=2)
        for victim in range(KILLS):
            time.sleep(5)
            fleet.kill(victim)
            fleet.launch()
        until(lambda: {start.index for start in fleet.starts()} == set(range(tasks)), 120, "every task being run")
        assert_never_over(fleet.permits(), rate)
        ran = Counter(start.index for start in fleet.starts())
        again = sum(times - 1 for times in ran.values())
        assert again <= 2 * KILLS, "what the two processes of each were running"
        assert not fleet.parking_lots().lots("tests.apps.fleet.late")
