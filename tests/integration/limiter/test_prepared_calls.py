"""Repeated calls, which are prepared once, calls under the switches for tests, and invalid values."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from celery_ratelimit import Concurrency, ConfigurationError, Limit, Limiter
from celery_ratelimit.testing import EmbeddedServer, set_testing
from tests.conftest import PATIENT

G = Concurrency(4, name="gpu")


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_acquire_up_to_ignores_a_limit_put_into_shadow(
    server: EmbeddedServer, store: redis.Redis, names: list[str]
) -> None:
    quotas = {"a": Limit("10/s"), "b": Limit("1/h", burst=50)}
    Limiter.from_url(server.url + PATIENT, quotas=quotas).set_shadow("a", True)
    fresh = Limiter.from_url(server.url + PATIENT, quotas=quotas, counts=False)
    assert fresh.acquire_up_to(names, 20).permits == 20


@pytest.fixture
def listener() -> Iterator[tuple[str, list[int]]]:
    """A URL, and how often something has connected there."""
    hits: list[int] = []
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def count() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                hits.append(1)
                connection.close()

        threading.Thread(target=count, daemon=True).start()
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0", hits
        server.shutdown(socket.SHUT_RDWR)


def test_testing_switch_asks_no_store_about_shadow_limits(listener: tuple[str, list[int]]) -> None:
    url, hits = listener
    with set_testing():
        assert Limiter.from_url(url, counts=False).acquire(Limit("1/h", name="s", shadow=True)).allowed
    assert not hits


def test_testing_switch_grants_a_batch_no_more_than_a_full_bucket(listener: tuple[str, list[int]]) -> None:
    """``set_testing``: "as if all buckets were full"."""
    with set_testing():
        assert Limiter.from_url(listener[0]).acquire_up_to(Limit("10/s", burst=10, name="a"), 10**6).permits == 10


def test_call_first_made_under_the_testing_switch_is_prepared_later(server: EmbeddedServer, store: redis.Redis) -> None:
    limiter = Limiter.from_url(server.url + PATIENT, quotas={"a": "10/s"})
    with set_testing():
        limiter.acquire("a")
    limiter.acquire("a")
    assert limiter._calls["a", None, None] is not None


def test_names_may_be_a_generator(limiter: Limiter) -> None:
    limiter.quotas["c"] = Concurrency(3)
    assert limiter.peek(name for name in ["c"])  # type: ignore[arg-type]
    assert limiter.acquire(name for name in ["c"])  # type: ignore[arg-type]


def test_sequence_of_names_is_read_at_each_call(limiter: Limiter) -> None:
    class Names:  # as a collections.abc.Sequence of a user
        def __init__(self, *names: str) -> None:
            self.names = list(names)

        def __iter__(self) -> Iterator[str]:
            return iter(self.names)

    limiter.quotas.update(a=Limit("1/h", burst=9), b=Limit("1/h", burst=9))
    names: Any = Names("a")
    assert len(limiter.acquire(names).states) == 1
    names.names.append("b")
    assert len(limiter.acquire(names).states) == 2


def test_replaced_quota_of_a_sequence_of_names_is_used(limiter: Limiter) -> None:
    limiter.quotas.update(a=Limit("1/h", burst=9))
    names: Any = {"x": "a"}.values()
    assert limiter.acquire(names).capacity == 9
    limiter.quotas["a"] = Limit("1/h", burst=2)
    assert limiter.acquire(names).capacity == 2


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


def test_cost_errors_of_concurrency_limits_do_not_mention_rates(limiter: Limiter) -> None:
    with pytest.raises(Exception, match="can never grant 9") as error:
        limiter.acquire(G, cost=9)
    assert "Concurrency" in str(error.value)
    with pytest.raises(ConfigurationError, match="cost=0") as error:
        limiter.acquire(G, cost=0)
    assert "rate" not in str(error.value)


@pytest.mark.parametrize("quota", ["5/s", {"rate": "5/s"}])
def test_quota_that_is_no_limit_is_an_error_when_used(limiter: Limiter, quota: Any) -> None:
    limiter.quotas["late"] = quota
    with pytest.raises(ConfigurationError, match="add a Limit"):
        limiter.acquire("late")
