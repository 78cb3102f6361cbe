"""The store is killed, hung and restarted; workers and connections are killed; script caches are flushed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis

from celery_ratelimit import Limiter, StoreUnavailable
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.fleet_of import Fleet, NewFleet, assert_never_over, until

from .test_leases import most_held

#: A task of each throttle, with a limit of its own.
BOTH = ("retry", "wait")


def never_over_by_task(fleet: Fleet, rate: float) -> None:
    """No more than the rate of each task of ``BOTH``, which were sent in turn."""
    for task in (0, 1):
        assert_never_over([permit for permit in fleet.permits() if permit.index % 2 == task], rate)


@pytest.fixture
def limits_store() -> Iterator[EmbeddedServer]:
    """A store of its own for the limits, that a test may break while the broker lives."""
    with embedded_server(persist=True) as server:
        yield server


@pytest.mark.slow
def test_script_flush_changes_nothing(new_fleet: NewFleet, store: redis.Redis, limits_store: EmbeddedServer) -> None:
    """In a store of its own: kombu has a script at the broker, and warns if it is flushed twice in a row."""
    with (
        redis.Redis.from_url(limits_store.url) as of_limits,
        new_fleet(ratelimit_url=limits_store.url) as fleet,
    ):
        fleet.start(number=2)
        for index in range(300):
            fleet.send("retry", index)
            if index % 10 == 0:
                of_limits.script_flush()
        fleet.wait_for(300, 20)
        assert_never_over(fleet.permits(), 100)
        assert "WARNING" not in fleet.log().split("ready.")[1]


@pytest.mark.parametrize(
    "pool", [("-c", "2"), pytest.param(("-P", "gevent", "-c", "20"), marks=pytest.mark.slow)], ids=["prefork", "gevent"]
)
def test_tasks_go_on_when_a_killed_store_is_restarted(
    new_fleet: NewFleet, limits_store: EmbeddedServer, pool: tuple[str, ...]
) -> None:
    conf = {"broker_transport_options": {"max_connections": 100}}
    with new_fleet(ratelimit_url=limits_store.url, **conf) as fleet:
        fleet.start(*pool, number=2)
        fleet.send_in_turn(BOTH, 400)
        fleet.wait_for(100, 20)
        limits_store.kill()
        limits_store.start()
        fleet.wait_for_each(range(400), 40)
        never_over_by_task(fleet, 100)  # its file knew the buckets: nothing was let through twice
        fleet.assert_no_errors()


@pytest.mark.parametrize("how", ["kill", pytest.param("freeze", marks=pytest.mark.slow)])
def test_defer_delays_only_limited_tasks_while_the_store_is_down(
    new_fleet: NewFleet, store: redis.Redis, limits_store: EmbeddedServer, how: str
) -> None:
    with new_fleet(rate="20/s", ratelimit_url=limits_store.url) as fleet:
        fleet.start()
        getattr(limits_store, how)()
        fleet.send_each("retry", range(50))
        # Unlimited tasks and remote control go on while the store is dead or hangs.
        fleet.send("plain", 1_000).get(timeout=10)
        for index in range(30):
            fleet.send("plain", 1_001 + index).get(timeout=10)
        assert fleet.sender.control.ping(timeout=2)
        time.sleep(2)
        assert {start.index for start in fleet.starts()} == set(range(1_000, 1_031))  # never over: nothing let through
        log = fleet.log()
        assert log.count("WARNING/MainProcess] the limiter's store did not") == 1  # one line, not one a task
        assert "Traceback" not in log
        if how == "kill":
            limits_store.start()
        else:
            limits_store.thaw()
        starts = [start for start in fleet.wait_for(81, 40) if start.index < 50]
        assert sorted(start.index for start in starts) == list(range(50))
        assert_never_over(fleet.permits(), 20)
        until(lambda: "store is back" in fleet.log(), 10, "the end of the outage in the log")


def test_allow_lets_all_tasks_start_while_the_store_is_down(new_fleet: NewFleet, limits_store: EmbeddedServer) -> None:
    conf = {"ratelimit_url": limits_store.url, "ratelimit_on_store_error": "allow"}
    with new_fleet(rate="1/h", **conf) as fleet:
        fleet.start()
        limits_store.kill()
        fleet.send_each("retry", range(100))
        fleet.wait_for(100, 15)  # by the limit it takes four days


@pytest.mark.slow
def test_local_gives_each_worker_its_share_of_rates_and_leases_while_the_store_is_down(
    new_fleet: NewFleet, limits_store: EmbeddedServer
) -> None:
    conf = {"ratelimit_url": limits_store.url, "ratelimit_on_store_error": "local"}
    with new_fleet(rate="40/s", **conf) as fleet:

        def places() -> list[tuple[float, int]]:
            return [(each.at, 1 if each.index >= 0 else -1) for each in fleet.starts() if each.index < 100]

        fleet.start("-c", "3", "-l", "DEBUG", number=2)
        fleet.wait_until_introduced()
        limits_store.kill()
        killed = time.time()
        fleet.send_each("patient_place", range(12), 0.3)
        fleet.send_each("wait", range(100, 220))
        until(lambda: sum(start.index >= 100 for start in fleet.starts()) == 120, 30, "the start of 120")
        # One share for each of the two, which start empty; with nothing that says when a body was let in, the whole
        # is counted: 120 at 40/s take three seconds. Without the shares it would be a moment, or half of that.
        assert max(start.at for start in fleet.starts() if start.index >= 100) - killed >= 118 / 40
        until(lambda: len(places()) >= 12, 20, "the end of some tasks")
        assert most_held(places()) <= 2  # three places, two workers: one each
        limits_store.start()
        until(lambda: len(places()) == 24, 20, "the end of every task")
        assert most_held(places()) <= 3 + 2  # and the tasks that the workers granted themselves


def test_raise_fails_the_task_while_the_store_is_down(new_fleet: NewFleet, limits_store: EmbeddedServer) -> None:
    conf = {"ratelimit_url": limits_store.url, "ratelimit_on_store_error": "raise"}
    with new_fleet(**conf) as fleet:
        fleet.start()
        limits_store.kill()
        with pytest.raises(StoreUnavailable):
            fleet.send("retry", 1).get(timeout=10)
        assert fleet.started() == 0


@pytest.mark.slow
def test_task_held_for_longer_than_the_visibility_timeout_runs_once(new_fleet: NewFleet, store: redis.Redis) -> None:
    """The broker counts from when it hands a message out: the sender's own countdown is part of the time."""
    options = {"visibility_timeout": 4, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    with new_fleet(rate="1/s", broker_transport_options=options) as fleet:
        fleet.start(number=2)
        for index in range(24):
            fleet.send(BOTH[index % 2], index, countdown=3 if index % 4 == 3 else None)
        fleet.wait_for(24, 40)
        until(lambda: not store.exists("celery", "celery.throttled", "unacked"), 20, "every acknowledgement")
        assert sorted(start.index for start in fleet.starts()) == list(range(24))
        never_over_by_task(fleet, 1)


def test_tasks_survive_a_killed_broker_connection(new_fleet: NewFleet, store: redis.Redis) -> None:
    """What the worker holds, or has back from the parking lot, is taken up anew.

    Killed when no message is on its way from the broker: those kombu loses (``BRPOP``), throttled or not.
    """
    with new_fleet(rate="4/s") as fleet:
        fleet.start()
        fleet.send_in_turn(BOTH, 16)
        fleet.wait_for(4, 10)
        until(lambda: fleet.started() + store.hlen("unacked") == 16, 10, "the worker holding all others")
        store.client_kill_filter(_type="normal", skipme=True)
        until(lambda: len({start.index for start in fleet.starts()}) == 16, 40, "every task")
        never_over_by_task(fleet, 4)


@pytest.mark.parametrize(
    "pool", [("-c", "2"), pytest.param(("-P", "gevent", "-c", "20"), marks=pytest.mark.slow)], ids=["prefork", "gevent"]
)
def test_stopped_worker_requeues_all_waiting_tasks(
    new_fleet: NewFleet, limiter: Limiter, store: redis.Redis, pool: tuple[str, ...]
) -> None:
    """Stopped as the next of each kind is in the worker and waits for its turn; no task is just being started."""
    with new_fleet(rate="30/m", broker_transport_options={"max_connections": 100}) as fleet:
        fleet.send_in_turn(("retry", "wait"), 100)
        fleet.start(*pool)
        fleet.wait_for(4, 20)
        until(
            lambda: fleet.sent_back() >= 2 and store.hlen("unacked") >= 2,
            *(10, "the next one being back, a second before its turn"),
        )
        fleet.stop()
        done = fleet.started()
        left = sum(store.llen(queue) for queue in ("celery", "celery.throttled"))
        parked = fleet.parked("tests.apps.fleet.retry")
        assert done + left + parked == 100
        assert store.hlen("unacked") == 0
        for name in ("retry", "wait"):
            limiter.set_rate(f"tests.apps.fleet.{name}", "20/s", force=True)
        fleet.start(*pool)
        fleet.wait_for_each(range(100), 20)
