"""A result backend that hangs, is slow, refuses or is full does not stop a worker that ends tasks."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis
from celery.result import AsyncResult

from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.far_away import far_away, listening
from tests.fleet_of import Fleet, NewFleet, until
from tests.rabbitmq import Broker

#: Tasks of each kind.
TASKS = 20
NOT_STORED = "ends, but its state is not in the result backend: "


@contextmanager
def backend(kind: str, server: EmbeddedServer) -> Iterator[str]:
    """The address of a result backend that is out of order."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    if kind == "hung":  # it accepts connections, and never answers
        with listening(connected) as url:
            yield url
    elif kind == "slow":  # two seconds for an answer, and there are several to a state
        with far_away(server, 2.0) as url:
            yield url
    elif kind == "full":
        with embedded_server() as small, redis.Redis.from_url(small.url) as client:
            client.config_set("maxmemory", 1)
            yield small.url
    else:
        yield "redis://127.0.0.1:1/0"


@contextmanager
def fleet_with(
    new_fleet: NewFleet, kind: str, server: EmbeddedServer, *options: str, taken: Sequence[str] = ("drop",), **conf: Any
) -> Iterator[Fleet]:
    """A worker of a result backend that is out of order; the permits of these tasks are taken."""
    with backend(kind, server) as url, new_fleet(rate="1/h", ratelimit_url=server.url, **conf) as fleet:
        fleet.env["TEST_BACKEND"] = url
        fleet.start(*options)
        for task in taken:
            fleet.send(task, 0, ignore_result=True)
        fleet.wait_for(len(taken), 10)
        yield fleet


def lines(fleet: Fleet, result: AsyncResult) -> int:
    return len(re.findall(rf"ERROR.*\[{result.id}\] ends, but ", fleet.log()))


def all_end(fleet: Fleet, ended: Sequence[AsyncResult], *, may_be_stored: bool = False) -> None:
    """Unlimited tasks, which store nothing, start beside tasks that a limit ends, with an error line for each."""
    fleet.send_each("plain", range(100, 100 + TASKS), ignore_result=True)
    expected = set(range(100, 100 + TASKS))
    until(lambda: expected <= {start.index for start in fleet.starts()}, 10, f"each unlimited task\n{fleet.log()}")

    def has_ended(result: AsyncResult) -> bool:
        return lines(fleet, result) == 1 or (may_be_stored and result.state in ("REVOKED", "FAILURE"))

    until(lambda: all(map(has_ended, ended)), 20, f"the end of each\n{fleet.log()}")


def nothing_is_left(fleet: Fleet, store: redis.Redis) -> None:
    until(lambda: not store.exists("unacked", "celery", "celery.throttled"), 10, "all messages being acknowledged")
    fleet.stop()


def test_worker_goes_on_when_states_of_tasks_ended_by_a_limit_cannot_be_stored(
    new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis
) -> None:
    """Not revoked ones: the command to revoke asks the backend in the worker's loop, in any worker of Celery."""
    tasks = ("drop", "fail", "impatient")
    with fleet_with(new_fleet, "hung", server, taken=(*tasks, "retry")) as fleet:
        fleet.send("newest", 0, "all", ignore_result=True)
        fleet.wait_for(5, 10)
        ended = [result for task in tasks for result in fleet.send_each(task, range(1, 1 + TASKS))]
        ended += fleet.send_each("retry", range(1, 1 + TASKS), expires=2)
        *coalesced, _ = fleet.send_each("newest", range(1, 2 + TASKS), "all")
        all_end(fleet, [*ended, *coalesced])
        assert fleet.log().count(NOT_STORED) == 5 * TASKS
        nothing_is_left(fleet, store)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "app", "pool", "broker_url"),
    [
        ("refusing", "fleet", "prefork", "redis"),
        ("full", "fleet", "prefork", "redis"),
        ("slow", "fleet", "prefork", "redis"),
        ("hung", "fleet", "solo", "redis"),
        ("hung", "fleet", "gevent", "redis"),
        ("hung", "fleet", "prefork", "rabbitmq"),
        ("hung", "loopless", "threads", "rabbitmq"),
    ],
    indirect=["broker_url"],
)
def test_worker_goes_on_with_other_faults_pools_and_brokers(
    new_fleet: NewFleet,
    server: EmbeddedServer,
    store: redis.Redis,
    broker_url: str,
    kind: str,
    app: str,
    pool: str,
) -> None:
    conf = {"app": f"tests.apps.{app}", "broker": broker_url}
    with fleet_with(new_fleet, kind, server, "-P", pool, "-c", "1" if pool == "solo" else "2", **conf) as fleet:
        all_end(fleet, fleet.send_each("drop", range(1, 1 + TASKS)), may_be_stored=kind == "slow")
        if kind in ("full", "refusing"):
            assert fleet.log().count("ends, but its result backend raised ") == TASKS
            reason = {"full": "command not allowed when used memory", "refusing": "Connection refused"}[kind]
            assert reason in fleet.log()
        nothing_is_left(fleet, store)
        if broker_url != server.url:
            assert Broker(broker_url).ready("celery") == 0
            assert "Traceback" not in fleet.log()


@pytest.mark.slow
def test_distant_backend_stores_every_state(new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis) -> None:
    """Each takes some 30 ms, and all of them longer than the deadline of a backend that hangs."""
    with far_away(server, 0.01) as url, new_fleet(rate="1/h", worker_prefetch_multiplier=0) as fleet:
        fleet.env["TEST_BACKEND"] = url
        ended = fleet.send_each("drop", range(800))[1:]
        fleet.start()
        until(lambda: not store.exists("unacked", "celery"), 60, f"the end of each\n{fleet.log()[-2000:]}")
        assert sum(each.state == "REVOKED" for each in ended) >= len(ended) - 1, "one has the permit"
        assert NOT_STORED not in fleet.log()


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["solo", "gevent"])
def test_worker_of_another_pool_goes_on_with_a_hung_backend(
    new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis, pool: str
) -> None:
    if pool == "gevent":
        pytest.importorskip(pool, reason=f"there is no {pool} here: pip install {pool}")
    with fleet_with(new_fleet, "hung", server, "-P", pool, "-c", "1" if pool == "solo" else "2") as fleet:
        fleet.send("drop", 0, ignore_result=True)
        fleet.wait_for(1, 10)
        all_end(fleet, [fleet.send("drop", 1 + index) for index in range(TASKS)])
        nothing_is_left(fleet, store)


@pytest.mark.slow
@pytest.mark.parametrize(("pool", "app"), [("prefork", "tests.apps.fleet"), ("threads", "tests.apps.loopless")])
def test_on_rabbitmq(new_fleet: NewFleet, server: EmbeddedServer, broker: Broker, pool: str, app: str) -> None:
    with fleet_with(new_fleet, "hung", server, "-P", pool, "-c", "2", app=app, broker=broker.url) as fleet:
        fleet.send("drop", 0, ignore_result=True)
        fleet.wait_for(1, 10)
        all_end(fleet, [fleet.send("drop", 1 + index) for index in range(TASKS)])
        fleet.stop()
        assert broker.ready("celery") == 0
        assert "Traceback" not in fleet.log()


def test_stopping_worker_waits_until_states_are_stored(
    new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis, broker_url: str
) -> None:
    """Its messages are acknowledged as its loop has ended."""
    with far_away(server, 0.3) as url, new_fleet(rate="1/h", broker=broker_url, ratelimit_url=server.url) as fleet:
        fleet.env["TEST_BACKEND"] = url
        fleet.start()
        fleet.send("drop", 0, ignore_result=True)
        fleet.wait_for(1, 10)
        ended = fleet.send_each("drop", range(1, 4))
        until(lambda: fleet.log().count("dropped, a permit") == 3, 10, "all being dropped")
        fleet.workers[0].send_signal(signal.SIGTERM)
        fleet.workers[0].wait(60)
        assert [each.state for each in ended] == ["REVOKED"] * 3
        assert NOT_STORED not in fleet.log()
        assert not store.exists("unacked", "celery")
        assert broker_url == server.url or Broker(broker_url).ready("celery") == 0


def test_stopping_worker_requeues_tasks_whose_states_are_not_stored(
    new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis
) -> None:
    with fleet_with(new_fleet, "hung", server) as fleet:
        ended = fleet.send_each("drop", range(1, 1 + TASKS))
        until(lambda: fleet.log().count("dropped, a permit") == TASKS, 10, "all being dropped")
        fleet.workers[0].send_signal(signal.SIGTERM)
        fleet.workers[0].wait(60)
        assert [lines(fleet, each) for each in ended] == [1] * TASKS
        assert fleet.log().count(f"{NOT_STORED}this worker stops") == TASKS
        assert (store.llen("celery"), store.hlen("unacked")) == (TASKS, 0)
