"""A result backend that hangs, is slow, refuses or is full does not stop a worker that ends tasks."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
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
    kind: str, server: EmbeddedServer, directory: Path, *options: str, app: str = "tests.apps.fleet", **conf: Any
) -> Iterator[Fleet]:
    conf["ratelimit_url"] = server.url
    with backend(kind, server) as url, Fleet(server, directory, rate="1/h", app=app, **conf) as fleet:
        fleet.env["TEST_BACKEND"] = url
        fleet.start(*options)
        yield fleet


def lines(fleet: Fleet, result: AsyncResult) -> int:
    return len(re.findall(rf"ERROR.*\[{result.id}\] ends, but ", fleet.log()))


def all_end(fleet: Fleet, ended: Sequence[AsyncResult], *, may_be_stored: bool = False) -> None:
    """Unlimited tasks, which store nothing, start beside tasks that a limit ends, with an error line for each."""
    for index in range(TASKS):
        fleet.send("plain", 100 + index, ignore_result=True)
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
    tasks = ("drop", "fail", "impatient")
    with fleet_with(new_fleet, "hung", server) as fleet:
        for task in tasks:
            fleet.send(task, 0, ignore_result=True)
        fleet.wait_for(len(tasks), 10)
        all_end(fleet, [fleet.send(task, 1 + index) for task in tasks for index in range(TASKS)])
        assert fleet.log().count(NOT_STORED) == len(tasks) * TASKS
        nothing_is_left(fleet, store)


@pytest.mark.slow
def test_worker_goes_on_when_states_of_expired_and_coalesced_tasks_cannot_be_stored(
    new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis
) -> None:
    """Not revoked ones: the command to revoke asks the backend in the worker's loop, in any worker of Celery."""
    with fleet_with(new_fleet, "hung", server) as fleet:
        for task in ("retry", "newest"):
            fleet.send(task, 0, *(["all"] if task == "newest" else []), ignore_result=True)
        fleet.wait_for(2, 10)
        expired = [fleet.send("retry", 1 + index, expires=2) for index in range(TASKS)]
        *coalesced, _ = (fleet.send("newest", 1 + index, "all") for index in range(TASKS + 1))
        all_end(fleet, [*expired, *coalesced])
        assert fleet.log().count(NOT_STORED) == 2 * TASKS
        nothing_is_left(fleet, store)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["refusing", "full", "slow"])
def test_worker_goes_on_with_a_refusing_full_or_slow_backend(
    new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis, kind: str
) -> None:
    with fleet_with(new_fleet, kind, server) as fleet:
        fleet.send("drop", 0, ignore_result=True)
        fleet.wait_for(1, 10)
        ended = [fleet.send("drop", 1 + index) for index in range(TASKS)]
        all_end(fleet, ended, may_be_stored=kind == "slow")
        assert kind == "slow" or fleet.log().count("ends, but its result backend raised ") == TASKS
        assert {"full": "command not allowed when used memory", "refusing": "Connection refused"}.get(
            kind, ""
        ) in fleet.log()
        nothing_is_left(fleet, store)


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


@pytest.mark.parametrize("on_rabbitmq", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["redis", "rabbitmq"])
def test_stopping_worker_waits_until_states_are_stored(
    new_fleet: NewFleet, request: pytest.FixtureRequest, server: EmbeddedServer, store: redis.Redis, on_rabbitmq: bool
) -> None:
    """Its messages are acknowledged as its loop has ended."""
    conf = {"broker": request.getfixturevalue("broker").url if on_rabbitmq else server.url, "ratelimit_url": server.url}
    with far_away(server, 0.3) as url, new_fleet(rate="1/h", **conf) as fleet:
        fleet.env["TEST_BACKEND"] = url
        fleet.start()
        fleet.send("drop", 0, ignore_result=True)
        fleet.wait_for(1, 10)
        ended = [fleet.send("drop", 1 + index) for index in range(3)]
        until(lambda: fleet.log().count("dropped, a permit") == 3, 10, "all being dropped")
        fleet.workers[0].send_signal(signal.SIGTERM)
        fleet.workers[0].wait(60)
        assert [each.state for each in ended] == ["REVOKED"] * 3
        assert NOT_STORED not in fleet.log()
        if on_rabbitmq:
            assert request.getfixturevalue("broker").ready("celery") == 0
        else:
            assert not store.exists("unacked", "celery")


def test_stopping_worker_requeues_tasks_whose_states_are_not_stored(
    new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis
) -> None:
    with fleet_with(new_fleet, "hung", server) as fleet:
        fleet.send("drop", 0, ignore_result=True)
        fleet.wait_for(1, 10)
        ended = [fleet.send("drop", 1 + index) for index in range(TASKS)]
        until(lambda: fleet.log().count("dropped, a permit") == TASKS, 10, "all being dropped")
        fleet.workers[0].send_signal(signal.SIGTERM)
        fleet.workers[0].wait(60)
        assert [lines(fleet, each) for each in ended] == [1] * TASKS
        assert fleet.log().count(f"{NOT_STORED}this worker stops") == TASKS
        assert (store.llen("celery"), store.hlen("unacked")) == (TASKS, 0)
