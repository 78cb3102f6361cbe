"""Servers for the suite: started once on free loopback ports, emptied before every test, stopped at the end."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
import redis
from celery import _state

from benchmarks.clock import STANDING
from benchmarks.servers import Cluster, Sentinels, cluster, sentinels
from celery_ratelimit import Limiter
from celery_ratelimit.testing import EmbeddedServer, embedded_server

if TYPE_CHECKING:
    from tests.rabbitmq import Broker, RabbitMQ

#: Keys of what people put there: stored limits and pauses, parked tasks.
STAYS = re.compile(
    r".*:(config|shadow|weights|(parked|payloads|in_flight|ack_unconfirmed|expiring|suspended|shares|turns|due|task_index"
    r"|suspended_lots|costs|unique)@\w+)"
)

#: Added to a store's URL where its time-outs are not the matter: they are half a second, which a busy machine may take.
PATIENT = "?socket_timeout=10&socket_connect_timeout=10"

#: 2026-01-01, in microseconds.
START = 1_767_225_600_000_000


def leave_rows_to_test_all(items: list[pytest.Item]) -> None:
    """Mark as ``slow`` all rows of a table but as many as its mark ``rows`` says: the same ones in each run."""
    tables: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("rows"):
            tables.setdefault(item.nodeid.split("[")[0], []).append(item)
    for name, rows in tables.items():
        (kept,) = rows[0].get_closest_marker("rows").args  # type: ignore[union-attr]
        for item in Random(name).sample(rows, max(0, len(rows) - kept)):
            item.add_marker("slow")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put a file of ``tests/fleet`` or ``tests/web``, which waits for most of its time, between two that compute.

    ``make test`` gives the files to its processes in this order.
    """
    leave_rows_to_test_all(items)
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting: list[list[pytest.Item]] = []
    others: list[list[pytest.Item]] = []
    for path, tests in files.items():
        (waiting if path.parent.name in ("fleet", "web") else others).append(tests)
    items[:] = chain.from_iterable(chain.from_iterable(zip_longest(waiting, others, fillvalue=[])))


def pytest_collection_finish() -> None:
    """What was imported and collected stays: Python's collector need not look through it, which takes a tenth of a
    second, in the middle of a test that looks at the clock.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _garbage_of_other_files() -> None:
    """Celery's results unsubscribe from the store when they are collected: not while another file counts commands."""
    gc.collect()


@pytest.fixture(autouse=True)
def _tasks_of_its_own() -> Iterator[None]:
    """A task is put into every app that is finalized later (``shared``): not into those of other tests."""
    before = set(_state._on_app_finalizers)
    yield
    _state._on_app_finalizers.intersection_update(before)


@pytest.fixture(autouse=True)
def _counts_of_its_own() -> Iterator[None]:
    """What a test's limiters have counted, and not told yet, is not for the store of the next test."""
    yield
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer) and thread.name == "celery_ratelimit-counts":
            thread.cancel()


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """The real store that most tests share; which one is ``$RATELIMIT_TEST_SERVER``'s choice."""
    with embedded_server() as running:
        yield running


@pytest.fixture(scope="session")
def running_cluster() -> Iterator[Cluster]:
    with cluster() as running:
        yield running


@pytest.fixture
def cluster_store(running_cluster: Cluster) -> Iterator[Cluster]:
    """Three masters that know of no keys; after the test every key must expire by itself (law 9)."""
    running_cluster.wait_until_whole()
    running_cluster.flush()
    yield running_cluster
    eternal = [
        key
        for client in running_cluster.clients
        for key in client.keys("ratelimit:*")
        if client.pttl(key) == -1 and not STAYS.fullmatch(key)
    ]
    assert not eternal, f"keys without a time to live: {eternal}"


@pytest.fixture(scope="session")
def running_sentinels() -> Iterator[Sentinels]:
    with sentinels() as running:
        yield running


@pytest.fixture
def sentinel_store(running_sentinels: Sentinels) -> Sentinels:
    """A master and a replica that are both alive, and empty, whatever the test before has done to them."""
    running_sentinels.mend()
    with redis.Redis.from_url(running_sentinels.master.url) as client:
        client.flushall()
    return running_sentinels


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """A node that all processes of a run share; its tests are skipped without Debian's package ``rabbitmq-server``."""
    from tests.rabbitmq import shared_node, skip_without_server

    skip_without_server()
    own = tmp_path_factory.getbasetemp()
    with shared_node(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) as running:
        yield running


@pytest.fixture
def broker(rabbitmq: RabbitMQ) -> Broker:
    """A virtual host of RabbitMQ that no other test has touched."""
    return rabbitmq.broker()


@pytest.fixture
def store(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A client of the store, which is empty. After the test every key of ours must expire by itself (law 9), except
    for what people stored.
    """
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        client.flushall()
        yield client
        keys = [key for key in client.scan_iter("ratelimit:*") if not STAYS.fullmatch(key)]
        eternal = [key for key in keys if client.pttl(key) == -1]
        assert not eternal, f"keys without a time to live: {eternal}"


@pytest.fixture
def limiter(server: EmbeddedServer, store: redis.Redis) -> Limiter:
    """A limiter on the real clock."""
    return Limiter.from_url(server.url + PATIENT)


class Clock:
    """The frozen clock of a store, in microseconds since 1970."""

    def __init__(self, store: redis.Redis) -> None:
        self._store = store
        self.set(START)

    def set(self, us: int) -> None:
        self.us = us
        self._store.set("test:clock", us)

    def advance(self, seconds: float) -> None:
        self.set(self.us + round(seconds * 1e6))


@pytest.fixture
def clock(store: redis.Redis) -> Clock:
    return Clock(store)


@pytest.fixture
def frozen(server: EmbeddedServer, clock: Clock) -> Limiter:
    """A limiter whose scripts read ``clock`` instead of the time."""
    client = redis.Redis.from_url(server.url)
    return Limiter(client, replace_includes={"now": STANDING}, counts=False)
