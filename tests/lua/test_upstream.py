"""Pauses that an upstream causes, their lengths, and the calls that follow them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import redis

from celery_ratelimit import Concurrency, ConfigurationError, Limit, Limiter
from celery_ratelimit.limiter import upstream_methods
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.upstream_methods import report_throttle
from tests.conftest import Clock

from .frozen import expiries

API = Limit("100/s", burst=10, name="api")
SLOW = Limit("1/m", name="slow")
TENANTS = Limit("10/s", name="tenants", key="{tenant}")


@pytest.fixture(autouse=True)
def _without_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_methods, "JITTER", 0.0)


@pytest.fixture
def limiter(frozen: Limiter) -> Limiter:
    frozen.quotas.update(api=API, slow=SLOW, tenants=TENANTS, places=Concurrency(2, name="places"))
    return frozen


def test_retry_after_pauses_the_limit(limiter: Limiter, clock: Clock) -> None:
    assert limiter.throttled("api", retry_after=5) == 5
    assert limiter.throttled("api", retry_after=2) == 5, "a pause never becomes shorter"
    assert limiter.throttled("api", retry_after=30) == 30
    assert limiter.acquire("api").retry_after == 30
    clock.advance(30)
    assert limiter.acquire("api")
    assert limiter.throttled("api", retry_after=1e9) == 86400, "a day at most"


@pytest.mark.parametrize("name", ["api", "slow", "places"])
def test_refusals_without_retry_after_pause_longer_each_time(limiter: Limiter, clock: Clock, name: str) -> None:
    first = 60 if name == "slow" else 1
    for said in (None, 0, -3):
        assert limiter.throttled(name, retry_after=said) == first, "and once for all that were on their way"
    clock.advance(first)
    pauses = []
    for _ in range(8):
        pauses.append(limiter.throttled(name))
        clock.advance(pauses[-1])
    assert pauses == ([60] * 8 if name == "slow" else [2, 4, 8, 16, 32, 60, 60, 60])


def test_refusals_of_earlier_calls_extend_no_pause(limiter: Limiter, clock: Clock) -> None:
    before = clock.us
    clock.advance(0.01)
    assert limiter.throttled("api", granted_at=before) == 1
    clock.advance(0.5)
    assert limiter.throttled("api", granted_at=before) == 0.5
    clock.advance(0.6)
    assert limiter.throttled("api", granted_at=before) == 0, "the pause is over"
    assert limiter.throttled("api", granted_at=clock.us - 50_000) == 2, "one of the first ten calls after it"
    clock.advance(2.5)
    assert limiter.throttled("api", granted_at=clock.us) == 1, "fifty calls have passed before it"


def test_pauses_and_resumes_of_an_operator_win(limiter: Limiter, clock: Clock) -> None:
    limiter.pause("api", 100, by="anna")
    assert limiter.config("api").paused_by == "anna"
    assert limiter.throttled("api", retry_after=5) == 100
    limiter.resume("api")
    assert limiter.throttled("api") == 1
    clock.advance(0.5)
    limiter.resume("api")
    assert limiter.throttled("api", granted_at=clock.us) == 2, "a call after the resume has been refused"


@pytest.mark.parametrize("stored", [None, "50/s"])
def test_no_burst_follows_a_pause_and_debt_stays(limiter: Limiter, clock: Clock, stored: str | None) -> None:
    if stored:
        limiter.set_rate("api", stored)
    interval = 20_000 if stored else 10_000
    limiter.throttled("api", retry_after=5)
    clock.advance(5)
    began, starts = clock.us, []
    for _ in range(20):
        while not (decision := limiter.acquire("api")):
            clock.advance(decision.retry_after)
        starts.append(clock.us - began)
    assert starts == [interval * number for number in range(20)]
    limiter.charge("api", 1000)
    limiter.throttled("api", retry_after=5)
    clock.advance(5)
    assert limiter.acquire("api").retry_after == pytest.approx(1001 * interval / 1e6 - 5), "debt stays"


def test_pauses_apply_to_one_key(limiter: Limiter) -> None:
    assert limiter.throttled("tenants", key="7", retry_after=5) == 5
    assert limiter.acquire("tenants", key="7").retry_after == 5
    assert limiter.acquire("tenants", key="8")
    assert limiter.throttled("tenants", retry_after=5) == 5
    assert limiter.acquire("tenants", key="8").retry_after == 5
    with pytest.raises(ConfigurationError, match="key"):
        limiter.throttled("api", key="7")


@pytest.mark.parametrize("value", [float("nan"), "5", True, [5]])
@pytest.mark.parametrize("name", ["retry_after", "granted_at"])
def test_bad_values_raise(limiter: Limiter, name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=name):
        limiter.throttled("api", **{name: value})  # type: ignore[arg-type]


def test_history_keeps_the_last_throttle(limiter: Limiter, clock: Clock, store: redis.Redis) -> None:
    limiter.set_rate("api", "50/s", by="anna")
    for number in range(5):
        limiter.throttled("api", by="429 of task charge", reason=f"of task {number}", retry_after=5)
        clock.advance(6)
    limiter.throttled("api", by="429 of task charge", retry_after=5)
    assert [(each.verb, each.by) for each in limiter.history("api")] == [
        ("set", "anna"),
        ("throttled", "429 of task charge"),
    ]
    assert {key.split(":")[-1] for key in store.scan_iter("ratelimit:*")} - {"config"} <= {
        key.split(":")[-1] for key in expiries(store)
    }, "law 9"


@pytest.mark.parametrize("burst", [1, 10])
@pytest.mark.parametrize("seconds", [0.004, 0.3])
def test_refused_tasks_have_the_first_permits_after_a_short_pause(
    limiter: Limiter, clock: Clock, seconds: float, burst: int
) -> None:
    asker, line = limiter._asker, LimitRequest(Limit("100/s", burst=burst, name="line"), "line")
    began, waiting, starts = clock.us, dict[str, int](), list[int]()
    order: list[str] = []

    def ask(id: str) -> None:
        decision = asker.ask([line], id=id, claim=60)
        waiting[id] = clock.us + round(decision.retry_after * 1e6)
        if decision.allowed:
            del waiting[id]
            order.append(id)
            starts.append(clock.us - began)

    for number in range(burst + 30):
        ask(f"{number}")
    refused = [asker.drive(report_throttle(asker.core, line, "{}", seconds, None, takes=True)) for _ in range(2)]
    first = max(0.01, seconds)
    assert [each.wait for each in refused] == [first, first + 0.01]
    assert [each.granted_at for each in refused] == [clock.us + round(each.wait * 1e6) for each in refused if each.wait]
    while waiting:
        id = min(waiting, key=lambda each: waiting[each])
        clock.advance(max(0, waiting[id] - clock.us) / 1e6)
        ask(id)
    assert order == [str(number) for number in range(burst + 30)], "all others come later, in their order"
    assert starts[burst:] == [round(1e6 * first) + 10_000 * number for number in range(2, 32)], "and nothing is wasted"


@pytest.mark.parametrize(
    "limit",
    [Limit("100/s", burst=10, priority_reserve={0: 0.2}), Limit("100/s", algorithm="sliding_log"), Concurrency(2)],
)
def test_throttle_of_other_limits_takes_no_permit(frozen: Limiter, clock: Clock, limit: Any) -> None:
    demand = LimitRequest(limit, "line")
    for seconds in (0.3, 3):
        paused = report_throttle(frozen._asker.core, demand, "{}", seconds, None, takes=True)
        assert frozen._asker.drive(paused) == (seconds, None, 0)


@pytest.mark.parametrize("burst", [1, 50])
def test_rate_ramps_up_after_a_pause(limiter: Limiter, clock: Clock, burst: int) -> None:
    limiter.quotas["ramp"] = limit = Limit("100/s", burst=burst, name="ramp", resume_over=10)
    assert limiter.throttled(limit, retry_after=5) == 5
    began = clock.us + 5_000_000
    starts: list[int] = []
    while clock.us < began + 15_000_000:
        decision = limiter.acquire("ramp")
        if decision:
            starts.append(clock.us - began)
        clock.advance(decision.retry_after)
    assert min(starts) >= 0
    counts = [sum(second <= at / 1e6 < second + 1 for at in starts) for second in range(15)]
    assert 8 <= counts[0] <= 20, "a tenth"
    assert counts[:10] == sorted(counts[:10])
    assert 40 <= counts[9] <= 60
    assert 90 <= counts[10] <= 101
    assert counts[11:] == [100] * 4, "the whole, and no burst"
    config = limiter.config("ramp")
    assert config.stored is None
    assert not config.paused


def test_ramp_restarts_and_operator_settings_stay(limiter: Limiter, clock: Clock) -> None:
    limiter.quotas["ramp"] = limit = Limit("100/s", name="ramp", resume_over=10)
    for _ in range(2):
        limiter.throttled(limit, retry_after=5, by="429 of task charge")
        config = limiter.config("ramp")
        assert config.paused_by == "429 of task charge"
        assert (config.by, config.until) == ("429 of task charge", pytest.approx(clock.us / 1e6 + 15))
        assert (config.in_force.rate, config.in_force.warmup) == ("100/s", 10)  # type: ignore[union-attr]
        clock.advance(7)
    limiter.set_rate("ramp", "20/s", by="anna")
    limiter.throttled(limit, retry_after=5)
    assert limiter.config("ramp").by == "anna"


@pytest.mark.parametrize(
    "options", [{"algorithm": "sliding_log"}, {"debt": 1}, {"warmup": 3}, {"priority_reserve": {0: 0.5}, "burst": 9}]
)
def test_ramp_needs_a_plain_token_bucket(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="resume_over"):
        Limit("100/s", resume_over=10, **options)


def test_upstream_pauses_are_counted_by_source(limiter: Limiter, clock: Clock) -> None:
    limiter.throttled("api", retry_after=1)
    limiter.throttled("api", retry_after=1)
    for left in "09":
        headers = {"X-RateLimit-Remaining": left, "X-RateLimit-Reset": "9"}
        limiter.report("api", SimpleNamespace(status_code=200, headers=headers))
    stats = limiter.stats("api")["api"]
    assert stats.upstream() == {"upstream_refused": 2, "upstream_header": 1}
    clock.advance(3700)
    later = limiter.stats("api")["api"]
    assert later.upstream() == {}
    assert later.results["upstream_refused"] == 2


@pytest.mark.parametrize(
    ("limit", "taken"),
    [
        (Limit("10/s"), 0),
        (Limit("10/s"), 1),
        (Limit("10/s", burst=10), 0),
        (Limit("10/s", burst=10), 10),
        (Limit("10/s", burst=2, debt=20), 20),
        (Limit("10/s", resume_over=10), 0),
    ],
)
def test_resume_ends_an_upstream_pause(limiter: Limiter, clock: Clock, limit: Limit, taken: int) -> None:
    """As if it had ended by itself then: calls leave at the rate, without a burst, and debt stays."""
    limiter.quotas["here"] = limit
    if taken:
        assert limiter.acquire("here", cost=taken).allowed
    limiter.throttled("here", retry_after=3600)
    limiter.throttled("here", retry_after=7200)
    clock.advance(0.5)
    assert limiter.resume("here")
    debt = max(0.0, (taken - 5 - limit.burst) / 10)
    wait = limiter.acquire("here").retry_after
    assert wait <= max(debt + 0.1, 1.0 if limit.resume_over else 0.1)
    clock.advance(max(debt, wait))
    granted = 0
    for _ in range(10):
        clock.advance(0.1)
        granted += limiter.acquire("here").allowed
    assert (1 if limit.resume_over else 9) <= granted <= 11
