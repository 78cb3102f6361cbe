"""Calls that wait, calls that are prepared once and repeated, simultaneous first calls, and invalid values."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import redis

from celery_ratelimit import Concurrency, ConfigurationError, ImpossibleRequest, Limit, Limiter
from celery_ratelimit.testing import EmbeddedServer, set_testing
from tests.conftest import PATIENT
from tests.integration.limiter.either import EitherLimiter

QUOTAS: dict[str, Any] = {name: Limit("1000/s", burst=1000, name=name) for name in ("api", "other")}

# -- Calls that wait ---------------------------------------------------------------------------------------------------


def test_blocking_call_that_would_wait_too_long_is_refused_and_keeps_no_slot(
    either: EitherLimiter, store: redis.Redis
) -> None:
    limit = Limit("1/h", name="hourly")
    either.acquire(limit)
    refused = either.acquire(limit, max_wait=3000.0)
    assert (refused.allowed, refused.limited_by) == (False, "hourly")
    assert refused.retry_after > 3000, "it has not waited"
    assert not store.exists("ratelimit:v1:{hourly}::slots")


@pytest.mark.parametrize("max_wait", [None, math.inf])
def test_blocking_call_without_a_maximum_waits(either: EitherLimiter, max_wait: float | None) -> None:
    limit = Limit("20/s", name="fast")
    assert [either.acquire(limit, max_wait=max_wait).allowed for _ in range(3)] == [True] * 3
    with either.block(limit, max_wait=max_wait) as decision:
        assert decision.allowed
    assert either.limited(limit, max_wait=max_wait)(lambda: "called")() == "called"


def test_blocking_call_keeps_a_slot_more_than_a_second_ahead(limiter: Limiter, store: redis.Redis) -> None:
    """Further than a second ahead no permit is taken but a slot kept: the call asks again when it is due."""
    limit = Limit("1 per 1.2 s", name="slow")
    first = limiter.acquire(limit)
    second = limiter.acquire(limit, max_wait=50.0)
    assert second.allowed
    assert second._granted_at - first._granted_at >= 1_200_000
    assert not store.exists("ratelimit:v1:{slow}::slots")


# -- Calls that are prepared -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_acquire_up_to_ignores_a_limit_put_into_shadow(
    server: EmbeddedServer, store: redis.Redis, names: list[str]
) -> None:
    quotas = {"a": Limit("10/s"), "b": Limit("1/h", burst=50)}
    Limiter.from_url(server.url + PATIENT, quotas=quotas).set_shadow("a", True)
    fresh = Limiter.from_url(server.url + PATIENT, quotas=quotas, counts=False)
    assert fresh.acquire_up_to(names, 20).permits == 20


def test_testing_switch_asks_no_store_about_shadow_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[Any] = []
    monkeypatch.setattr(socket.socket, "connect", lambda _, address: connected.append(address))
    with set_testing():
        limiter = Limiter.from_url("redis://127.0.0.1:1/0", counts=False)
        assert limiter.acquire(Limit("1/h", name="s", shadow=True)).allowed
    assert not connected


def test_call_first_made_under_the_testing_switch_is_prepared_later(limiter: Limiter) -> None:
    with set_testing():
        limiter.acquire("api")
    limiter.acquire("api")
    assert limiter._calls["api", None, None] is not None


def test_names_may_be_any_iterable_and_are_read_at_each_call(limiter: Limiter) -> None:
    limiter.quotas.update(a=Limit("1/h", burst=9), b=Limit("1/h", burst=9), c=Concurrency(3))
    assert limiter.peek(name for name in ["c"])  # type: ignore[arg-type]
    assert limiter.acquire(name for name in ["c"])  # type: ignore[arg-type]
    mapping = {"x": "a"}
    names: Any = mapping.values()
    assert limiter.acquire(names).capacity == 9
    limiter.quotas["a"] = Limit("1/h", burst=2)
    assert limiter.acquire(names).capacity == 2, "the quota was replaced"
    mapping["y"] = "b"
    assert len(limiter.acquire(names).states) == 2


@pytest.mark.parametrize("kind", ["Concurrency", "shadow"])
def test_key_function_is_called_once_per_call(limiter: Limiter, kind: str) -> None:
    calls: list[int] = []

    def key(**_: Any) -> str:
        calls.append(1)
        return "x"

    limit = Concurrency(3, name="c", key=key) if kind != "shadow" else Limit("9/s", name="s", key=key, shadow=True)
    limiter.acquire(limit, args={"a": 1})
    assert len(calls) == 1


def test_limit_in_force_keeps_missing_key_of_the_code(limiter: Limiter) -> None:
    limiter.quotas["k"] = Limit("5/s", key="{t}", missing_key="exempt")
    limiter.set_rate("k", "9/s")
    in_force = limiter.config("k").in_force
    assert in_force is not None
    assert in_force.missing_key == "exempt"


# -- Simultaneous calls, when another algorithm is stored --------------------------------------------------------------

STORED = [
    Limit("1000/s", algorithm="sliding_log"),
    Limit("1000/s", algorithm="fixed_window"),
    Limit("1000/s", algorithm="sliding_window"),
    Limit("1000/s", burst=1000, refill="interval"),
    Limit("1000/s", burst=1000),
]


def test_stored_algorithms_reach_all_simultaneous_callers(either: EitherLimiter, limiter: Limiter) -> None:
    for one, two in pairwise(STORED):
        limiter.set_rate("api", one)
        limiter.set_rate("other", two)
        for limits in ("api", ["api", "other"]):
            assert all(decision.allowed for decision in either.at_once("acquire", 20, limits)), (one, two)
        limiter.reset(["api", "other"])


def test_first_callers_of_a_process_load_the_scripts_of_a_stored_algorithm(
    make: Callable[..., EitherLimiter], limiter: Limiter, store: redis.Redis
) -> None:
    for stored in STORED:
        limiter.set_rate("api", stored)
        store.script_flush()
        assert all(decision.allowed for decision in make().at_once("acquire", 20, "api")), stored
        limiter.reset("api")


# -- Invalid values ----------------------------------------------------------------------------------------------------


def test_cost_errors_of_concurrency_limits_do_not_mention_rates(limiter: Limiter) -> None:
    gpu = Concurrency(4, name="gpu")
    with pytest.raises(ImpossibleRequest, match=r"can never grant 9 .*Concurrency"):
        limiter.acquire(gpu, cost=9)
    with pytest.raises(ConfigurationError, match="cost=0") as error:
        limiter.acquire(gpu, cost=0)
    assert "rate" not in str(error.value)


@pytest.mark.parametrize("quota", ["5/s", {"rate": "5/s"}])
def test_quota_that_is_no_limit_is_an_error_when_used(limiter: Limiter, quota: Any) -> None:
    limiter.quotas["late"] = quota
    with pytest.raises(ConfigurationError, match="add a Limit"):
        limiter.acquire("late")
