"""A store that has reached its ``maxmemory``: it refuses to park, and runs all other scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis

from celery_ratelimit import AsyncLimiter, Concurrency, Limit, Limiter
from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.errors import StoreFull
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.operation import RunScript, run_all
from celery_ratelimit.limiter.script_calls import call_of
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.conftest import PATIENT
from tests.parks import park_one

API, PLACES = Limit("1000/s", name="api"), Concurrency(2, name="places")
EACH_ALGORITHM = [
    API,
    Limit("100/s", name="leaky", algorithm="leaky_bucket", capacity=5),
    Limit("100/s", name="fixed", algorithm="fixed_window"),
    Limit("100/s", name="sliding", algorithm="sliding_window"),
    Limit("100/s", name="log", algorithm="sliding_log"),
    PLACES,
]
DEMAND = LimitRequest(API, "api")


@pytest.fixture(scope="module")
def own() -> Iterator[EmbeddedServer]:
    with embedded_server() as server:
        yield server


@pytest.fixture
def limiter(own: EmbeddedServer) -> Iterator[Limiter]:
    with redis.Redis.from_url(own.url) as client:
        client.flushall()
        client.script_flush()
        with Limiter.from_url(own.url + PATIENT, counts=False) as limiter:
            yield limiter
        client.config_set("maxmemory", 0)


def fill(limiter: Limiter) -> None:
    limiter.client.config_set("maxmemory", 1)
    with pytest.raises(redis.ResponseError, match="maxmemory"):
        limiter.client.set("key", "value")


@pytest.mark.parametrize("is_known", [False, True], ids=["new scripts", "known scripts"])
def test_full_store_still_enforces_rates(limiter: Limiter, *, is_known: bool) -> None:
    if is_known:
        for limit in EACH_ALGORITHM:
            limiter.acquire(limit)
        limiter.reset("api", force=True)
    fill(limiter)
    for _ in range(2):
        for limit in EACH_ALGORITHM:
            assert limiter.acquire(limit, max_wait=1).allowed or limit is PLACES
    hourly = Limit("1/h", name="hourly")
    assert [limiter.acquire(hourly).allowed for _ in range(3)] == [True, False, False]


def test_full_store_still_grants_leases_and_allows_operator_actions(limiter: Limiter) -> None:
    fill(limiter)
    for _ in range(3):
        with limiter.permit(PLACES), limiter.permit(PLACES):
            assert not limiter.acquire(PLACES).allowed
    limiter.set_rate("api", "1/h", force=True)
    assert limiter.config("api", force=True).stored is not None
    limiter.pause("api", 60, force=True)
    assert not limiter.acquire(API).allowed
    limiter.resume("api", force=True)
    assert limiter.check_store() == []


def test_full_store_still_serves_async_limiters(limiter: Limiter, own: EmbeddedServer) -> None:
    fill(limiter)

    async def acquire() -> list[bool]:
        async with AsyncLimiter.from_url(own.url + PATIENT, counts=False) as other:
            return [(await other.acquire(Limit("1/h", name="hourly"))).allowed for _ in range(2)]

    assert asyncio.run(acquire()) == [True, False]


def test_full_store_still_runs_pipelined_scripts(limiter: Limiter) -> None:
    fill(limiter)
    asker = limiter._asker
    probes = [RunScript(asker.core.scripts.check_permissions, call_of([f"ratelimit:v1:{name}"])) for name in "ab"]
    assert asker.drive(run_all(probes)) == [1, 1]


def test_full_store_still_returns_parked_tasks_and_accepts_heartbeats(limiter: Limiter) -> None:
    backlog = Backlog(limiter, "one", 10.0)
    for number in range(3):
        park_one(backlog, DEMAND, f"task{number}", "{}")
    fill(limiter)
    with pytest.raises(StoreFull):
        park_one(backlog, DEMAND, "task3", "{}")
    assert backlog.memory()[0] > backlog.memory()[1] == 1
    (result,) = backlog.take_due([DEMAND])
    assert [each.id for each in result.leaving] == ["task0", "task1", "task2"]
    backlog.published({("api", ""): result.leaving})
    assert not limiter.client.keys("*:payloads@*")
    assert not backlog.copies.arrive(("api", ""), {each.id: each.copy for each in result.leaving})
    assert backlog.register.attend("w@h", ["celery"], [], 60.0) == frozenset()
    assert backlog.register.workers == 1
    assert "api" in backlog.register.seen(["api"]).limits


def test_full_store_accepts_a_repeated_park(limiter: Limiter) -> None:
    """It may be parked by that one, and must not run beside its copy: the store takes it."""
    backlog = Backlog(limiter, "one", 10.0)
    park_one(backlog, DEMAND, "task0", "{}", token="a")
    fill(limiter)
    assert park_one(backlog, DEMAND, "task1", "{}", token="b", attempt=1) == 1
    assert park_one(backlog, DEMAND, "task0", "{}", token="a", attempt=1) == 2
    assert [each.id for each in backlog.take_due([DEMAND])[0].leaving] == ["task0", "task1"]
