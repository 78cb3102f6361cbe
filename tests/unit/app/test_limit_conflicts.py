"""Limits that another app declares differently are reported at the start of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_ratelimit import Concurrency, Limit, Limiter
from celery_ratelimit.app.limit_conflicts import declare
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


def places(limit: int, **options: Any) -> Concurrency:
    return Concurrency(limit, name="stripe", **options)


def rate(text: str, **options: Any) -> Limit:
    return Limit(text, **{"name": "stripe", **options})


NAMES = ["überweisung", "half a pair \ud800", "x" * 5000, "{stripe}.daily"]


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        *[
            (rate("50/s", name=name), rate("60/s", name=name), f"{name!r} is 60/s here and was 50/s when")
            for name in NAMES
        ],
        (rate("50/s"), rate("50/s", algorithm="sliding_log"), "50/s, sliding_log here and was 50/s when"),
        (places(3), places(3, lease=5), "3 at once, lease 5 s here and was 3 at once, lease 60 s when"),
        (rate("50/s", burst=5), rate("50/s", burst=6), "burst 6 here and was 50/s, burst 5"),
    ],
)
def test_limit_declared_differently_is_one_warning(
    limiter: Limiter, monkeypatch: pytest.MonkeyPatch, one: AnyLimit, other: AnyLimit, text: str
) -> None:
    trips: list[object] = []
    store = limiter._asker.store
    monkeypatch.setattr(limiter._asker, "store", lambda call, *args: trips.append(call) or store(call, *args))
    same = Concurrency(3, name="other")
    assert warnings_of(limiter, one, same) == []
    assert warnings_of(limiter, one, same) == []
    (warning,) = warnings_of(limiter, other, same)
    assert text in warning
    assert len(trips) == 3


def test_other_encoding_and_foreign_bytes_do_not_prevent_a_start(limiter: Limiter) -> None:
    """A URL may say ``?encoding=latin-1``: the two read what the other has written."""
    encoder = limiter._asker.client.connection_pool.connection_kwargs
    assert warnings_of(limiter, Limit("50/s", name="überweisung")) == []
    other = Limiter.from_url("memory://")
    other._asker.client.connection_pool.connection_kwargs = {**encoder, "encoding": "latin-1"}
    assert len(warnings_of(other, Limit("60/s", name="überweisung"))) == 1
    assert len(warnings_of(limiter, Limit("50/s", name="überweisung"))) == 1
    limiter._asker.client.hset(declared_key(limiter._asker.prefix), mapping={b"\xff": b"\xfe", b"stripe": b"\xfe"})
    (warning,) = warnings_of(limiter, Limit("50/s", name="stripe"))
    assert "limit 'stripe' is 50/s here" in warning
