"""Limits in shadow are simulated by a virtual queue in the store, compared to a model and to the limits themselves."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import redis

from celery_ratelimit import Limit, Limiter
from celery_ratelimit.counts.shadow_arrivals import Arrivals
from celery_ratelimit.counts.shadow_report import ShadowReport
from celery_ratelimit.limiter.shadow import ask_shadow_reports, tell_arrivals
from tests.conftest import Clock

from .virtual_queue import Queue

LATE = 2.6
LIMITS = {
    "token_bucket": Limit("100/s", name="api"),
    "burst": Limit("3/s", burst=7, name="api"),
    "debt": Limit("10/s", burst=5, debt=20, name="api"),
    "leaky_bucket": Limit("100/s", algorithm="leaky_bucket", capacity=9, name="api"),
    "sliding_log": Limit("20/s", algorithm="sliding_log", name="api"),
    "fixed_window": Limit("20/s", algorithm="fixed_window", name="api"),
    "stepped_bucket": Limit("5/s", burst=8, refill="interval", name="api"),
    "sliding_window": Limit("20/s", algorithm="sliding_window", name="api"),
    "warm_up": Limit("20/s", burst=5, warmup=2, name="api"),
}
MODELLED = [name for name in LIMITS if name not in ("sliding_window", "warm_up")]


class Process:
    """One that tells: its clock is the store's."""

    def __init__(self, limiter: Limiter, clock: Clock) -> None:
        self._limiter, self._clock = limiter, clock
        self.arrivals = Arrivals(lambda: clock.us / 1e6)

    def came(self, limit: Limit, cost: int = 1, key: str = "") -> None:
        self._limiter._asker.core.shadows.limits[str(limit.name)] = limit
        self.arrivals.came([(str(limit.name), key, cost)])

    def tell(self) -> None:
        self._limiter._asker.drive(tell_arrivals(self._limiter._asker.core, self.arrivals))


def shadow_report(limiter: Limiter, limit: Limit) -> ShadowReport:
    name = str(limit.name)
    return limiter._asker.drive(ask_shadow_reports(limiter._asker.core, {name: limit}))[name]


def cost_of(limit: Limit, numbers: random.Random) -> int:
    return numbers.randint(1, min(4, limit.most)) if limit.method != "leaky_bucket" else 1


def assert_alike(said: ShadowReport, delays: Sequence[float]) -> None:
    assert said.requests == len(delays)
    most, least = [sum(delay > 10_000 + more for delay in delays) for more in (-3, 3)]
    assert least <= said.delayed <= most
    assert said.longest * 1e6 == pytest.approx(max(delays), abs=3 + 0.1 * len(delays))  # a double's
    assert said.waited * 1e6 == pytest.approx(sum(delays), abs=20 * len(delays) + 1)


def test_stalled_reports_keep_their_order(frozen: Limiter, clock: Clock) -> None:
    """A permit is corrected after it was taken, also where the process stands still in the middle of the report."""
    limit, process = Limit("10/h", burst=100, name="api"), Process(frozen, clock)
    times = iter([0.0, 0.001, 0.002, *range(1, 10)])
    process.arrivals = Arrivals(lambda: next(times))
    process.came(limit, 100)
    process.arrivals.corrected([("api", "", -100)])
    process.came(limit, 100)
    process.tell()
    clock.advance(LATE)
    assert shadow_report(frozen, limit).longest == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("name", MODELLED)
def test_simulation_matches_the_model(frozen: Limiter, clock: Clock, name: str) -> None:
    """Several processes, bursts and pauses; each tells in its own second."""
    limit, numbers = LIMITS[name], random.Random(name)
    clock.advance(56.7)  # soon it is another minute
    queue, processes = Queue(limit), [Process(frozen, clock) for _ in range(3)]
    trace = []
    told = [clock.us + numbers.randint(0, 1_000_000) for _ in processes]
    for _ in range(600):
        pause = numbers.expovariate(1 / limit.interval) if numbers.random() < 0.97 else 20 * limit.interval
        until = clock.us + round(pause * 1e6)
        while clock.us < until:
            clock.set(min(until, clock.us + 500_000))
            for i, process in enumerate(processes):
                if clock.us - told[i] > 1_000_000:
                    process.tell()
                    told[i] = clock.us
        cost = cost_of(limit, numbers)
        numbers.choice(processes).came(limit, cost)
        trace.append((clock.us, cost))
    for process in processes:
        process.tell()
    clock.advance(LATE)
    turns = [(at, queue.ask(at, cost)) for at, cost in trace]
    delays = [0.0 if turn is None else float(turn - at) for at, turn in turns]
    assert max(delays) > 50_000
    assert_alike(shadow_report(frozen, limit), delays)
    assert shadow_report(frozen, limit).pending == 0


@pytest.mark.parametrize("name", LIMITS)
def test_simulated_wait_equals_a_reservation(frozen: Limiter, clock: Clock, name: str) -> None:
    """The limit itself, asked without end for permits ahead, gives the same times."""
    limit, numbers, process = LIMITS[name], random.Random(name), Process(frozen, clock)
    real = Limit.__new__(Limit)
    real.__dict__.update({**limit.__dict__, "name": "real"})
    waits, refused = [], 0
    for number in range(200):
        clock.advance(round(numbers.expovariate(1.4 / limit.interval), 6))
        cost = cost_of(limit, numbers) if limit.method != "warm_up" else 1
        decision = frozen.reserve(real, id=f"{number}", horizon=1e6, cost=cost)
        refused += not decision.allowed
        waits.append(decision.retry_after * 1e6 if decision.allowed else 0.0)
        process.came(limit, cost)
    process.tell()
    clock.advance(LATE)
    said = shadow_report(frozen, limit)
    assert said.refused == refused
    assert_alike(said, waits)


def test_each_key_has_its_own_simulated_queue(frozen: Limiter, clock: Clock) -> None:
    limit, process = Limit("10/s", name="tenant", key="t:{t}"), Process(frozen, clock)
    for _ in range(10):
        for key in ("a", "b", "odd key\n\0é %s 1"):
            process.came(limit, key=key)
    process.tell()
    clock.advance(LATE)
    said = shadow_report(frozen, limit)
    assert (said.requests, said.delayed) == (30, 27)
    assert said.longest == pytest.approx(0.9)


def test_simulated_queue_follows_a_changed_rate(frozen: Limiter, clock: Clock) -> None:
    numbers = random.Random(1)
    for round_ in range(30):
        frozen.client.flushdb()
        clock.set(clock.us)
        before, after = [LIMITS[numbers.choice(MODELLED)] for _ in range(2)]
        queue, process, delays = Queue(before), Process(frozen, clock), list[float]()
        for limit in (before, after):
            is_changed = limit is after and after != before
            if is_changed:
                frozen.set_rate("api", after, force=True)
            clock.advance(0.001)
            for number in range(numbers.randint(1, 60)):
                clock.advance(round(numbers.expovariate(1.5 / before.interval), 6))
                if is_changed and number == 0:
                    queue.change(after, clock.us)
                process.came(before)
                turn = queue.ask(clock.us, 1)
                delays.append(0.0 if turn is None else float(turn - clock.us))
            process.tell()
            clock.advance(LATE)
            process.tell()
        said = shadow_report(frozen, before)
        assert said.requests == len(delays), round_
        assert said.waited * 1e6 == pytest.approx(sum(delays), abs=3 * len(delays) + 1), (round_, before, after)


def test_simulation_keys_expire(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
    process = Process(frozen, clock)
    for key, rest in (("a", 120), ("b", 0)):
        process.came(LIMITS["token_bucket"], key=key)
        process.tell()
        clock.advance(LATE)
        process.tell()
        assert store.hkeys("ratelimit:v1:{api}::queues") == [key]
        clock.advance(rest)


@pytest.mark.parametrize("name", LIMITS)
def test_reading_the_simulation_writes_nothing(frozen: Limiter, clock: Clock, store: redis.Redis, name: str) -> None:
    limit, process = LIMITS[name], Process(frozen, clock)
    for _ in range(40):
        clock.advance(0.01)
        process.came(limit)
    process.tell()
    clock.advance(LATE)
    values = {key: store.dump(key) for key in store.keys("ratelimit:*")}
    said = shadow_report(frozen, limit)
    assert (said.requests, said.pending) == (40, 0)
    assert {key: store.dump(key) for key in store.keys("ratelimit:*")} == values
    process.tell()
    assert not store.exists("ratelimit:v1:{api}::arrivals"), "the process that has told of them has them reckoned"
    assert shadow_report(frozen, limit) == said


def test_process_sends_its_requests_once(frozen: Limiter, clock: Clock) -> None:
    process, shadows = Process(frozen, clock), frozen._asker.shadows
    process.came(LIMITS["burst"])
    process.tell()
    assert list(shadows.pending) == ["api"]
    for _ in range(3):
        clock.advance(1)
        process.tell()
    assert not shadows.pending
    process.came(LIMITS["burst"])
    process.tell()
    for _ in range(12):
        process.tell()
    assert not shadows.pending, "others may tell of more without end"


def test_shadow_report_in_words(frozen: Limiter, clock: Clock) -> None:
    usual, fast = Limit("600/m", burst=5, name="api"), Limit("1000000/s", burst=9, name="fast")
    assert str(shadow_report(frozen, usual)) == "nothing has come yet"
    process = Process(frozen, clock)
    process.came(fast)
    for _ in range(2000):  # a whole batch, after which nothing comes
        process.came(usual)
    process.tell()
    clock.advance(LATE)
    for _ in range(4):
        process.tell()
    assert str(shadow_report(frozen, fast)) == "would have delayed none of 1 task"
    said = str(shadow_report(frozen, usual))
    assert said.startswith("would have delayed 1,995 of 2,000 tasks, by 199.5 s at most; used 333 % of 10/s at ")
    said = str(ShadowReport(5, 2, 1, 0.2, 0.3, 1.0, 0.5, 1.0, "1/s"))
    assert said.startswith("would have delayed 2 of 5 tasks, by 0.2 s at most, and refused 1; used 50 % of 1/s at ")
