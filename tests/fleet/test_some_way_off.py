"""Workers whose store is some way off, so that threads ask it while the worker goes on: the laws hold all the same."""

from __future__ import annotations

from collections import Counter

import pytest
import redis

from celery_ratelimit import Limiter
from celery_ratelimit.testing import EmbeddedServer
from tests.far_away import far_away
from tests.fleet_of import Fleet, NewFleet, assert_never_over, new_rates, until

RATE, TASKS = 50, 250
AWAY = 0.005


def nothing_is_left(fleet: Fleet, store: redis.Redis) -> None:
    until(lambda: not fleet.parking_lots().lots() and not store.hlen("unacked"), 20, "every message being gone")


@pytest.mark.parametrize(
    ("throttle", "pool"),
    [
        ("retry", "prefork"),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in (("wait", "prefork"), ("retry", "threads"))),
        pytest.param("wait", "solo", marks=pytest.mark.slow),
    ],
)
def test_never_over_and_each_task_once(
    new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis, throttle: str, pool: str
) -> None:
    with far_away(server, AWAY) as address, new_fleet(rate=f"{RATE}/s", ratelimit_url=address) as fleet:
        fleet.send_each(throttle, range(TASKS))
        fleet.start("-P", pool, number=2)
        fleet.send_each("plain", range(TASKS, TASKS + 20))
        fleet.wait_for(TASKS + 20, 40)
        nothing_is_left(fleet, store)
        assert sorted(start.index for start in fleet.starts()) == list(range(TASKS + 20))
        assert_never_over(fleet.permits(), RATE)
        assert "Traceback" not in fleet.log(0) + fleet.log(1)


@pytest.mark.slow
@pytest.mark.parametrize("throttle", ["retry", "wait"])
def test_a_warm_stop_with_questions_on_their_way_gives_everything_back(
    new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis, throttle: str
) -> None:
    tasks, rate = 120, 15
    with far_away(server, 0.02) as address, new_fleet(rate=f"{rate}/s", ratelimit_url=address) as fleet:
        fleet.send_each(throttle, range(tasks))
        for _ in range(3):
            began = fleet.started()
            fleet.start(number=1)
            fleet.wait_for(began + 15, 20)
            fleet.stop()
            assert not store.hlen("unacked")
        fleet.start(number=2)
        fleet.wait_for(tasks, 40)
        nothing_is_left(fleet, store)
        runs = Counter(start.index for start in fleet.starts())
        assert sorted(runs) == list(range(tasks))
        # Celery delivers again what it is just handing to a process when it is told to stop (Fleet.stop): one at most.
        assert runs.total() - tasks <= 3
        assert_never_over(fleet.permits(), rate)


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "gevent"])
@pytest.mark.parametrize("throttle", ["retry", "wait"])
def test_new_rates_while_the_store_is_being_asked(
    new_fleet: NewFleet, limiter: Limiter, server: EmbeddedServer, store: redis.Redis, throttle: str, pool: str
) -> None:
    conf = {"broker_transport_options": {"max_connections": 100}}
    name = f"tests.apps.fleet.{throttle}"
    with far_away(server, AWAY) as address, new_fleet(rate="20/s", ratelimit_url=address, **conf) as fleet:
        fleet.start("-P", pool, "-c", "20" if pool == "gevent" else "2", number=2)
        fleet.send_each(throttle, range(300))
        new_rates(limiter, name, (20, RATE), pause=0.3)
        fleet.wait_for(300, 20)
        nothing_is_left(fleet, store)
        assert sorted(start.index for start in fleet.starts()) == list(range(300))
        assert_never_over(fleet.permits(), 100)
