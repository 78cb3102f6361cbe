"""Scenario ``acquire``: one permit from Python, by each of the calls of the README, against a bare ``INCR`` on the same
client.

Rounds of a thousand calls, all contenders in each round, in an order that turns; the time of a contender is
the median over its rounds, its ratio the median of each round's own ratio to the ``INCR`` of that round.
Every limit is so wide that nothing is refused: this is what a call costs, not what it decides. ``INCR`` is
there twice, since our limiter sets socket timeouts and the peers leave redis-py's defaults: each is
compared with the ``INCR`` on a client like its own. A third ``INCR`` keeps one connection and does without
redis-py's pool, as our limiter does: the least that any call from Python can cost. The server's own time is
taken from its ``commandstats``.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import redis

from celery_ratelimit import Limit, Limiter
from celery_ratelimit.testing import embedded_server

WIDE = 1_000_000  # permits a second: never reached
BASE, BASE_DEFAULT = "INCR, our client", "INCR, redis-py's defaults"
KEPT = "INCR, a connection of its own"
SCRIPTS = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_fcall")
OURS = ("cmdstat_config|resetstat", "cmdstat_info")  # by which the statistics are read
TIDY = 50


@dataclass(slots=True)
class Contender:
    """One way to ask; ``call`` returns whether it was allowed."""

    name: str
    call: Callable[[], object]
    base: str
    tidy: Callable[[], object] | None = None  # after every TIDY calls, and not timed
    us: list[float] = field(default_factory=list)  # microseconds per call, one for each round
    server_us: list[float] = field(default_factory=list)
    refused: int = 0


def run(*, rounds: int, calls: int, say: Callable[[str], None]) -> list[dict[str, object]]:
    """``rounds`` × ``calls`` for each contender. Peers that are not installed are listed as such."""
    with embedded_server() as server, redis.Redis.from_url(server.url) as stats:
        contenders, missing = _contenders(server.url)
        measure(contenders, stats, rounds=rounds, calls=calls, say=lambda text: say(f"acquire: {text}"))
    bases = {contender.name: contender for contender in contenders}
    return [row(contender, bases[contender.base]) for contender in contenders] + [
        {"name": name, "note": "not installed"} for name in missing
    ]


def measure(contenders: list[Contender], stats: Any, *, rounds: int, calls: int, say: Callable[[str], None]) -> None:
    """Every contender in every round, in an order that turns; ``stats`` is a client of the server they all ask."""
    for contender in contenders:  # connections, scripts and caches, before anything is timed
        for _ in range(200):
            contender.call()
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        turn = number % len(contenders)
        for contender in contenders[turn:] + contenders[:turn]:
            _round(contender, calls, stats)


def _round(contender: Contender, calls: int, stats: Any) -> None:
    call, tidy = contender.call, contender.tidy
    if tidy is not None:
        tidy()
    stats.config_resetstat()
    gc.collect()
    gc.disable()  # a collection costs more than a call and would hit one contender or another by chance
    try:
        seconds, allowed, left = 0.0, 0, calls
        while left:
            now = min(left, TIDY) if tidy is not None else left
            began = time.perf_counter()
            allowed += sum(1 for _ in range(now) if call())
            seconds += time.perf_counter() - began
            left -= now
            if tidy is not None:
                tidy()
        contender.us.append(seconds * 1e6 / calls)
    finally:
        gc.enable()
    contender.refused += calls - allowed
    seen = stats.info("commandstats")
    # What a script calls is listed too, and is already in the script's own time.
    names = [name for name in SCRIPTS if name in seen] or [name for name in seen if name not in OURS]
    contender.server_us.append(sum(seen[name]["usec"] for name in names) / calls)


def row(contender: Contender, base: Contender) -> dict[str, object]:
    """The figures of a contender, as medians over its rounds; ``base`` is what it is compared with."""
    return {
        "name": contender.name,
        "us": median(contender.us),
        "against": base.name,
        "ratio": median(mine / its for mine, its in zip(contender.us, base.us, strict=True)),
        "server_us": median(contender.server_us),
        "refused": contender.refused,
        "runs": contender.us,
    }


def _contenders(url: str) -> tuple[list[Contender], list[str]]:
    limit = Limit(f"{WIDE}/s", burst=1000, name="bench")
    by_key = Limit(f"{WIDE}/s", burst=1000, key="tenant:{tenant_id}")
    limiter = Limiter.from_url(url, quotas={"stripe": {"rate": f"{WIDE}/s", "burst": 1000}, "tenant": by_key})
    default = redis.Redis.from_url(url)
    contenders = [
        Contender(BASE, lambda: limiter.client.incr("bench:incr"), BASE),
        Contender("celery_ratelimit, Limiter.acquire", lambda: limiter.acquire(limit).allowed, BASE),
        *[Contender(f"celery_ratelimit, {name}", call, BASE) for name, call in _readme(limiter).items()],
        Contender(KEPT, _kept_connection(limiter.client), BASE),
        Contender(BASE_DEFAULT, lambda: default.incr("bench:incr"), BASE_DEFAULT),
    ]
    missing = []
    for name, build in PEERS.items():
        try:
            contenders.append(Contender(name, build(url), BASE_DEFAULT))
        except ImportError:
            missing.append(name)
    return contenders, missing


def _readme(limiter: Limiter) -> dict[str, Callable[[], object]]:
    """The other ways to say it: by a quota's name, with a key or arguments, as a block, as a decorated function."""

    def permit() -> object:
        with limiter.permit("stripe", max_wait=5) as decision:
            return decision.allowed

    @limiter.limited("tenant")
    def limited(tenant_id: int) -> object:
        return True

    return {
        "by name": lambda: limiter.acquire("stripe").allowed,
        "by name, key=": lambda: limiter.acquire("tenant", key="tenant:7").allowed,
        "by name, args=": lambda: limiter.acquire("tenant", args={"tenant_id": 7}).allowed,
        "permit": permit,
        "limited": lambda: limited(7),
    }


def _kept_connection(client: Any) -> Callable[[], object]:
    pool = client.connection_pool
    connection = pool.connection_class(**pool.connection_kwargs)

    def call() -> object:
        connection.send_command("INCRBY", "bench:incr", 1)  # as Redis.incr sends it
        return connection.read_response()

    return call


def _throttled_gcra(url: str) -> Callable[[], object]:
    from throttled import RedisStore, Throttled, per_sec

    throttle = Throttled(key="bench", using="gcra", quota=per_sec(WIDE, burst=1000), store=RedisStore(server=url))
    return lambda: not throttle.limit().limited


def _limits(strategy: str) -> Callable[[str], Callable[[], object]]:
    def build(url: str) -> Callable[[], object]:
        from limits import RateLimitItemPerSecond, strategies
        from limits.storage import storage_from_string

        limiter = getattr(strategies, strategy)(storage_from_string(url))
        item = RateLimitItemPerSecond(WIDE)
        # A bucket of its own: two strategies on one bucket answer WRONGTYPE.
        return lambda: limiter.hit(item, strategy)

    return build


def _pyrate(url: str) -> Callable[[], object]:
    from pyrate_limiter import Duration, Rate, RedisBucket
    from pyrate_limiter import Limiter as PyrateLimiter

    bucket = RedisBucket.init([Rate(WIDE, Duration.SECOND)], redis.Redis.from_url(url), "bench:pyrate")
    limiter = PyrateLimiter(bucket)
    return lambda: limiter.try_acquire("bench", blocking=False)


PEERS: dict[str, Callable[[str], Callable[[], object]]] = {
    "throttled-py, GCRA": _throttled_gcra,
    "limits, fixed window": _limits("FixedWindowRateLimiter"),
    "limits, moving window": _limits("MovingWindowRateLimiter"),
    "pyrate-limiter": _pyrate,
}
