"""Limits in shadow, by whoever asks: nobody waits, others decide as before, and what would have been is told."""

from __future__ import annotations

import asyncio
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_ratelimit import AsyncLimiter, Concurrency, ConfigurationError, Limit, Limiter
from celery_ratelimit.limiter.shadows import ask_would
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT
from tests.fleet_of import Fleet, until

TRIED = Limit("1/h", name="tried", shadow=True)
QUOTAS: dict[str, Any] = {
    "tried": TRIED,
    "real": Limit("1000/h", burst=5, name="real"),
    "tenant": Limit("1/h", name="tenant", key="t:{tenant_id}", shadow=True),
    "tokens": Limit("10/h", burst=100, name="tokens", cost="tokens", shadow=True),
}


def reckoned(limiter: Limiter, name: str, number: int) -> Any:
    """What it would have done to so many requests: once all are reckoned, which is some seconds after they came."""
    core, limit = limiter.asker.core, QUOTAS.get(name, TRIED)

    def ask() -> Any:
        return limiter.asker.drive(ask_would(core, {name: limit}))[name]

    until(lambda: ask().requests >= number, 10, f"{number} requests of {name}")
    return ask()


def test_nobody_waits_and_it_is_told_what_would_have_been(server: EmbeddedServer, store: redis.Redis) -> None:
    with Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter:
        for _ in range(5):
            decision = limiter.acquire("tried")
            assert (decision.allowed, decision.retry_after, decision.demands) == (True, 0.0, ())
            assert limiter.peek("tried").allowed
            assert limiter.available("tried") == 1
            with limiter.permit("tried", max_wait=0.01):
                pass
        assert not store.exists("ratelimit:v1:{tried}::state")
        said = reckoned(limiter, "tried", 10)
        assert (said.requests, said.delayed) == (10, 9)
        assert said.longest > 8 * 3600
        assert limiter.stats("tried", force=True).results["shadow"] == 10


def test_others_decide_without_it(server: EmbeddedServer, store: redis.Redis) -> None:
    with Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter:
        said = [limiter.acquire(["real", "tried"]) for _ in range(8)]
        assert [each.allowed for each in said] == [True] * 5 + [False] * 3
        assert {each.binding for each in said[5:]} == {"real"}
        assert [state.name for state in said[0].states] == ["real"]
        assert reckoned(limiter, "tried", 5).requests == 5, "what the others refuse has not come"


def test_reservations_and_settlements(server: EmbeddedServer, store: redis.Redis) -> None:
    with Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter:
        for _ in range(2):
            assert limiter.reserve("tried", id="one", horizon=0).allowed
        assert limiter.reserve("tried", id="two", horizon=0).allowed
        assert limiter.cancel("tried", id="two")
        assert not limiter.cancel("tried", id="two")
        both = limiter.reserve(["real", "tried"], id="both", horizon=1)
        assert both.allowed
        assert limiter.cancel(["real", "tried"], id="both")
        assert reckoned(limiter, "tried", 3).requests == 3
        decision = limiter.acquire("tokens", cost=100)
        assert limiter.settle(decision, 0)
        assert not limiter.settle(decision, 0)
        assert limiter.settle(limiter.acquire(["tokens", "real"], cost=5), 7)
        limiter.acquire("tokens", cost=100)
        assert reckoned(limiter, "tokens", 3).longest == pytest.approx(7 * 360, rel=0.01)


def test_a_limit_by_key_has_a_queue_for_each(server: EmbeddedServer, store: redis.Redis) -> None:
    with Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter:
        for tenant in (1, 2, 1):
            limiter.acquire("tenant", args={"tenant_id": tenant})
        said = reckoned(limiter, "tenant", 3)
        assert (said.requests, said.delayed) == (3, 1)


def test_it_can_be_awaited(server: EmbeddedServer, store: redis.Redis) -> None:
    async def main() -> None:
        async with AsyncLimiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter:
            for _ in range(3):
                assert (await limiter.acquire("tried")).allowed
                async with limiter.permit("tried", max_wait=0):
                    assert (await limiter.peek("tried")).allowed
            assert (await limiter.reserve("tried", id="a", horizon=0)).allowed
            assert await limiter.available("tried") == 1

    asyncio.run(main())
    with Limiter.from_url(server.url + PATIENT) as limiter:
        assert reckoned(limiter, "tried", 7).delayed == 6


def test_a_store_that_is_down_holds_nobody_up() -> None:
    with Limiter.from_url("redis://127.0.0.1:1", quotas=QUOTAS) as limiter:
        assert limiter.acquire("tried").allowed


@pytest.mark.parametrize("wrong", ["yes", 1, None])
def test_it_is_true_or_false(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"shadow=.* must be True or False"):
        Limit("1/s", shadow=wrong)
    with pytest.raises(ConfigurationError, match=r"shadow=.* must be True or False"):
        Concurrency(1, shadow=wrong)


def test_places_are_not_tried() -> None:
    with pytest.raises(ConfigurationError, match="shadow is for rates"):
        Concurrency(3, name="gpu", shadow=True)


def test_two_of_a_name_are_in_shadow_or_not(limiter: Limiter) -> None:
    with pytest.raises(ConfigurationError, match="differ"):
        limiter.acquire([TRIED, replace(TRIED, shadow=False)])


def _ask(url: str, start: Any) -> None:
    with Limiter.from_url(url, quotas=QUOTAS) as limiter:
        limiter.ping()
        start.wait(60)
        for _ in range(10):
            assert limiter.acquire(["tried", "tenant"], args={"tenant_id": 1}).allowed


def test_twenty_processes_at_once_as_its_first_use(server: EmbeddedServer, store: redis.Redis) -> None:
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(20)
    processes = [spawn.Process(target=_ask, args=(server.url + PATIENT, start)) for _ in range(20)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 20
    with Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter:
        for name in ("tried", "tenant"):
            said = reckoned(limiter, name, 200)
            assert (said.requests, said.delayed, said.pending) == (200, 199, 0)
            assert said.longest == pytest.approx(199 * 3600, rel=0.001)
            assert limiter.stats(name).results["shadow"] == 200


NAME = "tests.apps.fleet"


@pytest.mark.parametrize("task", ["plain", "tenant"])
def test_workers_hold_no_task_up(server: EmbeddedServer, store: redis.Redis, tmp_path: Path, task: str) -> None:
    quotas = {"slow": {"rate": "1/h", "shadow": True}, "t": {"rate": "1/h", "shadow": True, "key": "{tenant}"}}
    conf = {"ratelimit_quotas": quotas, "ratelimit_tasks": {f"{NAME}.plain": ["slow"], f"{NAME}.ten*": ["t"]}}
    with (
        Fleet(server, tmp_path, rate="1000/s", install=True, **conf) as fleet,
        Limiter.from_url(server.url + PATIENT, quotas=quotas) as limiter,
    ):
        fleet.start(number=2)
        for index in range(30):
            fleet.send(task, index, *(["a"] if task == "tenant" else []))
        fleet.wait_for(30, 30)
        name = "slow" if task == "plain" else "t"
        said = reckoned(limiter, name, 30)
        assert (said.requests, said.delayed) == (30, 29)
        until(lambda: limiter.stats(name).results["shadow"] == 30, 10, "the counts")
        assert f"{NAME}.{task}" in {user.name for user in limiter.stats(name).users}
        assert not fleet.signals()
