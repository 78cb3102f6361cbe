"""Decisions are counted in the store by second, by minute and in total, in bounded memory."""

from __future__ import annotations

import random

import pytest
import redis

from celery_ratelimit import ConfigurationError, Limiter
from celery_ratelimit.counts.stats import Moment, Stats
from celery_ratelimit.counts.tally import MOST_USERS, Tally
from celery_ratelimit.limiter.report_counts import tell_counts
from celery_ratelimit.operations.bucket_status import recent_use
from celery_ratelimit.store.keys import count_keys
from tests.conftest import Clock


def tell(limiter: Limiter, tally: Tally) -> None:
    limiter._asker.drive(tell_counts(limiter._asker.core, tally.take()))


def stats(limiter: Limiter, name: str = "api") -> Stats:
    return limiter.stats(name, force=True)[name]


def scripts_run(store: redis.Redis) -> int:
    calls = store.info("commandstats")
    return sum(calls.get(f"cmdstat_{verb}", {}).get("calls", 0) for verb in ("evalsha", "eval"))


def test_reports_of_two_processes_are_added(frozen: Limiter, clock: Clock) -> None:
    ours, theirs = Tally(), Tally()
    ours.started("acquired", [("api", "", 3)], 0.0, ("tpay", "qmoney"))
    ours.started("waited", [("api", "", 1), ("tenant", "t:7", 2)], 0.7, ("tpay", "qmoney"))
    theirs.started("waited", [("api", "", 5)], 4000.0, ("tmail", "qmoney"))
    theirs.happened("parked", ["api"])
    theirs.happened("dropped", ["api"])
    for tally in (ours, theirs):
        tell(frozen, tally)
    said = stats(frozen)
    assert {name: number for name, number in said.results.items() if number} == {
        "acquired": 1,
        "waited": 2,
        "parked": 1,
        "dropped": 1,
    }
    assert (said.permits, said.started, said.waited) == (9, 3, 4000.7)
    assert [wait for wait in said.waits if wait[1]] == [(0.01, 1), (1.0, 1), (float("inf"), 1)]
    assert said.waited_at_most(0.5) == 1.0
    now = clock.us / 1e6
    assert said.at == now
    assert said.seconds == (Moment(now // 1, 3, 9, 1, 1),)
    assert said.minutes == (Moment(now // 60 * 60, 3, 9, 1, 1),)
    assert [(user.kind, user.name, user.permits) for user in said.users] == [
        ("queue", "money", 9.0),
        ("task", "mail", 5.0),
        ("task", "pay", 4.0),
    ]
    (tenant,) = frozen.stats("tenant", totals=True, force=True).values()
    assert (tenant.permits, tenant.seconds, tenant.users) == (2, (), ())


def test_seconds_and_minutes_expire_and_clock_steps_back_count_in_the_last(frozen: Limiter, clock: Clock) -> None:
    tally, began = Tally(), clock.us
    for _ in range(200):
        tally.started("acquired", [("api", "", 1)], 0.0)
        tell(frozen, tally)
        clock.advance(1)
    said = stats(frozen)
    assert len(said.seconds) == 180
    assert [each.at for each in said.minutes] == [began / 1e6 + 60 * minute for minute in range(4)]
    assert sum(each.started for each in said.minutes) == said.results["acquired"] == 200
    assert (said.used(60), said.used(10)) == (60, 10)
    (few,) = frozen.stats("api", minutes=2, force=True).values()
    assert (few.minutes, few.seconds, few.users) == (said.minutes[-2:], (), ())
    assert few.results == said.results
    clock.advance(-5)
    tally.started("acquired", [("api", "", 7)], 0.0)
    tell(frozen, tally)
    assert stats(frozen).seconds[-1] == Moment(began / 1e6 + 199, 2, 8)


def test_sparse_reports_keep_their_times(frozen: Limiter, clock: Clock) -> None:
    tally, at = Tally(), []
    for pause in (0, 1, 3, 0, 70, 1, 200):
        clock.advance(pause)
        at.append(clock.us / 1e6)
        tally.started("acquired", [("api", "", 1)], 0.0)
        tell(frozen, tally)
    said = stats(frozen)
    assert [each.at for each in said.seconds] == sorted(set(at))
    assert [each.at for each in said.minutes] == sorted({each // 60 * 60 for each in at})


def test_heaviest_keys_stay_and_old_use_fades(frozen: Limiter, clock: Clock) -> None:
    tally = Tally()
    tally.started("acquired", [("api", "old", 64)], 0.0)
    tell(frozen, tally)
    clock.advance(1200)
    for index in range(3 * MOST_USERS):
        tally.started("acquired", [("api", "big", 2), ("api", f"small {index}", 1)], 0.0)
        tell(frozen, tally)
    users = stats(frozen).users
    assert len(users) == MOST_USERS
    assert (users[0].name, users[0].permits) == ("big", 600.0)
    assert ("old", 16.0) in [(user.name, user.permits) for user in users]


def used(limiter: Limiter, *asked: tuple[str, float]) -> list[int]:
    found: list[int] = limiter._asker.drive(recent_use(limiter._asker.core, asked))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_recent_usage_adds_seconds_and_parts_of_minutes(frozen: Limiter, clock: Clock, seed: int) -> None:
    random_ = random.Random(seed)
    tally, told = Tally(), list[tuple[int, int]]()  # the second, and its permits
    clock.advance(random_.uniform(0, 60))
    for _ in range(150):
        clock.advance(random_.choice([0.1, 0.9, 1, 5, 40, 150]))
        permits = random_.randrange(1, 100)
        tally.started("acquired", [("api", "", permits)], 0.0)
        tell(frozen, tally)
        told.append((clock.us // 1_000_000, permits))
    clock.advance(random_.choice([0, 0.5, 1, 30, 170]))
    now = clock.us / 1e6
    minutes: dict[int, int] = {}
    for second, permits in told:
        minutes[second // 60] = minutes.get(second // 60, 0) + permits

    def of_minutes(within: float) -> float:
        shares = {minute: min(1, (60 * minute + 60 - (now - within)) / 60) for minute in minutes}
        return sum(minutes[minute] * share for minute, share in shares.items() if share > 0)

    asked = (60.0, 180.0, 181.0, 600.0, 3600.0, 86400.0)
    exact = [sum(permits for at, permits in told if now // 1 - within <= at < now // 1) for within in asked]
    assert used(frozen, *[("api", each) for each in asked]) == [
        *exact[:2],
        *[int(of_minutes(each) + 0.5) for each in asked[2:]],
    ]
    assert used(frozen, ("unused", 60.0), ("api", 60.0), ("unused", 3600.0)) == [0, exact[0], 0]
    assert used(frozen, ("api", 60.0)) == [stats(frozen).used(60)]


def test_usage_of_many_limits_is_read_in_steps(limiter: Limiter, store: redis.Redis) -> None:
    tally = Tally()
    for number in range(300):
        tally.started("acquired", [(f"limit {number}", "", number + 1)], 0.0)
    tell(limiter, tally)
    used(limiter, ("limit 0", 3600.0))  # from now on the store knows the script, whichever test ran before
    store.config_resetstat()
    found = used(limiter, *[(f"limit {number}", 3600.0 if number % 2 else 86400.0) for number in range(300)])
    assert found == list(range(1, 301))
    assert 50 <= scripts_run(store) <= 160


def test_day_of_a_busy_limit_takes_less_than_64_kb(frozen: Limiter, store: redis.Redis, clock: Clock) -> None:
    """1,000 a second that cost 50 each, half of them parked before, of 100 keys with long names."""
    keys = count_keys(frozen.prefix, "api")
    stamp = clock.us // 60_000_000
    store.rpush(keys[2], *[" s60000 p3000000 t30000 e12"] * 1439, f"{stamp - 1} s1 p1")
    second = clock.us // 1_000_000
    store.rpush(keys[1], *[" s1000 p50000 t500 e1"] * 179, f"{second - 1} s1 p1")
    tally, numbers = Tally(), random.Random(7)
    for index in range(1000):
        key = f"tenant:{index % 200}:{'x' * 60}"
        tally.started("waited", [("api", key, 50)], numbers.expovariate(0.01), ("tshop.tasks.charge", "qpayments"))
        tally.happened("parked", ["api"])
    tell(frozen, tally)
    assert [each.at // 60 for each in stats(frozen).minutes] == [stamp - 1439 + i for i in range(1440)]
    sizes = [store.memory_usage(key, samples=0) for key in keys]
    assert sum(sizes) <= 64 * 1024, sizes


def test_every_count_expires(limiter: Limiter, store: redis.Redis) -> None:
    tally = Tally()
    tally.started("acquired", [("api", "k", 1)], 0.0)
    tell(limiter, tally)
    left = [store.pttl(key) / 1000 for key in count_keys(limiter.prefix, "api")]
    assert left == pytest.approx([30 * 86400, 240, 90000, 7200], abs=60)


def test_stats_of_an_unknown_limit_raise(limiter: Limiter) -> None:
    with pytest.raises(ConfigurationError, match="apl"):
        limiter.stats("apl")
    assert limiter.stats("apl", force=True)["apl"].permits == 0


def test_process_buffers_a_bounded_number_of_counts() -> None:
    tally = Tally()
    for index in range(3000):
        tally.started("acquired", [("api", f"key {index}", 1), (f"limit {index}", "", 1)], 0.0)
    parts = dict(tally.take())
    assert len(parts) == 1000
    assert len(parts["api"].users) == 1000
    assert len(parts["api"].most()) == MOST_USERS
    assert parts["api"].numbers["permits"] == 3000


def test_large_reports_are_split_into_several_scripts(limiter: Limiter, store: redis.Redis) -> None:
    tally = Tally()
    for name in [f"limit {number}" for number in range(10)]:
        for key in range(150):
            tally.started("acquired", [(name, f"key {key}", 1)], 0.0)
    store.config_resetstat()
    tell(limiter, tally)
    assert scripts_run(store) >= 3
    told = limiter.stats([f"limit {number}" for number in range(10)], force=True)
    assert [(each.permits, len(each.users)) for each in told.values()] == [(150, MOST_USERS)] * 10
