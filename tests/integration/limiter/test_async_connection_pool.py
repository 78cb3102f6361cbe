"""``AsyncLimiter`` when all connections are in use: a caller that is cancelled keeps none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from benchmarks.servers import Cluster, Sentinels
from celery_ratelimit import AsyncLimiter, Limit
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT

API = Limit("10/s", name="api")


@pytest.fixture(params=["one", "sentinel", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    """Of each kind of store, an empty one."""
    if request.param == "sentinel":
        sentinels: Sentinels = request.getfixturevalue("sentinel_store")
        return f"{sentinels.url}/0{PATIENT}&service_name={Sentinels.NAME}"
    if request.param == "cluster":
        cluster: Cluster = request.getfixturevalue("cluster_store")
        return cluster.url + PATIENT
    server: EmbeddedServer = request.getfixturevalue("server")
    store: redis.Redis = request.getfixturevalue("store")
    assert store.ping()
    return server.url + PATIENT


def pool_of(limiter: AsyncLimiter) -> Any:
    """The shared pool; of a cluster, the pool of the node that was asked."""
    if limiter._asker._cluster is None:
        limiter._asker.link._own_is_free = False  # its own connection is in use
        return limiter.client.connection_pool
    (node,) = limiter._asker._cluster._nodes.values()
    return node.connection_pool


async def turns(number: int = 20) -> None:
    """Of the loop: enough for everything that needs no reply of the store."""
    for _ in range(number):
        await asyncio.sleep(0)


def test_connection_freed_for_a_cancelled_caller_goes_to_the_next(url: str) -> None:
    async def main() -> None:
        async with AsyncLimiter.from_url(url, max_connections=1, timeout=5.0) as limiter:
            await limiter.peek(API)
            pool = pool_of(limiter)
            held = pool.get_available_connection()
            first, second = [asyncio.create_task(limiter.peek(API)) for _ in range(2)]
            await turns()
            await pool.release(held)  # which wakes the first
            first.cancel()
            had = set()
            for _ in range(20):
                await turns(1)
                had |= pool._in_use_connections
            assert first.cancelled()
            assert had == {held}, "the connection is free, and a caller waits for one"
            assert (await second).allowed

    asyncio.run(main())
