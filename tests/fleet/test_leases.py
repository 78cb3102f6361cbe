"""A lease belongs to one run of a task: a copy delivered meanwhile waits for its own lease."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from benchmarks import records
from celery_ratelimit.testing import EmbeddedServer
from tests.far_away import relay
from tests.fleet_of import Fleet, until

#: Of ``Concurrency(2)``, and seconds that each task takes.
LEASES, SECONDS = 2, 1.5


def most_at_once(beats: Iterable[records.Start]) -> int:
    """The most runs that went on at the same time; each from its first beat to its last one."""
    first: dict[tuple[int, int], float] = {}
    last: dict[tuple[int, int], float] = {}
    for beat in beats:
        run = beat.index, beat.status
        first.setdefault(run, beat.at)
        last[run] = beat.at
    changes = sorted([(at, 1) for at in first.values()] + [(at, -1) for at in last.values()])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


@pytest.mark.parametrize(
    ("kind", "pool", "cancels"),
    [
        ("redis", "prefork", True),
        ("rabbitmq", "prefork", False),
        ("redis", "threads", False),
        pytest.param("rabbitmq", "gevent", False, marks=pytest.mark.slow),
    ],
)
def test_concurrency_limit_holds_while_broker_connections_are_lost(
    server: EmbeddedServer,
    store: redis.Redis,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    kind: str,
    pool: str,
    cancels: bool,
) -> None:
    conf = {"worker_cancel_long_running_tasks_on_connection_loss": cancels, "ratelimit_url": server.url}
    behind: Any = server
    if kind == "redis":  # kombu hands out anew what is not acknowledged for so long
        conf["broker_transport_options"] = {"visibility_timeout": 2, "unacked_restore_throttle": 1}
    else:
        url = urlsplit(request.getfixturevalue("broker").url)
        behind = SimpleNamespace(port=url.port)
    with relay(behind) as between:
        port = urlsplit(between.url).port
        at = between.url if kind == "redis" else f"amqp://guest:guest@127.0.0.1:{port}{url.path}"
        with Fleet(server, tmp_path, broker=at, **conf) as fleet:
            fleet.start("-P", pool, "-c", "2", number=2)
            for index in range(6):
                fleet.send("pair", index, SECONDS)
            for _ in range(3):
                time.sleep(1.9)
                between.cut()
            until(lambda: len({start.index for start in fleet.starts()}) == 6, 40, "the end of every task")
            assert most_at_once(records.read(tmp_path / "beats")) == LEASES
            until(lambda: not store.zcount("ratelimit:v1:{pair}::leases", 1, "+inf"), 20, "the release of every lease")
