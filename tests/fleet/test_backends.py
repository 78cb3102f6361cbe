"""A result backend that hangs, is slow, refuses or is full does not stop a worker: it ends tasks that a limit ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_ratelimit.testing import EmbeddedServer
from tests.far_away import far_away, listening
from tests.fleet_of import Fleet, until

#: Tasks of each kind.
TASKS = 20
NOT_STORED = "its state is not in the result backend"


@contextmanager
def hung(server: EmbeddedServer) -> Iterator[str]:
    """A server that accepts connections, and never answers."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    with listening(connected) as url:
        yield url


@contextmanager
def refusing(server: EmbeddedServer) -> Iterator[str]:
    yield "redis://127.0.0.1:1/0"


@contextmanager
def full(server: EmbeddedServer) -> Iterator[str]:
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", 1)
        try:
            yield server.url
        finally:
            client.config_set("maxmemory", 0)


@contextmanager
def slow(server: EmbeddedServer) -> Iterator[str]:
    """Each answer takes two seconds, and a state takes several."""
    with far_away(server, 2.0) as url:
        yield url


Backend = Callable[[EmbeddedServer], AbstractContextManager[str]]


def unlimited_tasks_start(fleet: Fleet, ended: list[Any]) -> None:
    """Beside tasks that a limit ends, the worker starts unlimited ones, which store nothing. All messages end."""
    for index in range(TASKS):
        fleet.send("plain", 100 + index, ignore_result=True)
    expected = set(range(100, 100 + TASKS))
    until(lambda: expected <= {start.index for start in fleet.starts()}, 10, f"each unlimited task\n{fleet.log()}")
    until(lambda: all(said(fleet, each) == 1 for each in ended), 20, f"a line for each that has ended\n{fleet.log()}")


def said(fleet: Fleet, result: Any) -> int:
    return fleet.log().count(f"[{result.id}] ends, but ")


@pytest.mark.parametrize("kind", ["drop", "fail", "impatient"])
def test_a_hung_backend(server: EmbeddedServer, store: redis.Redis, tmp_path: Path, kind: str) -> None:
    with hung(server) as url, Fleet(server, tmp_path, rate="1/h") as fleet:
        fleet.env["TEST_BACKEND"] = url
        fleet.start()
        fleet.send(kind, 0, ignore_result=True)
        fleet.wait_for(1, 10)
        ended = [fleet.send(kind, 1 + index) for index in range(TASKS)]
        unlimited_tasks_start(fleet, ended)
        assert fleet.log().count(NOT_STORED) == TASKS
        until(lambda: store.hlen("unacked") == 0, 10, "all messages being acknowledged")
        fleet.stop()
