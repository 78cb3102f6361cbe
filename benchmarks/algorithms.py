"""Scenario ``algorithms``: what several limits at once cost, what each algorithm costs the server, what it keeps.

Three tables from one run:

- *several*: three limits in one decision, against a bare ``INCR`` on a client like its own; beside three decisions of
  one limit, and three calls of each peer, which are three round trips and not atomic. pyrate-limiter can hold three
  rates of one key in one call, so that is there too.
- *server*: the server's own time for a decision (``commandstats``), against a bare GCRA script on the same server in
  the same round: the least that a decision in Lua can cost. Microseconds are the machine's, the ratio is not.
- *memory*: ``MEMORY USAGE`` of all keys that so many calls leave behind, a bucket.

Times are taken as in the scenario ``acquire``: every contender in every round, in an order that turns, medians of
the rounds, ratios within a round. Nothing is refused. A place under ``Concurrency`` is taken back after every fifty
calls, outside of the timing, so that between none and fifty are held.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from itertools import count
from statistics import median
from typing import Any

import redis

from benchmarks.acquire import BASE, BASE_DEFAULT, PEERS, WIDE, Contender, measure, row
from celery_ratelimit import Concurrency, Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limits.any_limit import AnyLimit
from celery_ratelimit.store.keys import bucket_keys
from celery_ratelimit.testing import embedded_server

Call = Callable[[], object]
Hit = Callable[[str], object]  # a call on the bucket of that key

#: A token bucket in Lua without anything besides: GCRA in whole microseconds, one key, one read and one write.
SKETCH = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
local new = tat + cost * interval
local grant = new - burst * interval
if grant > now then
    return {0, 0, grant - now, tat - now}
end
redis.call('SET', KEYS[1], string.format('%.0f', new), 'PX', math.ceil((new - now) / 1000))
return {1, math.floor((now - grant) / interval), 0, new - now}
"""
BARE = "a bare GCRA script"
THREE = "celery_ratelimit, three token buckets, one decision"
MIXED = "celery_ratelimit, token bucket + log + Concurrency, one decision"
OURS = "celery_ratelimit, {}"
TOKEN_BUCKET, SLIDING_LOG = OURS.format("token bucket"), OURS.format("sliding log")

#: Each algorithm with a limit that is never reached, so many times a second.
RATE = f"{WIDE}/s"
ALGORITHMS: dict[str, AnyLimit] = {
    "token bucket": Limit(RATE, burst=1000),
    "token bucket, interval of no whole µs": Limit(f"{WIDE - 1}/s", burst=1000),
    "token bucket, debt=10": Limit(RATE, burst=1000, debt=10),
    "token bucket, refill='interval'": Limit(RATE, burst=WIDE, refill="interval"),
    "token bucket, warmup=1": Limit(RATE, warmup=1),
    "leaky bucket": Limit(RATE, algorithm="leaky_bucket"),
    "fixed window": Limit(RATE, algorithm="fixed_window"),
    "fixed window, align='first'": Limit(RATE, algorithm="fixed_window", align="first"),
    "sliding window": Limit(RATE, algorithm="sliding_window"),
    "sliding log": Limit(RATE, algorithm="sliding_log"),
    "Concurrency": Concurrency(WIDE),
}
#: The same for memory: so slow that no key expires while it is looked at.
SLOW = "20000/d"
KEPT: dict[str, AnyLimit] = {
    "token bucket": Limit("1/h", burst=20000),
    "token bucket, refill='interval'": Limit("1/h", burst=20000, refill="interval"),
    "token bucket, warmup=3600": Limit("1/m", warmup=3600),
    "leaky bucket": Limit("1/h", algorithm="leaky_bucket"),
    "fixed window": Limit(SLOW, algorithm="fixed_window"),
    "sliding window": Limit(SLOW, algorithm="sliding_window"),
    "sliding log": Limit(SLOW, algorithm="sliding_log"),
    "Concurrency": Concurrency(20000, lease=3600),
}
#: After how many calls memory is looked at, and over how many buckets it is averaged.
BUCKETS = {1: 1000, 100: 5, 1000: 1, 10000: 1}
#: What keeps something for each call; the others are looked at after 1 and 100 only.
LOGS = ("sliding log", "Concurrency", "limits, moving window", "pyrate-limiter")


def run(*, rounds: int, calls: int, say: Callable[[str], None]) -> list[dict[str, object]]:
    """``rounds`` × ``calls`` for each contender, then memory. Peers that are not installed are listed as such."""
    with embedded_server() as server, redis.Redis.from_url(server.url) as stats:
        several, several_missing = _several(server.url)
        single, single_missing = _single(server.url)
        contenders = [*several, *single]
        measure(contenders, stats, rounds=rounds, calls=calls, say=lambda text: say(f"algorithms: {text}"))
        stats.flushdb()
        memory = _memory(server.url, stats, say)
    bases = {contender.name: contender for contender in several}
    rows = [{"part": "several", **row(contender, bases[contender.base])} for contender in several]
    rows += [{"part": "several", "name": name, "note": "not installed"} for name in several_missing]
    rows += [{"part": "server", **_server_row(contender, single)} for contender in single]
    rows += [{"part": "server", "name": name, "note": "not installed"} for name in single_missing]
    return [*rows, *({"part": "memory", **each} for each in memory)]


def _server_row(contender: Contender, all_of_them: Sequence[Contender]) -> dict[str, object]:
    def against(name: str) -> float:
        base = next(each for each in all_of_them if each.name == name)
        return median(mine / its for mine, its in zip(contender.server_us, base.server_us, strict=True))

    return {
        "name": contender.name,
        "server_us": median(contender.server_us),
        "against_bare": against(BARE),
        "against_token_bucket": against(TOKEN_BUCKET),
        "us": median(contender.us),
        "refused": contender.refused,
        "runs": contender.server_us,
    }


# -- Who takes part ----------------------------------------------------------------------------------------------------


def _several(url: str) -> tuple[list[Contender], list[str]]:
    limiter = Limiter.from_url(url)
    buckets = [Limit(RATE, burst=1000, name=f"bench{number}") for number in range(3)]
    mixed = [buckets[0], Limit(RATE, algorithm="sliding_log", name="bench-log"), Concurrency(WIDE, name="bench-places")]
    default = redis.Redis.from_url(url)

    def decide(limits: Sequence[AnyLimit]) -> Call:
        return lambda: limiter.acquire(limits).allowed

    first, second, third = (decide([limit]) for limit in buckets)
    contenders = [
        Contender(BASE, lambda: limiter.client.incr("bench:incr"), BASE),
        Contender("celery_ratelimit, one token bucket", first, BASE),
        Contender(THREE, decide(buckets), BASE),
        Contender(MIXED, decide(mixed), BASE, _free(limiter, mixed[2])),
        Contender("celery_ratelimit, three token buckets, three decisions", _in_turn(first, second, third), BASE),
        Contender(BASE_DEFAULT, lambda: default.incr("bench:incr"), BASE_DEFAULT),
    ]
    missing = []
    for name, build in PEERS.items():
        title = f"{name}, three calls"
        try:
            contenders.append(Contender(title, _in_turn(*[build(url)] * 3), BASE_DEFAULT))
        except ImportError:
            missing.append(title)
    title = "pyrate-limiter, three rates of one key, one call"
    try:
        contenders.append(Contender(title, _pyrate_three_rates(url), BASE_DEFAULT))
    except ImportError:
        missing.append(title)
    return contenders, missing


def _single(url: str) -> tuple[list[Contender], list[str]]:
    limiter = Limiter.from_url(url)
    sketch = redis.Redis.from_url(url).register_script(SKETCH)
    contenders = [Contender(BARE, lambda: sketch(["bench:sketch"], [1, 1000, 1])[0], BARE)]
    for name, limit in ALGORITHMS.items():
        contenders.append(_one(limiter, OURS.format(name), limit))
    missing = []
    for name, build in {**PEERS, "limits, sliding window": _limits_sliding_window}.items():
        try:
            contenders.append(Contender(name, build(url), BARE))
        except ImportError:
            missing.append(name)
    return contenders, missing


def _one(limiter: Limiter, name: str, limit: AnyLimit) -> Contender:
    demands = (LimitRequest(limit, name),)
    if isinstance(limit, Concurrency):
        ids = (f"{uuid.uuid4()}" for _ in count())
        return Contender(
            name, lambda: limiter._asker.ask(demands, id=next(ids)).allowed, BARE, _free(limiter, limit, name)
        )
    return Contender(name, lambda: limiter._asker.ask(demands).allowed, BARE)


def _free(limiter: Limiter, limit: AnyLimit, name: str = "") -> Call:
    """Takes all places back, by a command that is no script."""
    leases, _ = bucket_keys(limiter.prefix, name or limit.name or "", "", limit.method)
    return lambda: limiter.client.delete(leases)


def _in_turn(first: Call, second: Call, third: Call) -> Call:
    return lambda: all([first(), second(), third()])


def _pyrate_three_rates(url: str) -> Call:
    from pyrate_limiter import Duration, Rate, RedisBucket
    from pyrate_limiter import Limiter as PyrateLimiter

    rates = [Rate(WIDE * times, Duration.SECOND * times) for times in (1, 2, 3)]
    bucket = RedisBucket.init(rates, redis.Redis.from_url(url), "bench:pyrate-rates")
    limiter = PyrateLimiter(bucket)
    return lambda: limiter.try_acquire("bench", blocking=False)


def _limits_sliding_window(url: str) -> Call:
    from limits import RateLimitItemPerSecond, strategies
    from limits.storage import storage_from_string

    limiter = strategies.SlidingWindowCounterRateLimiter(storage_from_string(url))
    item = RateLimitItemPerSecond(WIDE)
    return lambda: limiter.hit(item, "bench-sliding")


# -- Memory ------------------------------------------------------------------------------------------------------------


def _memory(url: str, client: Any, say: Callable[[str], None]) -> list[dict[str, object]]:
    contenders: dict[str, Callable[[str], Hit]] = {}
    contenders.update({OURS.format(name): _our_hit(limit) for name, limit in KEPT.items()})
    contenders.update(_PEERS_HIT)
    rows: list[dict[str, object]] = []
    for name, build in contenders.items():
        say(f"algorithms: memory of {name}")
        try:
            hit = build(url)
        except ImportError:
            rows.append({"name": name, "note": "not installed"})
            continue
        grows = name.removeprefix(OURS.format("")) in LOGS
        figures: dict[str, object] = {"name": name}
        for calls, buckets in BUCKETS.items():
            if calls > 100 and not grows:
                break
            size = figures[f"bytes_{calls}"] = _bytes_a_bucket(client, hit, calls, buckets)
            if grows:
                figures[f"bytes_a_call_{calls}"] = size / calls
        rows.append(figures)
    return rows


def _bytes_a_bucket(client: Any, hit: Hit, calls: int, buckets: int) -> float:
    client.flushdb()
    for number in range(buckets):
        for _ in range(calls):
            hit(f"tenant-{number:04}")
    keys = list(client.scan_iter(count=1000))
    return sum(client.memory_usage(key, samples=0) for key in keys) / buckets


def _our_hit(limit: AnyLimit) -> Callable[[str], Hit]:
    def build(url: str) -> Hit:
        limiter = Limiter.from_url(url)
        horizon = 1e8  # what cannot be had now is taken ahead: nothing is refused
        if isinstance(limit, Concurrency):  # ids of tasks
            return lambda key: limiter._asker.ask((LimitRequest(limit, "api", key),), id=str(uuid.uuid4()))
        return lambda key: limiter._asker.ask((LimitRequest(limit, "api", key),), horizon=horizon)

    return build


def _throttled_hit(url: str) -> Hit:
    from throttled import RedisStore, Throttled, per_day

    throttle = Throttled(using="gcra", quota=per_day(24, burst=20000), store=RedisStore(server=url))
    return lambda key: throttle.limit(f"api:{key}")


def _limits_hit(strategy: str) -> Callable[[str], Hit]:
    def build(url: str) -> Hit:
        from limits import RateLimitItemPerDay, strategies
        from limits.storage import storage_from_string

        limiter = getattr(strategies, strategy)(storage_from_string(url))
        item = RateLimitItemPerDay(20000)
        return lambda key: limiter.hit(item, "api", key)

    return build


def _pyrate_hit(url: str) -> Hit:
    from pyrate_limiter import Duration, Rate, RateItem, RedisBucket

    client, rates = redis.Redis.from_url(url), [Rate(20000, Duration.DAY)]
    buckets: dict[str, Any] = {}

    def hit(key: str) -> object:
        if key not in buckets:
            buckets[key] = RedisBucket.init(rates, client, f"api:{key}")
        return buckets[key].put(RateItem(key, time.time_ns() // 1_000_000))

    return hit


_PEERS_HIT: dict[str, Callable[[str], Hit]] = {
    "throttled-py, GCRA": _throttled_hit,
    "limits, fixed window": _limits_hit("FixedWindowRateLimiter"),
    "limits, sliding window": _limits_hit("SlidingWindowCounterRateLimiter"),
    "limits, moving window": _limits_hit("MovingWindowRateLimiter"),
    "pyrate-limiter": _pyrate_hit,
}
