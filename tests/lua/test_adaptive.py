"""Limits that adapt to what an upstream refuses, on a clock that a test moves."""

from __future__ import annotations

import random
from collections import deque

import pytest
import redis

from celery_ratelimit import Adaptive, Concurrency, Limit, Limiter
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import Clock

from .frozen import FROZEN_STORE, expiries

API = Limit("100/s", adaptive=True)
CONFIG = "ratelimit:v1:{api}::config"


def make(server: EmbeddedServer, limit: Limit = API) -> Limiter:
    client = redis.Redis.from_url(server.url)
    return Limiter(client, quotas={"api": limit}, replace_includes={"now": FROZEN_STORE}, counts=False)


@pytest.fixture
def limiter(server: EmbeddedServer, clock: Clock) -> Limiter:
    return make(server)


def share(limiter: Limiter) -> float:
    return limiter.config("api").share


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, 0.7), (3.75, 0.8734), (7.5, 0.9625), (14.75, 1.0), (15, 1.0), (1e6, 1.0)],
)
def test_rate_falls_once_and_recovers_along_the_cubic(
    limiter: Limiter, clock: Clock, seconds: float, expected: float
) -> None:
    limiter.throttled("api")
    clock.advance(seconds)
    assert share(limiter) == pytest.approx(expected, abs=2e-3)
    limiter.acquire("api")
    wait = limiter.acquire("api").retry_after
    assert wait == pytest.approx(0.01 / expected, rel=2e-3), "the scripts and config() say the same"


def test_stored_window_of_an_adaptive_limit_pauses(limiter: Limiter) -> None:
    limiter.set_rate("api", Limit("1000/m", algorithm="sliding_log", name="api"))
    assert limiter.throttled("api") >= 1
    assert limiter.config("api").share == 1.0


def test_stored_concurrency_is_not_in_force_and_an_adaptive_limit_adapts(limiter: Limiter) -> None:
    """The code's limit was a Concurrency before."""
    limiter.set_rate(Concurrency(2, name="api"), Concurrency(2, name="api"))
    assert limiter.throttled("api") == 0
    assert share(limiter) == pytest.approx(0.7)


def test_refused_rate_is_approached_slowly_and_exceeded_later(limiter: Limiter, clock: Clock) -> None:
    for _ in range(2):
        limiter.throttled("api")
        clock.advance(2)
    clock.advance(13)  # 15 s after the second reduction
    back = share(limiter)
    assert back == pytest.approx(1 - 0.3 * (1 - 2 / 15) ** 3, rel=0.01), "what it was before that"
    found = []
    for _ in range(6):
        clock.advance(2.5)
        found.append(share(limiter))
    assert found == sorted(found)
    assert found[0] - back < 0.01 < found[-1] - found[-2]
    assert found[-1] == 1.0, "the whole rate, after as long again"


def test_limit_at_its_floor_is_paused(limiter: Limiter, clock: Clock) -> None:
    pauses = []
    for _ in range(9):
        clock.advance(0.05)
        pauses.append(limiter.throttled("api", granted_at=clock.us))
        clock.advance(pauses[-1])
    assert pauses[:6] == [0.0] * 6, "0.7^6 is above the floor of 0.1"
    assert 1.0 <= pauses[6] <= 1.25
    assert pauses[7] >= 2.0


def test_refusals_of_one_incident_reduce_the_rate_once(limiter: Limiter, clock: Clock) -> None:
    clock.advance(10)
    older = clock.us
    clock.advance(0.5)
    limiter.throttled("api", granted_at=older)
    for _ in range(20):
        clock.advance(0.01)
        limiter.throttled("api", granted_at=older)
    assert share(limiter) == pytest.approx(0.7, abs=0.01)
    limiter.throttled("api", granted_at=clock.us)
    assert share(limiter) == pytest.approx(0.49, abs=0.02)
    limiter.throttled("api")
    assert share(limiter) == pytest.approx(0.49, abs=0.02), "a moment later: the same incident"


def test_rate_stays_between_floor_and_configured_rate(server: EmbeddedServer, clock: Clock) -> None:
    limiter = make(server, Limit("100/s", adaptive=Adaptive(floor=0.25, recover=10)))
    for _ in range(12):
        clock.advance(1.1)
        limiter.throttled("api")
    assert share(limiter) == pytest.approx(0.25)
    for _ in range(80):
        clock.advance(0.5)
        assert 0.25 <= share(limiter) <= 1.0
    assert share(limiter) == 1.0


def test_reduction_of_one_key_expires_and_leaves_other_keys_alone(server: EmbeddedServer, clock: Clock) -> None:
    limiter = make(server, Limit("100/s", key="{tenant}", adaptive=True))
    limiter.throttled("api", key="a")
    shares = {key: limiter.config("api", key=key).share for key in ("a", "b")}
    assert shares == {"a": pytest.approx(0.7), "b": 1.0}


def test_operator_settings_survive_a_reduction(limiter: Limiter, clock: Clock, store: redis.Redis) -> None:
    limiter.set_rate("api", "50/s")
    limiter.throttled("api")
    limiter.pause("api", 1)
    limiter.resume("api")
    config = limiter.config("api")
    assert (str(config.in_force), config.share) == ("api: 50/s", pytest.approx(0.7))
    clock.advance(1)
    limiter.acquire("api")
    assert limiter.acquire("api").retry_after == pytest.approx(0.02 / share(limiter), rel=2e-3)
    limiter.unset_rate("api")
    assert limiter.config("api").share == pytest.approx(share(limiter))
    assert CONFIG in expiries(store), "nothing is stored for ever"
    assert [each.verb for each in limiter.history("api")] == ["set", "reduce", "pause", "resume", "unset"]


def test_retry_after_pauses_an_adaptive_limit(limiter: Limiter, clock: Clock) -> None:
    assert limiter.throttled("api", retry_after=5) == 5.0
    assert share(limiter) == pytest.approx(0.7)
    assert limiter.config("api").paused == 5.0


class Upstream:
    """A quota that the limit does not know: nginx's ``limit_req`` with a burst, by the frozen clock."""

    def __init__(self, rate: float, burst: int = 5) -> None:
        self.rate, self.burst, self._excess, self._last = rate, burst, 0.0, 0.0

    def accepts(self, now: float) -> bool:
        excess = max(0.0, self._excess - self.rate * (now - self._last)) + 1
        if excess > self.burst + 1:
            return False
        self._excess, self._last = excess, now
        return True


def run(limiter: Limiter, clock: Clock, upstream: Upstream, seconds: float) -> tuple[int, int]:
    """Twenty workers, each with a call that takes 20 to 60 ms; how many calls were accepted and refused."""
    rng, end = random.Random(1), clock.us + seconds * 1e6
    answers: deque[tuple[int, int]] = deque()  # when a refusal arrives, and when its permit was good
    accepted = refused = 0
    while clock.us < end:
        decision = limiter.acquire("api")
        if decision.allowed:
            if upstream.accepts(clock.us / 1e6):
                accepted += 1
            else:
                refused += 1
                answers.append((clock.us + rng.randint(20_000, 60_000), clock.us))
        clock.advance(max(decision.retry_after, 0.0001))
        while answers and answers[0][0] <= clock.us:
            limiter.throttled("api", granted_at=answers.popleft()[1])
    return accepted, refused


@pytest.mark.parametrize(
    "hidden", [50.0, pytest.param(30.0, marks=pytest.mark.slow), pytest.param(80.0, marks=pytest.mark.slow)]
)
def test_hidden_quota_is_used_and_seldom_exceeded(limiter: Limiter, clock: Clock, hidden: float) -> None:
    upstream = Upstream(hidden)
    run(limiter, clock, upstream, 30)
    accepted, refused = run(limiter, clock, upstream, 60)
    print(f"used {accepted / hidden / 60:.3f}, refused {refused / (accepted + refused):.4f}")
    assert accepted >= 0.9 * hidden * 60
    assert refused <= 0.02 * (accepted + refused)
    upstream.rate = 200.0
    clock_before = clock.us
    while share(limiter) < 0.95 and clock.us - clock_before < 60e6:
        run(limiter, clock, upstream, 1)
    assert clock.us - clock_before <= 30e6, "the quota is back: so is the rate"
