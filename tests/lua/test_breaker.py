"""A breaker on the frozen clock: failures in a row open it, the first success closes it."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Literal

import pytest
import redis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from celery_ratelimit import Breaker, Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.setting_operations import note_of
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import Clock
from tests.examples import examples

from .frozen import FROZEN_STORE, expiries

API = Limit("100/s", name="api", breaker=Breaker(open_after=3, half_open_every=5))
SHARE = replace(API, breaker=Breaker(open_after=3, of_last=5, half_open_every=5))
FAILED, SUCCEEDED = (0, True), (1, False)


@pytest.fixture
def limiter(server: EmbeddedServer, clock: Clock) -> Limiter:
    client = redis.Redis.from_url(server.url)
    return Limiter(client, quotas={"api": API}, replace_includes={"now": FROZEN_STORE}, counts=False)


def report(
    limiter: Limiter, *outcomes: tuple[int, bool], granted_at: int = 0, cost: int = 1, limit: Limit = API
) -> bool:
    """Report successes and perhaps a failure after them; returns whether the breaker is open."""
    reply = 0
    for succeeded, failed in outcomes:
        demand, note = LimitRequest(limit, "api", "", cost), note_of("breaker", "upstream fails")
        core = limiter._asker.core
        assert limit.breaker is not None
        operation = core.settings.report_outcomes(demand, limit.breaker, succeeded, failed, granted_at, note)
        reply, _ = limiter._asker.drive(operation)
    return reply in (1, 2)


@pytest.mark.parametrize(
    ("outcomes", "is_open"),
    [
        ([FAILED] * 2, False),
        ([FAILED] * 3, True),
        ([FAILED, FAILED, SUCCEEDED, FAILED], False),
        ([FAILED, FAILED, (5, True), FAILED], False),
        ([FAILED, FAILED, (5, True), FAILED, FAILED], True),
        ([FAILED] * 3 + [SUCCEEDED], False),
        ([FAILED] * 3 + [SUCCEEDED, FAILED], False),
        ([FAILED] * 9 + [(2, True)], True),
    ],
)
def test_breaker_opens_after_failures_and_closes_after_a_success(
    limiter: Limiter, store: redis.Redis, clock: Clock, outcomes: list[tuple[int, bool]], is_open: bool
) -> None:
    assert report(limiter, *outcomes) is is_open
    config = limiter.config("api")
    shown = (str(config.in_force), config.by, config.reason)
    assert shown == (("api: 1 per 5 s", "breaker", "upstream fails") if is_open else ("api: 100/s", "", ""))
    left = {key: (at - clock.us) / 1e6 for key, at in expiries(store).items() if not key.endswith("history")}
    assert all(0 < seconds <= 7200 for seconds in left.values()), "law 9"
    assert {key for key in store.scan_iter("ratelimit:*") if not key.endswith("history")} == left.keys()


@pytest.mark.parametrize(
    ("outcomes", "is_open"),
    [
        ([FAILED, SUCCEEDED, FAILED, SUCCEEDED], False),
        ([FAILED, SUCCEEDED, FAILED, SUCCEEDED, FAILED], True),
        ([FAILED, (3, True), FAILED], False),
        ([FAILED, FAILED, (2, True)], True),
        ([FAILED, FAILED, (3, True)], False),
        ([(1000, False), FAILED, FAILED, FAILED], True),
        ([FAILED, FAILED, (10**9, True), FAILED], False),
        ([FAILED] * 3 + [SUCCEEDED, FAILED, FAILED], False),
        ([FAILED] * 3 + [SUCCEEDED, FAILED, FAILED, FAILED], True),
    ],
)
def test_breaker_opens_after_a_share_of_failures(
    limiter: Limiter, outcomes: list[tuple[int, bool]], is_open: bool
) -> None:
    assert report(limiter, *outcomes, limit=SHARE) is is_open


@given(
    outcomes=st.lists(st.tuples(st.integers(0, 4), st.booleans()).filter(any), max_size=30),
    most=st.integers(1, 4),
    more=st.integers(0, 4),
)
@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_breaker_agrees_with_its_model(
    limiter: Limiter, store: redis.Redis, outcomes: list[tuple[int, bool]], most: int, more: int
) -> None:
    store.delete("none", *store.scan_iter("ratelimit:*"))
    limit = replace(API, breaker=Breaker(open_after=most, of_last=most + more))
    last: deque[bool] = deque(maxlen=most + more)
    is_open = False
    for succeeded, failed in outcomes:
        last.extend([False] * succeeded + [True] * failed)
        if is_open and not failed:
            last.clear()
        is_open = failed and (is_open or sum(last) >= most)
        assert report(limiter, (succeeded, failed), limit=limit) is is_open


def test_open_breaker_permits_one_trial_per_interval(limiter: Limiter, clock: Clock) -> None:
    assert limiter.acquire("api").allowed
    report(limiter, *[FAILED] * 3)
    granted = []
    for tenth in range(200):
        clock.set(clock.us + 100_000)
        if limiter.acquire("api").allowed:
            granted.append(tenth // 10)
    assert len(granted) == 4
    report(limiter, SUCCEEDED)
    clock.advance(1)
    assert limiter.acquire("api").allowed
    assert limiter.acquire("api").retry_after == 0.01


Algorithm = Literal["sliding_log", "sliding_window", "fixed_window", "leaky_bucket"]
WINDOWS: tuple[Algorithm, ...] = ("sliding_log", "sliding_window", "fixed_window")
USED_UP: dict[str, Limit] = {
    **{each: Limit("100/m", algorithm=each, name="api", breaker=API.breaker) for each in (*WINDOWS, "leaky_bucket")},
    "burst": Limit("100/m", burst=50, name="api", breaker=API.breaker),
}


def take_all(limiter: Limiter, limit: Limit, most: int = 1000) -> int:
    """Calls that are allowed now."""
    return next(taken for taken in range(most) if not limiter.acquire(limit).allowed)


@pytest.mark.parametrize("kind", USED_UP)
def test_what_was_taken_before_the_breaker_opened_counts(limiter: Limiter, clock: Clock, kind: str) -> None:
    limit = USED_UP[kind]
    taken = take_all(limiter, limit)
    assert report(limiter, *[FAILED] * 3, limit=limit)
    tries = 0
    for _ in range(20):
        clock.advance(1)
        tries += take_all(limiter, limit)
    assert 3 <= tries <= 4, "one in five seconds, and none at once"
    assert not report(limiter, SUCCEEDED, limit=limit)
    limiter.charge(limit, tries)  # as the process does that tells the success
    more = 0
    for _ in range(39):
        clock.advance(1)
        more += take_all(limiter, limit)
    assert taken + tries + more <= limit.size + 100, "a minute"


@pytest.mark.parametrize("algorithm", WINDOWS)
def test_window_goes_on_where_it_was_when_the_breaker_closes(
    limiter: Limiter, clock: Clock, algorithm: Algorithm
) -> None:
    limit = Limit("1000/d", algorithm=algorithm, name="api", breaker=API.breaker)
    for _ in range(10):
        assert limiter.acquire(limit).allowed
    report(limiter, *[FAILED] * 3, limit=limit)
    clock.advance(6)
    assert limiter.acquire(limit).allowed
    assert not limiter.acquire(limit).allowed
    report(limiter, SUCCEEDED, limit=limit)
    assert limiter.acquire(limit).remaining == 1000 - 11


def test_debt_stays_while_the_breaker_is_open(limiter: Limiter, clock: Clock) -> None:
    limit = Limit("100/s", name="api", burst=10, breaker=API.breaker)
    limiter.charge(limit, 5000)
    before = limiter.peek(limit).retry_after
    report(limiter, *[FAILED] * 3, limit=limit)
    report(limiter, SUCCEEDED, limit=limit)
    assert limiter.peek(limit).retry_after == before


def test_operator_rate_of_the_whole_limit_keeps_a_key_from_its_breaker_and_its_ramp(
    limiter: Limiter, clock: Clock
) -> None:
    limit = Limit("100/s", name="api", key="{tenant}", breaker=API.breaker, resume_over=5)
    limiter.set_rate(limit, "1/m", by="ops")
    demand, note = LimitRequest(limit, "api", "a", 1), note_of("breaker", "upstream fails")

    def fail() -> tuple[int, float]:
        assert limit.breaker is not None
        operation = limiter._asker.core.settings.report_outcomes(demand, limit.breaker, 0, True, 0, note)
        return limiter._asker.drive(operation)

    assert [fail() for _ in range(5)] == [(0, 0.0)] * 5
    limiter.throttled(limit, key="a", retry_after=2)
    assert limiter.config(limit, key="a").by == "ops"
    limiter.unset_rate(limit)
    assert [fail(), fail()] == [(2, 0.0), (1, 0.0)]


def test_author_of_a_pause_is_shown_while_a_rate_is_stored_and_removed(limiter: Limiter) -> None:
    limiter.throttled("api", retry_after=60)
    paused_by = limiter.config("api").paused_by
    assert paused_by
    report(limiter, *[FAILED] * 3)
    assert limiter.config("api").paused_by == paused_by
    report(limiter, SUCCEEDED)
    limiter.set_rate("api", "7/s", by="ann")
    assert (limiter.config("api").by, limiter.config("api").paused_by) == ("ann", paused_by)
    limiter.unset_rate("api")
    assert limiter.config("api").paused_by == paused_by


def test_success_of_an_earlier_call_keeps_the_breaker_open(limiter: Limiter, clock: Clock) -> None:
    before = clock.us
    clock.advance(1)
    report(limiter, *[FAILED] * 3)
    assert report(limiter, SUCCEEDED, granted_at=before)
    assert not report(limiter, SUCCEEDED, granted_at=clock.us)


def test_operator_settings_survive_the_breaker(limiter: Limiter, clock: Clock) -> None:
    limiter.set_rate("api", "7/s")
    assert not report(limiter, *[FAILED] * 5)
    limiter.unset_rate("api")
    assert report(limiter, FAILED)
    clock.advance(1)
    limiter.set_rate("api", "9/s")
    assert not report(limiter, FAILED, SUCCEEDED)
    assert limiter.config("api").in_force == Limit("9/s", name="api", breaker=API.breaker)


def test_breaker_closes_after_an_hour_without_failures(limiter: Limiter, clock: Clock) -> None:
    report(limiter, *[FAILED] * 3)
    clock.advance(3599)
    report(limiter, FAILED)
    clock.advance(3599)
    assert limiter.config("api").by == "breaker"
    clock.advance(2)
    assert limiter.config("api").in_force == API


def test_pause_continues_while_the_breaker_is_open(limiter: Limiter, clock: Clock) -> None:
    limiter.pause("api", 60)
    report(limiter, *[FAILED] * 3)
    report(limiter, SUCCEEDED)
    assert limiter.config("api").paused == 60
