"""A rate that goes up and down, and pauses, under load: exact by the store's clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import redis

from celery_ratelimit import Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.testing import EmbeddedServer
from tests.integration.limiter.callers import Crowd, crowd, store_time
from tests.lua.frozen import us
from tests.lua.windows import Start, check_every_window

CODE = Limit("50/s", burst=4, name="api")
#: Seconds that each rate is in force.
EACH = 0.3
#: The rates that are stored, one after the other; the last one ends by itself.
RATES = {
    "token_bucket": [Limit(f"{rate}/s", burst=4, name="api") for rate in (200, 20, 400, 100)],
    "sliding_log": [Limit(f"{count}/0.1s", algorithm="sliding_log", name="api") for count in (20, 2, 40, 10)],
}


class Told(NamedTuple):
    """One decision: when it was made and when its permit is good, by the store's clock; the limit it went by."""

    asked: int
    at: int
    allowed: bool
    size: int
    interval: float


@dataclass(frozen=True)
class Period:
    """A limit that was in force for certain from ``begin`` to ``end``, us of the store's clock; None: a pause."""

    limit: Limit | None
    begin: int
    end: int


@pytest.fixture(scope="module")
def processes() -> Iterator[Crowd]:
    with crowd() as pool:
        yield pool


def insist(limiter: Limiter, _: str, limit: Limit, seconds: float, horizon: float) -> list[Told]:
    """Ask again and again. With a horizon the permit may lie that far ahead."""
    told: list[Told] = []
    demands = [LimitRequest(limit, limit.name or "")]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        decision = limiter._asker.ask(demands, horizon=horizon)
        wait = us(decision.retry_after) if decision.allowed else 0
        state = decision.states[0]
        told.append(
            Told(decision._granted_at - wait, decision._granted_at, decision.allowed, state.capacity, state.interval)
        )
        if not decision.allowed:
            time.sleep(0.0005)
    return told


def change(limiter: Limiter, store: redis.Redis, rates: list[Limit]) -> list[Period]:
    """Changes the rate up and down, pauses, and goes on; when what was in force."""
    while not store.exists("ratelimit:v1:{api}::state"):
        time.sleep(0.001)
    periods: list[Period] = []
    begin, last = store_time(limiter), CODE
    time.sleep(0.1)
    for number, rate in enumerate(rates):
        before = store_time(limiter)
        assert limiter.set_rate("api", rate, for_=EACH if rate is rates[-1] else None, force=True)
        periods.append(Period(last, begin, before))
        begin, last = store_time(limiter), rate
        ends = before + us(EACH)
        time.sleep(EACH)
        if number == 1:
            before = store_time(limiter)
            limiter.pause("api", 0.15, force=True)
            paused = store_time(limiter)
            time.sleep(0.05)
            limiter.pause("api", 0.01, force=True)  # which shortens nothing
            periods.append(Period(None, paused, before + 150_000 - 1))
            time.sleep(0.2)
        if number == 2:
            limiter.pause("api", 600, force=True)
            paused = store_time(limiter)
            time.sleep(0.1)
            resumed = store_time(limiter)
            assert limiter.resume("api", force=True)
            periods.append(Period(None, paused, resumed))
            time.sleep(0.1)
    periods.append(Period(last, begin, ends))
    time.sleep(0.001)  # clocks are corrected now and then
    begin = store_time(limiter)
    time.sleep(EACH)
    periods.append(Period(CODE, begin, store_time(limiter)))
    return periods


@pytest.mark.parametrize("callers", ["processes", pytest.param("threads", marks=pytest.mark.slow)])
@pytest.mark.parametrize("algorithm", RATES)
@pytest.mark.parametrize("horizon", [0.0, 0.02], ids=["now", "ahead"])
def test_law_1_holds_while_the_rate_goes_up_and_down(
    server: EmbeddedServer, store: redis.Redis, processes: Crowd, callers: str, algorithm: str, horizon: float
) -> None:
    code = CODE if algorithm == "token_bucket" else Limit("5/0.1s", algorithm=algorithm, name="api")
    rates = RATES[algorithm]
    limiter = Limiter.from_url(server.url)
    seconds = EACH * (len(rates) + 1) + 0.65
    with ThreadPoolExecutor(9) as threads:
        if callers == "processes":
            hammering = [threads.submit(processes.run, insist, server.url, code, seconds, horizon)]
        else:
            hammering = [threads.submit(insist, limiter, "", code, seconds, horizon) for _ in range(8)]
        periods = [
            Period(code, each.begin, each.end) if each.limit is CODE else each
            for each in change(Limiter.from_url(server.url), store, rates)
        ]
        parts = [each.result() for each in hammering]
    told = sorted(each for part in (parts[0] if callers == "processes" else parts) for each in part)
    permits = [each for each in told if each.allowed]

    fastest = max(rates, key=lambda limit: limit.size / limit.interval)
    check_every_window([Start(each.at, 1) for each in permits], LimitRequest(fastest, "api"))
    for period in periods:
        during = [each for each in told if period.begin <= each.asked <= period.end]
        good = [each for each in permits if period.begin <= each.asked and each.at <= period.end]
        if period.limit is None:
            assert good == [], "nothing is let in during a pause"
            continue
        if period.begin > told[-1].asked - us(EACH):
            continue  # the callers ended before it did: the machine is busy
        assert during, "the callers have asked"
        pace = period.limit.interval if algorithm == "token_bucket" else 0.0
        assert {(each.size, each.interval) for each in during} == {(period.limit.size, pace)}, "the rate in force"
        if horizon == 0:
            check_every_window([Start(each.at, 1) for each in good], LimitRequest(period.limit, "api"))
