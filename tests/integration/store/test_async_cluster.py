"""``AsyncLimiter`` on a cluster: many callers, few connections, also while slots move and nodes die."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from benchmarks.servers import Cluster
from celery_ratelimit import AsyncLimiter, Decision, Limit, StoreUnavailable
from tests.conftest import PATIENT

#: A thousand callers wait for ten connections: on a busy machine longer than a call usually takes.
TIMEOUTS = "?socket_timeout=100&socket_connect_timeout=100&timeout=100"

ONE = Limit("100000/s", burst=10_000, name="a")
SPREAD = [Limit("100000/s", burst=10_000, name=name) for name in ("a", "b", "c")]


def connections(cluster: Cluster) -> list[int]:
    return [client.info("stats")["total_connections_received"] for client in cluster.clients]


async def at_once(limiter: AsyncLimiter, limits: Any, callers: int) -> list[Decision | BaseException]:
    return await asyncio.gather(
        *[limiter.acquire(limits, max_wait=100) for _ in range(callers)], return_exceptions=True
    )


def outcomes(answers: Sequence[Decision | BaseException]) -> Counter[str]:
    return Counter(f"allowed: {each.allowed}" if isinstance(each, Decision) else repr(each) for each in answers)


@pytest.mark.parametrize(
    ("callers", "limits", "options", "most"),
    [
        (25, ONE, {}, 10),
        (25, SPREAD, {}, 10),
        (1_000, ONE, {}, 10),
        (1_000, SPREAD, {}, 10),
        (200, ONE, {"max_connections": 2}, 2),
    ],
)
def test_many_callers_share_few_connections_to_each_node(
    cluster_store: Cluster, callers: int, limits: Any, options: dict[str, Any], most: int
) -> None:
    async def main() -> None:
        async with AsyncLimiter.from_url(cluster_store.url + TIMEOUTS, **options) as limiter:
            for _ in range(3):
                assert outcomes(await at_once(limiter, limits, callers)) == {"allowed: True": callers}

    before = connections(cluster_store)
    asyncio.run(main())
    own = 3  # which nodes there are, and what they can do, is asked apart
    assert all(now - then <= most + own for then, now in zip(before, connections(cluster_store), strict=True))


def test_many_callers_follow_a_moving_slot(cluster_store: Cluster) -> None:
    async def main() -> None:
        async with AsyncLimiter.from_url(cluster_store.url + TIMEOUTS) as limiter:
            await limiter.acquire(ONE)
            for _ in range(3):  # once around
                moving = asyncio.get_running_loop().run_in_executor(None, cluster_store.move_slot, "a", 0.1)
                while not moving.done():
                    assert outcomes(await at_once(limiter, ONE, 30)) == {"allowed: True": 30}
                await moving
                assert outcomes(await at_once(limiter, ONE, 30)) == {"allowed: True": 30}

    asyncio.run(main())


def test_hung_node_is_an_outage_for_its_callers_until_it_answers(cluster_store: Cluster) -> None:
    hanging = cluster_store.nodes[cluster_store.owner(redis.crc.key_slot(b"a"))]

    async def main() -> None:
        async with AsyncLimiter.from_url(cluster_store.url + PATIENT) as limiter:
            await limiter.ping()
            await limiter.acquire(ONE)
            hanging.freeze()
            try:
                answers = await at_once(limiter, ONE, 30)
                with pytest.raises(StoreUnavailable):
                    await limiter.ping()
            finally:
                hanging.thaw()
            assert {type(each) for each in answers} == {StoreUnavailable}
            deadline = time.monotonic() + 60
            while {type(each) for each in answers} != {Decision}:
                assert {type(each) for each in answers} <= {StoreUnavailable, Decision}
                assert time.monotonic() < deadline, "the node was not found again"
                await asyncio.sleep(0.05)
                answers = await at_once(limiter, ONE, 30)

    asyncio.run(main())
