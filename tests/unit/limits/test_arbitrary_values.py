"""Any value of a rate, cost, key or name is valid or raises a ConfigurationError that names it."""

from __future__ import annotations

import math
import sys
import tracemalloc
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from celery.exceptions import WorkerShutdown
from hypothesis import example, given
from hypothesis import strategies as st

from celery_ratelimit import (
    AsyncLimiter,
    Concurrency,
    ConfigurationError,
    ImpossibleRequest,
    Limit,
    Limiter,
    StoreUnavailable,
)
from celery_ratelimit.app.options import alike_of
from celery_ratelimit.limiter.call_requests import demands_of
from celery_ratelimit.limits.rate_limit import ALGORITHMS
from celery_ratelimit.store.keys import LONGEST_KEY, bucket_key

HUGE = 10**5000
LONG = "9" * 5000
ALONE = "\ud800"

huge = st.builds(lambda sign: sign * HUGE, st.sampled_from([1, -1]))  # which Python does not write out
odd = [math.nan, math.inf, 1e308, 2**53, 2**63, True, False, Decimal("1.5"), Decimal("nan"), Fraction(1, 3)]
numbers = st.one_of(st.floats(), st.integers(), huge, st.sampled_from(odd))
rates = [f"{LONG}/s", f"1/{LONG}s", f"0.{LONG}/s", "nan/s", "inf/s", "1e5/s", "٣/s", "5/0s", "0/s"]
texts = st.one_of(
    st.text(st.characters(), max_size=20),
    st.sampled_from([LONG, ALONE, "", "\0", *rates]),
    st.from_regex(r"[0-9.]{0,6} ?(/|per) ?[0-9.]{0,4}[a-z]{0,8}", fullmatch=True),
)
others = st.one_of(st.none(), st.binary(max_size=5), st.lists(st.integers(), max_size=2), st.builds(object))
junk = st.one_of(numbers, texts, others)
formats = ["{a!z}", "{a:d}", "{a:" + LONG + "}", "{a:{b}}", "{a.__class__}", "{a[0]}", "{", "}", "{0}", "{}"]
templates = st.one_of(texts, st.text("{}!:.[]abxs019\ud800", max_size=12), st.sampled_from(formats))


#: Nothing listens there: StoreUnavailable means that the arguments were valid.
NOWHERE = "redis://127.0.0.1:1"


def is_valid_or_named(call: Callable[[], Any]) -> None:
    """The one error that bad input may raise, with a text that can be read."""
    said = ""
    try:
        call()
    except (ConfigurationError, ImpossibleRequest) as error:
        said = str(error)
    except StoreUnavailable:  # so far it was in order
        return
    assert not said or 10 < len(said) < 6000  # names may be long


OPTIONS = ["burst", "refill", "debt", "warmup", "capacity", "align", "sub_windows", "headroom", "per_worker", "cost"]


@given(junk, junk, junk, st.sampled_from(OPTIONS))
def test_arguments_of_a_limit(value: Any, name: Any, key: Any, option: str) -> None:
    is_valid_or_named(lambda: Limit(value, name=name, key=key))
    is_valid_or_named(lambda: Limit(value))
    is_valid_or_named(lambda: Limit("10/s", cost=value, name=name))
    for algorithm in [*ALGORITHMS, "x"]:
        is_valid_or_named(lambda: Limit("10/s", algorithm=algorithm, **{option: value}))  # noqa: B023
    is_valid_or_named(lambda: Concurrency(value, name=name, key=key, lease=value))
    is_valid_or_named(lambda: Concurrency(1, lease=value, name="places"))


@given(templates, junk, junk)
def test_filled_keys(template: str, value: Any, other: Any) -> None:
    def fill() -> None:
        demands_of([Limit("1/s", name="a", key=template)], None, (), {"a": value, "b": other})

    is_valid_or_named(fill)


QUOTAS = {"a": "10/s", "kept": Limit("10/s", key="{a}"), "dear": Limit("9/s", burst=9, cost="b")}
LIMITER = Limiter.from_url(NOWHERE, quotas=QUOTAS)


@given(
    st.sampled_from(["acquire", "peek", "reset", "permit", "available", "reserve", "cancel"]),
    junk | st.sampled_from(["a", "kept", ["a", "kept"], "dear", Limit("1/s"), [Limit("1/s", name=ALONE)]]),
    junk,
    st.one_of(junk, st.dictionaries(st.sampled_from("ab"), junk)),
    junk,
)
@example("acquire", "a", "of no keyed limit", None, None)
@example("acquire", "kept", None, ["no mapping"], None)
@example("acquire", [7], None, None, None)
def test_arguments_of_methods_and_waits(method: str, limits: Any, key: Any, args: Any, cost: Any) -> None:
    options = {} if method in ("reset", "available") else {"cost": cost}
    if method in ("reserve", "cancel"):
        options["id"] = "one"
    if method == "reserve":
        options["horizon"] = cost
    is_valid_or_named(lambda: getattr(LIMITER, method)(limits, key=key, args=args, **options))
    is_valid_or_named(lambda: LIMITER.acquire("a", max_wait=cost))
    is_valid_or_named(lambda: LIMITER.permit("a", max_wait=cost).__enter__())


@given(
    st.sampled_from(["set_rate", "try_set_rate", "pause", "expire_rate", "resume", "unset_rate", "config"]),
    junk | st.just("a"),
    junk | texts,
    junk,
    junk,
    junk,
)
@example("expire_rate", "a", 5, None, None, None)
def test_arguments_of_admin_methods(method: str, name: Any, value: Any, key: Any, version: Any, lasts: Any) -> None:
    options = {"version": version, "for_": lasts} if method == "set_rate" else {}
    values = [] if method in ("resume", "unset_rate", "config") else [value]
    is_valid_or_named(lambda: getattr(LIMITER, method)(name, *values, key=key, force=True, **options))


@pytest.mark.parametrize("bad", [math.nan, "x" * 5000, Decimal("nan"), pytest.param(HUGE, id="huge")])
def test_error_shortens_a_huge_value(bad: Any) -> None:
    for make in (lambda: LIMITER.acquire("a", cost=bad), lambda: Limit("10/s", burst=bad), lambda: Limit(bad)):
        with pytest.raises((ConfigurationError, ImpossibleRequest)) as caught:
            make()
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("option", ["key", "fair", "cost"])
def test_sys_exit_in_a_callable_ends_no_worker(option: str) -> None:
    limit = Limit("10/s", burst=10, name="exits", **{option: lambda: sys.exit(3)})
    with pytest.raises(RuntimeError, match=r"has called sys.exit\(3\)"):
        demands_of([limit], None, (), {})
    with pytest.raises(RuntimeError, match=r"has called sys.exit\(3\)"):
        alike_of("task", lambda: sys.exit(3), None, (), {})


def test_worker_shutdown_in_a_callable_is_raised() -> None:
    def interrupted() -> str:
        raise WorkerShutdown(0)

    with pytest.raises(WorkerShutdown):
        demands_of([Limit("10/s", name="exits", key=interrupted)], None, (), {})


# -- Long keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_long_keys_are_stored_as_hashes(kind: Any) -> None:
    limiter = kind.from_url(NOWHERE, quotas={"kept": Limit("10/s", key="{a}")})
    tracemalloc.start()
    try:
        for number in range(200):
            long = f"{number:06}" * 33_000
            for demands in (
                limiter._reader.demands("kept", long, None),
                limiter._reader.demands("kept", None, None, {"a": long}),
            ):
                limiter._asker.core.calls.packed(demands)
                assert all(len(demand.key) <= LONGEST_KEY for demand in demands)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 20e6, "200 keys of 200 kB would be 40 MB and more"


def test_shortened_key_is_the_same_bucket() -> None:
    (demand,) = LIMITER._reader.demands("kept", "x" * 5000, None)
    (again,) = LIMITER._reader.demands("kept", demand.key, None)
    assert again == demand
    (whole,) = LIMITER._reader.demands("kept", "x" * LONGEST_KEY, None)
    assert whole.key == "x" * LONGEST_KEY
    assert bucket_key("r", "kept", "x" * 5000, "state") != bucket_key("r", "kept", "y" * 5000, "state")
    halves = [LIMITER._reader.demands("kept", ALONE * 5000 + half, None)[0].key for half in (ALONE, "\ud801")]
    assert halves[0] != halves[1], "half of a surrogate pair, which JSON may hold"
    assert halves[0].startswith(ALONE)
