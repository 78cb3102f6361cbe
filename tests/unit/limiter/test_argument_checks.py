"""Arguments of a limiter's methods: what is read, and errors that name the argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from celery_ratelimit import Concurrency, ConfigurationError, Decision, Limit
from celery_ratelimit.limiter import argument_checks as checks
from celery_ratelimit.limiter.limit_request import LimitRequest

RATE, PLACES = LimitRequest(Limit("1/s"), "rate"), LimitRequest(Concurrency(2), "places")
FOREVER = 10**9


@pytest.mark.parametrize(
    ("read", "value", "found"),
    [
        (checks.microseconds, 0.0000011, 2),  # rounded up
        (checks.microseconds, math.inf, FOREVER * 10**6),
        (lambda it: checks.seconds_of("by", it), -5, -5.0),
        (lambda it: checks.seconds_of("by", it, least=0), 0, 0.0),
        (lambda it: checks.seconds_of("by", it), 1e12, float(FOREVER)),
        (lambda it: checks.seconds_of("by", it), -1e12, -float(FOREVER)),
        (checks.longest_wait, None, float(FOREVER)),
        (checks.longest_wait, 0, 0.0),
        (checks.longest_wait, 2, 2.0),
        (lambda it: checks.length_of(it, "lease"), 0.5, 500_000),
        (checks.check_permits, 1, None),
        (checks.check_permits, 10**9 - 1, None),
        (lambda it: checks.check_filled(it, None), "tenant:7{", None),
        (lambda it: checks.check_actual([RATE], [it]), 0, None),
        (lambda it: checks.check_actual([RATE], [it]), 10**9 - 1, None),
    ],
)
def test_arguments_at_the_edge_are_valid(read: Callable[[Any], Any], value: Any, found: Any) -> None:
    assert read(value) == found
    assert type(read(value)) is type(found)


@pytest.mark.parametrize(
    ("read", "values", "error"),
    [
        (lambda it: checks.seconds_of("by", it), (True, "5", None, math.nan), "by=.* a number of seconds$"),
        (lambda it: checks.seconds_of("by", it, least=0), (-1,), "by=-1 must be a number of seconds, 0 or more"),
        (checks.longest_wait, ("5", math.nan), "max_wait=.* must be a number of seconds"),
        (
            lambda it: checks.length_of(it, "lease"),
            (0, -1, "5", True, math.nan),
            "lease=.* seconds above 0",
        ),
        (
            checks.check_permits,
            (0, 10**9, 1.5, True, "5"),
            "permits=.* a whole number of permits, 1 to 999999999",
        ),
        (lambda it: checks.check_filled(it, None), ("{tenant}", 7, None), "pass key_template="),
        (lambda it: checks.check_filled("a", it), ("{tenant}", ""), "pass one of the two"),
        (lambda it: checks.check_reservable([RATE], it), ("",), "a reservation needs an id"),
        (
            lambda it: checks.check_reservable(it, "id"),
            ([PLACES], [RATE, PLACES]),
            "a permit of a Concurrency",
        ),
        (lambda it: checks.check_actual([RATE], [it]), (-1, 10**9, 1.5, True), "limit 'rate': an actual cost of"),
        (checks.check_settled, (Decision(False, 1, 0, 1.0, 1.0, "rate"),), "there is nothing to settle"),
        (lambda it: checks.actual_costs([RATE, PLACES], 5, it), ("places",), "permits of a Concurrency are held"),
    ],
)
def test_invalid_argument_error_names_it(read: Callable[[Any], Any], values: tuple[Any, ...], error: str) -> None:
    for value in values:
        with pytest.raises(ConfigurationError, match=error):
            read(value)
