"""Limits that another app declares differently are reported at the start of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_ratelimit import Concurrency, Limit, Limiter
from celery_ratelimit.app.declared_limits import declare
from celery_ratelimit.limits.any_limit import AnyLimit
from celery_ratelimit.store.keys import declared_key
from celery_ratelimit.testing import clear_memory


@pytest.fixture
def limiter() -> Iterator[Limiter]:
    clear_memory()
    yield Limiter.from_url("memory://")
    clear_memory()


def warnings_of(limiter: Limiter, *limits: AnyLimit) -> list[str]:
    return declare(limiter._asker, {str(limit.name): limit for limit in limits})


@pytest.mark.parametrize("name", ["stripe", "überweisung", "half a pair \ud800", "x" * 5000, "{stripe}.daily"])
def test_limit_of_any_name_is_compared(limiter: Limiter, name: str) -> None:
    assert warnings_of(limiter, Limit("50/s", name=name), Concurrency(3, name=f"{name} places")) == []
    assert warnings_of(limiter, Limit("50/s", name=name), Concurrency(3, name=f"{name} places")) == []
    (warning,) = warnings_of(limiter, Limit("60/s", name=name), Concurrency(3, name=f"{name} places"))
    assert warning.startswith(f"limit {name!r} is 60/s here and was 50/s when another worker started")


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        (
            Limit("50/s", name="stripe"),
            Limit("50/s", name="stripe", algorithm="sliding_log"),
            "50/s, sliding_log here and was 50/s when",
        ),
        (
            Concurrency(3, name="stripe", lease=60),
            Concurrency(3, name="stripe", lease=5),
            "3 at once, lease 5 s here and was 3 at once, lease 60 s when",
        ),
        (
            Limit("50/s", name="stripe", burst=5),
            Limit("50/s", name="stripe", burst=6),
            "burst 6 here and was 50/s, burst 5",
        ),
    ],
)
def test_algorithm_and_lease_tell_limits_apart(limiter: Limiter, one: AnyLimit, other: AnyLimit, text: str) -> None:
    assert warnings_of(limiter, one) == []
    assert warnings_of(limiter, one) == []
    (warning,) = warnings_of(limiter, other)
    assert text in warning


def test_limits_are_declared_in_one_round_trip(limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    trips: list[object] = []
    store = limiter._asker.store
    monkeypatch.setattr(limiter._asker, "store", lambda call, *args: trips.append(call) or store(call, *args))
    warnings_of(limiter, Limit("50/s", name="stripe"))
    assert len(trips) == 1


def test_client_with_another_encoding_does_not_prevent_a_start(limiter: Limiter) -> None:
    """A URL may say ``?encoding=latin-1``: the two read what the other has written."""
    encoder = limiter._asker.client.connection_pool.connection_kwargs
    assert warnings_of(limiter, Limit("50/s", name="überweisung")) == []
    other = Limiter.from_url("memory://")
    other._asker.client.connection_pool.connection_kwargs = {**encoder, "encoding": "latin-1"}
    assert len(warnings_of(other, Limit("60/s", name="überweisung"))) == 1
    assert len(warnings_of(limiter, Limit("50/s", name="überweisung"))) == 1


def test_foreign_bytes_in_the_store_do_not_prevent_a_start(limiter: Limiter) -> None:
    limiter._asker.client.hset(declared_key(limiter._asker.prefix), mapping={b"\xff": b"\xfe", b"stripe": b"\xfe"})
    (warning,) = warnings_of(limiter, Limit("50/s", name="stripe"))
    assert "limit 'stripe' is 50/s here" in warning
