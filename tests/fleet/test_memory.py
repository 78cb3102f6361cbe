"""A worker keeps nothing of tasks that have ended."""

from __future__ import annotations

import pytest
import redis

from celery_ratelimit.testing import EmbeddedServer
from tests.far_away import far_away
from tests.fleet_of import NewFleet, until

APP = "tests.apps.growing"
KEYS, FIRST, MORE = 500, 2_000, 8_000


@pytest.mark.slow
@pytest.mark.parametrize("task", ["by_key", "place"])
def test_worker_memory_does_not_grow_with_ended_tasks(new_fleet: NewFleet, store: redis.Redis, task: str) -> None:
    """A cancelled timer that is kept is eleven blocks of memory for each task; up to 500 of them are kept."""
    with new_fleet(app=APP, task_ignore_result=True) as fleet:
        fleet.launch("-l", "WARNING")

        def blocks_after(first: int, end: int) -> int:
            with fleet.sender.producer_or_acquire() as producer:
                for index in range(first, end):
                    fleet.sender.send_task(f"{APP}.{task}", args=[index, index % KEYS], producer=producer)
            until(lambda: fleet.started() >= end and not store.exists("celery", "unacked"), 60, "every task")
            (reply,) = fleet.sender.control.broadcast("blocks", reply=True, timeout=20, limit=1)
            return int(next(iter(reply.values())))

        before = blocks_after(0, FIRST)
        grown = blocks_after(FIRST, FIRST + MORE) - before
        assert grown < 2 * MORE, f"{grown} blocks more after {MORE} tasks"


@pytest.mark.slow
@pytest.mark.parametrize("away", [0.0, 0.005], ids=["near", "far"])
def test_a_request_that_has_ended_leaves_nothing_for_the_garbage_collector(
    new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis, away: float
) -> None:
    """It collects what has lived for a second so rarely that a worker grew by a kilobyte a task.

    Threads call a store that is far away, or whose machine is busy.
    """
    with (
        far_away(server, away) as address,
        new_fleet(rate="50/s", app=APP, ratelimit_url=address) as fleet,
    ):
        fleet.start()
        fleet.send_each("retry", range(150))
        fleet.wait_for(150, 20)
        until(lambda: not store.hlen("unacked"), 10, "every message being acknowledged")

        def left() -> int:
            ((number,),) = (said.values() for said in fleet.sender.control.broadcast("requests_left", reply=True))
            return int(number)

        until(lambda: left() <= 20, 10, "the requests being gone")
