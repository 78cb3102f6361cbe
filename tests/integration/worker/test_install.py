"""``install(app)``: limits by task name, pattern and queue, for tasks of every class, on every pool."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, assert_never_over, assert_over


@pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(pool, marks=pytest.mark.slow) for pool in ("threads", "solo"))]
)
def test_tasks_are_limited_by_name_pattern_and_queue(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, pool: str
) -> None:
    conf = {
        "ratelimit_quotas": {"shared": {"rate": "20/s", "burst": 2}},
        "ratelimit_tasks": {"tests.apps.fleet.pl*": ["shared"]},
        "ratelimit_queues": {"emails": "10/s"},
    }
    with Fleet(server, tmp_path, install=True, **conf) as fleet:
        fleet.start("-P", pool, "-Q", "celery,emails", number=2)
        for index in range(40):
            fleet.send("plain", index)
        for index in range(20):  # two tasks, one queue, one limit
            fleet.send(("other", "third")[index % 2], 100 + index, queue="emails")
        fleet.wait_for(60, 30)
        permits = fleet.permits()
        plain = [permit for permit in permits if permit.index < 40]
        emails = [permit for permit in permits if permit.index >= 100]
        assert (len(plain), len(emails)) == (40, 20)
        assert_never_over(plain, 20, burst=2)
        assert_never_over(emails, 10)
        assert_over(emails, 10 / 2)  # each pays once
        assert set(store.keys("ratelimit:*:state")) <= {"ratelimit:v1:{shared}::state", "ratelimit:v1:{emails}::state"}


def test_task_limited_by_settings_and_base_class_takes_one_permit(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    name = "tests.apps.fleet.retry"
    conf = {"ratelimit_tasks": {name: "20/s", "tests.*": "20/s"}}
    with Fleet(server, tmp_path, install=True, rate="20/s", **conf) as fleet:
        fleet.start()
        for index in range(41):
            fleet.send("retry", index)
        fleet.wait_for(41, 20)
        permits = fleet.permits()
        assert_never_over(permits, 20)
        assert_over(permits, 20 / 2)
