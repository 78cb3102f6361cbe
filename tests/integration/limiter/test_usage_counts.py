"""What is decided is counted, by whom ever: limiters, awaited ones, workers; and it harms nobody where it cannot be."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import threading
from pathlib import Path

import pytest
import redis

from benchmarks.servers import Cluster
from celery_ratelimit import AsyncLimiter, Limit, Limiter, StoreUnavailable
from celery_ratelimit.store.keys import count_keys
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, until

QUOTAS = {"api": Limit("1000/s", burst=3, name="api"), "tenant": Limit("5/s", name="tenant", key="t:{tenant_id}")}
NAME = "tests.apps.fleet"


def some(limiter: Limiter) -> dict[str, int]:
    return {outcome: number for outcome, number in limiter.stats("api")["api"].results.items() if number}


def test_a_limiter_counts_and_tells_within_a_second(server: EmbeddedServer, store: redis.Redis) -> None:
    with Limiter.from_url(server.url, quotas={**QUOTAS, "slow": "1/h"}) as limiter:
        limiter.acquire("api", cost=2)
        with limiter.permit("tenant", args={"tenant_id": 7}):
            limiter.acquire("tenant", args={"tenant_id": 7}, max_wait=1)
        limiter.acquire("slow")
        limiter.acquire("slow")
        until(lambda: limiter.stats("slow")["slow"].results["refused"] == 1, 5, "the counts")
        api, tenant, slow = limiter.stats(["api", "tenant", "slow"]).values()
        assert (api.results["acquired"], api.permits) == (1, 2)
        assert (tenant.results["acquired"], tenant.results["waited"]) == (1, 1)
        assert 0.1 < tenant.waited < 1
        assert [(user.kind, user.name) for user in tenant.users] == [("key", "t:7")]
        assert slow.results["acquired"] == 1


def test_on_a_cluster(cluster_store: Cluster) -> None:
    """Law 9 is looked to by the fixture."""
    names = [f"limit {number}" for number in range(9)]
    quotas = dict.fromkeys(names, "10/h")
    with Limiter.from_url(cluster_store.url, quotas=quotas) as limiter:
        for name in names:
            limiter.acquire(name)
        limiter.acquire(names[0])
    with Limiter.from_url(cluster_store.url, quotas=quotas) as limiter:
        told = limiter.stats(names, totals=True).values()
        assert [each.results["acquired"] for each in told] == [1] * 9
        assert [each.results["refused"] for each in told] == [1] + [0] * 8


def test_what_is_left_is_told_at_the_end(server: EmbeddedServer, store: redis.Redis) -> None:
    with Limiter.from_url(server.url, quotas=QUOTAS) as limiter:
        limiter.acquire("api")
    with Limiter.from_url(server.url, quotas=QUOTAS) as limiter:
        assert some(limiter) == {"acquired": 1}


def test_an_awaited_limiter_counts(server: EmbeddedServer, store: redis.Redis) -> None:
    async def main() -> None:
        async with AsyncLimiter.from_url(server.url, quotas=QUOTAS) as limiter:
            await limiter.acquire("api")
            for _ in range(100):
                if (await limiter.stats("api"))["api"].permits:
                    break
                await asyncio.sleep(0.1)
            assert (await limiter.stats("api"))["api"].permits == 1
            async with limiter.permit("api"):
                pass

    asyncio.run(main())
    with Limiter.from_url(server.url, quotas=QUOTAS) as limiter:
        assert some(limiter) == {"acquired": 2}


def test_who_is_told_not_to_count_does_nothing(server: EmbeddedServer, store: redis.Redis) -> None:
    before = threading.active_count()
    with Limiter.from_url(server.url, quotas=QUOTAS, counts=False) as limiter:
        limiter.acquire("api")
        assert threading.active_count() == before
    assert not store.exists(*count_keys(limiter.prefix, "api"))


def test_who_decides_nothing_tells_nothing(server: EmbeddedServer, store: redis.Redis) -> None:
    with Limiter.from_url(server.url, quotas=QUOTAS) as limiter:
        limiter.acquire("api")
        until(lambda: limiter.stats("api")["api"].permits == 1, 5, "the counts")
        until(lambda: not [t for t in threading.enumerate() if t.name == "celery_ratelimit-counts"], 5, "the thread")


def test_a_limiter_that_is_closed_leaves_no_thread_and_counts_when_it_is_used_again(
    server: EmbeddedServer, store: redis.Redis
) -> None:
    before = set(threading.enumerate())
    limiter = Limiter.from_url(server.url, quotas=QUOTAS)
    for _ in range(2):
        limiter.acquire("api")
        limiter.close()
        assert set(threading.enumerate()) <= before
    assert limiter.stats("api")["api"].permits == 2
    limiter.acquire("api")
    until(lambda: limiter.stats("api")["api"].permits == 3, 5, "the counts")
    limiter.close()


def _in_a_fork(limiter: Limiter) -> None:
    limiter.acquire("api")
    limiter.close()


def test_a_fork_counts_what_it_decides_and_nothing_twice(server: EmbeddedServer, store: redis.Redis) -> None:
    with Limiter.from_url(server.url, quotas=QUOTAS) as limiter:
        limiter.acquire("api")
        child = multiprocessing.get_context("fork").Process(target=_in_a_fork, args=(limiter,))
        child.start()
        child.join(20)
        assert child.exitcode == 0
    with Limiter.from_url(server.url, quotas=QUOTAS) as limiter:
        assert some(limiter) == {"acquired": 2}


def test_a_store_that_refuses_to_count_is_said_once_and_decides_all_the_same(
    server: EmbeddedServer, store: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with Limiter.from_url(server.url, quotas=QUOTAS) as limiter:
        for key in count_keys(limiter.prefix, "api"):
            store.set(key, "something else", ex=60)  # of another type than add_counts.lua wants
        for _ in range(3):
            assert limiter.acquire("api").allowed
            assert limiter._counting is not None
            limiter._counting.send()
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1
    assert "figures are missing" in caplog.text


def test_a_store_that_is_down_is_no_more_than_it_was(caplog: pytest.LogCaptureFixture) -> None:
    with Limiter.from_url("redis://127.0.0.1:1", quotas=QUOTAS) as limiter, pytest.raises(StoreUnavailable):
        limiter.acquire("api")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_workers_count_what_becomes_of_tasks(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    with (
        Fleet(server, tmp_path, rate="20/s") as fleet,
        Limiter.from_url(server.url, quotas={f"{NAME}.{task}": "20/s" for task in ("retry", "drop")}) as limiter,
    ):
        fleet.start()
        for index in range(40):
            fleet.send("retry", index)
        for index in range(10):
            fleet.send("drop", index)
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
        assert 0.5 < retry.waited_at_most(0.5) <= 5


def test_a_worker_that_is_told_not_to_counts_nothing(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    with Fleet(server, tmp_path, ratelimit_counts=False) as fleet:
        fleet.start()
        for index in range(10):
            fleet.send("retry", index)
        fleet.wait_for(10, 30)
        fleet.stop()
        assert not store.exists(*count_keys("ratelimit", f"{NAME}.retry"))
