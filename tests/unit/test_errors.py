"""Errors carry data, say what to change, and survive a result backend."""

from __future__ import annotations

import pickle

import pytest

from celery_ratelimit import ConfigurationError, ImpossibleRequest, RateLimitError, StoreUnavailable, Throttled
from celery_ratelimit.errors import shown


class Unshown:
    def __repr__(self) -> str:
        raise LookupError


@pytest.mark.parametrize(
    ("error", "is_value"),
    [
        (ConfigurationError("bad"), True),
        (ImpossibleRequest(limit="api", cost=11, capacity=10), True),
        (StoreUnavailable("gone"), False),
        (Throttled(limit="api", retry_after=1.5), False),
        (Throttled(limit="api", retry_after=1.5, key="a"), False),
        (Throttled(limit="api", retry_after=1.5, max_wait=1.0), False),
        (Throttled(limit="api", retry_after=1.5, max_parked=5), False),
    ],
)
def test_an_error_has_the_one_base_and_survives_pickling(error: RateLimitError, is_value: bool) -> None:
    assert isinstance(error, RateLimitError)
    assert isinstance(error, ValueError) == is_value
    for again in (pickle.loads(pickle.dumps(error)), type(error)(*error.args)):  # as result backends make it
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 120, repr("x" * 120)[:80] + "…"),
        ("x" * 121, f"{'x' * 80!r}… (121 characters)"),
        (10**119, str(10**119)),
        (-(10**120), "-1e120 or so"),
        (["x" * 200], f"['{'x' * 78}…"),
        (Unshown(), "a Unshown that cannot be shown"),
    ],
)
def test_value_in_an_error_is_cut(value: object, text: str) -> None:
    assert shown(value) == text


def test_the_texts_name_the_limit_and_the_mend() -> None:
    assert str(ImpossibleRequest("api", 11, 10)) == (
        "limit 'api' can never grant 11 permits at once: it holds 10 at most. "
        "Raise its burst (the count of its window, the number of a Concurrency) to at least 11, or lower the cost"
    )
    used_up = str(Throttled("api", 0.5, 2.0))  # 0.5 s alone is not beyond 2
    assert used_up.endswith("free in 0.500 s with what it has waited before, beyond max_wait=2 s")
    assert str(Throttled("api", 1.5)) == "throttled by limit 'api': a permit is free in 1.500 s"
