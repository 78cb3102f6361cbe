"""What a report does to a limit: tables, and traces in which it is never looser than without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.servers import Cluster
from celery_ratelimit import Concurrency, ConfigurationError, Limit, Limiter
from celery_ratelimit.limiter import upstream_methods
from celery_ratelimit.limits.rate_limit import METHODS
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT, Clock
from tests.examples import examples, share_of

LOWERED = [
    Limit("10/s", burst=10, name="api"),
    Limit("10/s", burst=10, name="api", debt=5),
    Limit("10/s", algorithm="fixed_window", name="api"),
    Limit("10/s", algorithm="sliding_window", name="api"),
    Limit("10/s", algorithm="sliding_log", name="api"),
]
#: Their periods begin with their first use, or with a rest.
ONLY_PAUSED = [
    Limit("10/s", burst=10, name="api", refill="interval"),
    Limit("10/s", algorithm="fixed_window", align="first", name="api"),
    Limit("10/s", burst=10, name="api", warmup=5),
]
LEAKY = Limit("10/s", algorithm="leaky_bucket", name="api")
API = LOWERED[0]
of_each = {"argnames": "limit", "ids": lambda limit: f"{limit.method} {getattr(limit, 'debt', 0)}"}


@pytest.fixture(autouse=True)
def _without_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_methods, "JITTER", 0.0)


def response(status: int = 200, **headers: Any) -> SimpleNamespace:
    named = {name.replace("_", "-"): str(value) for name, value in headers.items()}
    return SimpleNamespace(status_code=status, headers=named)


def left(number: int, **headers: Any) -> SimpleNamespace:
    return response(x_ratelimit_remaining=number, **headers)


# -- Remaining ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(argvalues=LOWERED, **of_each)
def test_report_lowers_the_bucket_to_the_upstream_remaining(frozen: Limiter, limit: Limit) -> None:
    frozen.acquire(limit, cost=2)
    assert frozen.report(limit, left(9)) == 0.0
    assert frozen.available(limit) == 8, "it has less already"
    frozen.report(limit, left(3))
    assert frozen.available(limit) == 3
    frozen.report(limit, left(5))
    assert frozen.available(limit) == 3, "a report gives nothing back"
    frozen.report(limit, left(0))
    assert frozen.available(limit) == 0
    assert frozen.config(limit).paused == 0.0, "until when is not said"


def test_report_of_one_left_leaves_one_in_a_leaky_bucket(frozen: Limiter) -> None:
    frozen.report(LEAKY, left(1))
    assert frozen.available(LEAKY) == 1
    frozen.report(LEAKY, left(0))
    assert frozen.peek(LEAKY).retry_after == pytest.approx(0.1)


@pytest.mark.parametrize(argvalues=ONLY_PAUSED, **of_each)
def test_report_takes_nothing_where_it_would_open_a_period(frozen: Limiter, store: Any, limit: Limit) -> None:
    before = frozen.available(limit)
    frozen.report(limit, left(0))
    assert frozen.available(limit) == before
    assert list(store.scan_iter("ratelimit:*")) == []
    assert frozen.report(limit, left(0, x_ratelimit_reset=9)) == 9.0


def test_tokens_and_requests_are_reported_apart(frozen: Limiter) -> None:
    requests, tokens = (Limit("100/s", burst=100, name=name) for name in ("requests", "tokens"))
    said = response(x_ratelimit_remaining_requests=59, x_ratelimit_remaining_tokens=0, x_ratelimit_reset_tokens="6m0s")
    assert frozen.report(requests, said) == frozen.report(tokens, said, unit="tokens") == 0.0
    assert (frozen.available(requests), frozen.available(tokens)) == (59, 0)


def test_report_applies_to_one_key(frozen: Limiter) -> None:
    tenant = Limit("10/s", burst=10, name="tenant", key="{tenant}")
    frozen.report(tenant, left(2), key="a")
    assert [frozen.available(tenant, key=key) for key in "ab"] == [2, 10]
    assert frozen.report(tenant, response(429, retry_after=5), key="a") == 5.0
    assert [frozen.available(tenant, key=key) for key in "ab"] == [0, 10]
    assert frozen.report(tenant, left(2, x_ratelimit_reset=9)) == 0.0, "of all keys no permits are taken"
    assert frozen.report(tenant, response(429, retry_after=3)) == 3.0
    assert frozen.available(tenant, key="b") == 0
    per_worker = Limit("10/s", burst=10, name="node", per_worker=True)
    frozen.report(per_worker, response(429, retry_after=3))
    assert frozen.available(per_worker) == 0


def test_report_includes_the_reserve(server: EmbeddedServer, store: redis.Redis) -> None:
    with redis.Redis.from_url(server.url) as client:
        limiter = Limiter(client, lowest_first=True, counts=False)
        limit = Limit("1/h", burst=10, name="api", priority_reserve={0: 0.5})
        limiter.report(limit, left(7))
        assert [limiter.available(limit, priority=priority) for priority in (9, 0)] == [2, 7]


def test_report_applies_to_a_stored_limit(frozen: Limiter) -> None:
    frozen.set_rate(API, Limit("1/h", burst=100))
    frozen.report(API, left(50))
    assert frozen.available(API) == 50
    frozen.set_shadow(API, True)
    frozen._core.shadows.learn({"api": None})  # another process, which does not know yet
    frozen.report(API, left(5))
    frozen.set_shadow(API, False)
    assert frozen.available(API) == 50


def test_report_leaves_shadow_limits_and_concurrency_alone(frozen: Limiter, store: redis.Redis) -> None:
    frozen.report(replace(API, shadow=True), left(1))
    places = Concurrency(10, name="places")
    frozen.report(places, left(1))
    assert list(store.scan_iter("ratelimit:*")) == []
    assert frozen.report(places, response(429)) == 1.0
    assert frozen.available(places) == 0


# -- Pauses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (response(429, retry_after=5), 5.0),
        (response(503, retry_after=5), 5.0),
        (response(403, retry_after=5), 5.0),
        (response(200, retry_after=5), 0.0),
        (response(503), 0.0),
        (response(429), 1.0),
        (response(429, retry_after=0), 1.0),
        (response(429, retry_after=-9), 1.0),
        (response(429, retry_after=10**8), 3600.0),
        (response(429, x_ratelimit_remaining=0, x_ratelimit_reset=7), 7.0),
        (left(0, x_ratelimit_reset=7), 7.0),
        (left(1, x_ratelimit_reset=7), 0.0),
        (left(0, x_ratelimit_reset="7s"), 0.0),
    ],
)
def test_reported_wait_pauses_the_limit(frozen: Limiter, said: Any, seconds: float) -> None:
    assert frozen.report(API, said) == seconds
    assert frozen.config(API).paused == seconds


def test_report_never_shortens_or_ends_a_pause(frozen: Limiter, clock: Clock) -> None:
    frozen.pause(API, 60, reason="by hand")
    for said in (response(429, retry_after=5), response(429, retry_after=0), response(429), response(200), left(9)):
        assert frozen.report(API, said) in (0.0, 60.0)
    assert frozen.config(API).paused == 60.0
    assert [change.reason for change in frozen.history(API)] == ["by hand"]
    assert frozen.report(API, response(429, retry_after=90)) == 90.0
    assert frozen.history(API)[-1].reason == "upstream: status 429"
    clock.advance(89.999)
    assert not frozen.acquire(API).allowed
    clock.advance(0.001)
    assert frozen.acquire(API).allowed


def test_longest_pause_can_be_set(frozen: Limiter) -> None:
    assert frozen.report(API, response(429, retry_after=900), max_pause=60) == 60.0
    daily = Limit("1/d", name="daily")
    assert frozen.report(daily, response(429)) == 3600.0, "an interval is a day"


def test_bad_reports_raise(frozen: Limiter) -> None:
    with pytest.raises(ConfigurationError, match="'apy'"):
        frozen.report("apy", response())
    with pytest.raises(ConfigurationError, match="429 has no headers: pass a response"):
        frozen.report(API, 429)
    with pytest.raises(ConfigurationError, match="max_pause=0 must be a number of seconds above 0"):
        frozen.report(API, response(), max_pause=0)
    with pytest.raises(ConfigurationError, match="not kept by key"):
        frozen.report(API, response(), key="a")


def test_report_works_on_a_cluster(cluster_store: Cluster) -> None:
    limiter = Limiter.from_url(cluster_store.url + PATIENT)
    slow = Limit("5/h", burst=5, name="slow")
    limiter.report(slow, left(2))
    assert limiter.available(slow) == 2
    assert limiter.report(slow, response(429, retry_after=5)) == pytest.approx(5, abs=1)


# -- Never looser ------------------------------------------------------------------------------------------------------


@st.composite
def traces(draw: st.DrawFn) -> Iterator[tuple[str, Any]]:
    acts = st.one_of(
        st.tuples(st.just("advance"), st.integers(1, 2_500_000)),
        st.tuples(st.just("acquire"), st.integers(1, 7)),
        st.tuples(st.just("settle"), st.integers(0, 9)),
        st.tuples(st.just("rate"), st.integers(7, 20)),
        st.tuples(
            st.just("report"),
            st.builds(
                lambda status, remaining, reset, wait: response(
                    status, x_ratelimit_remaining=remaining, x_ratelimit_reset=reset, retry_after=wait
                ),
                st.sampled_from([200, 200, 429, 503]),
                st.integers(-1, 10),
                st.sampled_from(["", "0", "0.3", "2", "1s", "1e9"]),
                st.sampled_from(["", "0", "-1", "0.25", "1.5"]),
            ),
        ),
    )
    return draw(st.lists(acts, min_size=1, max_size=40))  # type: ignore[return-value]


@pytest.mark.parametrize(argvalues=[*LOWERED, *ONLY_PAUSED, LEAKY], **of_each)
def test_law_1_report_never_loosens_a_limit(frozen: Limiter, store: redis.Redis, limit: Limit) -> None:
    """Each request that is granted is granted by a twin without reports, too, which has as much left at each moment."""
    clock = Clock(store)
    taken = 0

    @examples(50)
    @given(traces())
    def play(trace: Any) -> None:
        nonlocal taken
        for key in store.scan_iter("ratelimit:*"):
            store.delete(key)
        store.delete("test:expires")
        reported, twin = replace(limit, name="reported"), replace(limit, name="twin")
        granted: list[Any] = []
        for act, value in trace:
            if act == "advance":
                clock.advance(value / 1e6)
            elif act == "acquire" and value <= limit.most:
                decision = frozen.acquire(reported, cost=value)
                if decision.allowed:
                    other = frozen.acquire(twin, cost=value)
                    assert other.allowed
                    granted.append((decision, other))
            elif act == "settle" and granted:
                for decision in granted.pop(value % len(granted)):
                    frozen.settle(decision, value)
            elif act == "rate" and limit.warmup == 0:
                for each in (reported, twin):
                    frozen.set_rate(each, f"{value}/s")
            elif act == "report":
                before = frozen.available(reported)
                frozen.report(reported, value)
                taken += before - frozen.available(reported)
            assert frozen.available(reported) <= frozen.available(twin)

    play()
    assert taken > share_of(10)


def test_every_algorithm_is_listed() -> None:
    assert {limit.method for limit in [*LOWERED, *ONLY_PAUSED, LEAKY]} == set(METHODS) - {"concurrency"}
