"""``install(app)``: limits by task name, pattern and queue, for tasks of every class, on every pool."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from benchmarks.records import Start
from celery_ratelimit import Limit, Limiter
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


def test_plain_process_shares_a_quota_with_the_fleet(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    quotas = {"stripe": "50/s"}
    conf = {"ratelimit_quotas": quotas, "ratelimit_tasks": {"*.plain": "stripe", "*.other": "stripe"}}
    limiter = Limiter.from_url(server.url, quotas={"stripe": Limit("50/s", name="stripe")})
    with Fleet(server, tmp_path, install=True, **conf) as fleet:
        fleet.start(number=2)
        mine = []
        for index in range(50):
            fleet.send("plain", index)
            fleet.send("other", index)
            mine.append(limiter.acquire("stripe", max_wait=5))
        fleet.wait_for(100, 10)
        assert all(decision.allowed for decision in mine)
        ours = [Start(decision._granted_at / 1e6, -1, 0) for decision in mine]
        permits = sorted([*fleet.permits(), *ours])
        assert len(permits) == 150, "two thirds of them the fleet's"
        assert_never_over(permits, 50)
        assert_over(fleet.permits(), 50 / 3)  # no process has a part of it for itself


def test_several_limits_are_taken_together(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    conf = {"ratelimit_tasks": {"*.plain": ["10/s", {"rate": "2000/h", "burst": 20}, {"rate": "1000/h", "burst": 15}]}}
    with Fleet(server, tmp_path, install=True, **conf) as fleet:
        fleet.start()
        for index in range(15):
            fleet.send("plain", index)
        fleet.wait_for(15, 20)
        permits = fleet.permits()
        assert_never_over(permits, 10)
        assert_over(permits, 10 / 2)
        names = {key.split("{")[1].split("}")[0] for key in store.keys("ratelimit:*:state")}
        # The bucket of 10/s is full 100 ms after the last start, and its key goes; hourly buckets stay.
        assert names - {"tests.apps.fleet.plain"} == {f"tests.apps.fleet.plain{suffix}" for suffix in ("%232", "%233")}
