"""Decisions of limiters and workers are counted; a store that cannot count does not disturb them."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import redis

from benchmarks.servers import Cluster
from celery_ratelimit import Limit, Limiter, StoreUnavailable
from celery_ratelimit.store.keys import count_keys
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT
from tests.fleet_of import Fleet, until
from tests.integration.limiter.either import KINDS, opened

QUOTAS = {
    "api": Limit("1000/s", burst=3, name="api"),
    "slow": Limit("1/h", name="slow"),
    "tenant": Limit("5/s", name="tenant", key="t:{tenant_id}"),
}
NAME = "tests.apps.fleet"


def test_limiter_counts_results_permits_waits_and_keys(limiter: Limiter) -> None:
    limiter.acquire("api", cost=2)
    with limiter.permit("tenant", args={"tenant_id": 7}):
        limiter.acquire("tenant", args={"tenant_id": 7}, max_wait=1)
    limiter.acquire("slow")
    limiter.acquire("slow")
    until(lambda: limiter.stats("slow")["slow"].results["refused"] == 1, 5, "the counts")
    api, tenant, slow = limiter.stats(["api", "tenant", "slow"]).values()
    assert (api.results["acquired"], api.permits) == (1, 2)
    assert tenant.results["acquired"] + tenant.results["waited"] == 2  # a call that takes 10 ms has waited
    assert tenant.results["waited"] >= 1
    assert tenant.waited > 0.1
    assert [(user.kind, user.name) for user in tenant.users] == [("key", "t:7")]
    assert slow.results["acquired"] == 1


def test_counts_on_a_cluster(cluster_store: Cluster) -> None:
    """Law 9 is looked to by the fixture."""
    names = [f"limit {number}" for number in range(9)]
    quotas = dict.fromkeys(names, "10/h")
    with Limiter.from_url(cluster_store.url + PATIENT, quotas=quotas) as limiter:
        for name in names:
            limiter.acquire(name)
        limiter.acquire(names[0])
    with Limiter.from_url(cluster_store.url + PATIENT, quotas=quotas) as limiter:
        told = limiter.stats(names, totals=True).values()
        assert [each.results["acquired"] for each in told] == [1] * 9
        assert [each.results["refused"] for each in told] == [1] + [0] * 8


def test_limiter_without_counts_starts_no_thread(server: EmbeddedServer, store: redis.Redis) -> None:
    before = threading.active_count()
    with Limiter.from_url(server.url + PATIENT, quotas=QUOTAS, counts=False) as limiter:
        limiter.acquire("api")
        assert threading.active_count() == before
    assert not store.exists(*count_keys(limiter.prefix, "api"))


@pytest.mark.parametrize("kind", KINDS)
def test_counts_are_sent_within_seconds_and_at_close_and_the_thread_ends(
    server: EmbeddedServer, store: redis.Redis, kind: Any
) -> None:
    before = set(threading.enumerate())
    with opened(kind, lambda kind: kind.from_url(server.url + PATIENT, quotas=QUOTAS)) as limiter:
        limiter.acquire("api")
        until(lambda: limiter.stats("api")["api"].permits == 1, 5, "the counts")
        until(lambda: set(threading.enumerate()) <= before, 5, "the end of the thread")
        limiter.acquire("api")
    assert set(threading.enumerate()) <= before
    with Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as other:
        assert other.stats("api")["api"].permits == 2


def test_store_that_refuses_counts_is_logged_once_and_decides(
    limiter: Limiter, store: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    for key in count_keys(limiter.prefix, "api"):
        store.set(key, "something else", ex=60)  # of another type than add_counts.lua wants
    for _ in range(3):
        assert limiter.acquire("api").allowed
        assert limiter._counting is not None
        limiter._counting.send()
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1
    assert "figures are missing" in caplog.text


def test_store_that_is_down_adds_no_warning_about_counts(caplog: pytest.LogCaptureFixture) -> None:
    with Limiter.from_url("redis://127.0.0.1:1", quotas=QUOTAS) as limiter, pytest.raises(StoreUnavailable):
        limiter.acquire("api")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_workers_count_outcomes_of_tasks(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    with (
        Fleet(server, tmp_path, rate="20/s") as fleet,
        Limiter.from_url(
            server.url + PATIENT, quotas={f"{NAME}.{task}": "20/s" for task in ("retry", "drop")}
        ) as limiter,
    ):
        for index in range(40):
            fleet.send("retry", index)
        for index in range(10):
            fleet.send("drop", index)
        fleet.start()
        fleet.wait_for(41, 30)

        def counted() -> tuple[int, int]:
            retry, drop = limiter.stats([f"{NAME}.retry", f"{NAME}.drop"], totals=True).values()
            return retry.started, drop.started + drop.results["dropped"]

        until(lambda: counted() == (40, 10), 10, "the counts")
        (retry,) = limiter.stats(f"{NAME}.retry").values()
        assert retry.results["parked"] > 10
        assert retry.results["waited"] >= retry.results["parked"]
        assert {(user.kind, user.name) for user in retry.users} == {("task", f"{NAME}.retry"), ("queue", "celery")}
        assert sum(number for _, number in retry.waits) == 40
        assert retry.waited_at_most(0.5) > 0.5


def test_worker_without_counts_stores_none(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    with Fleet(server, tmp_path, ratelimit_counts=False) as fleet:
        fleet.start()
        for index in range(10):
            fleet.send("retry", index)
        fleet.wait_for(10, 30)
        fleet.stop()
        assert not store.exists(*count_keys("ratelimit", f"{NAME}.retry"))
