"""Operations that only read send no command that writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery

from celery_ratelimit import Concurrency, Limit, Limiter, RateLimitedTask
from celery_ratelimit.app.app_store import limiter_of
from celery_ratelimit.lots import ParkingLots
from celery_ratelimit.operations.overview import overview
from celery_ratelimit.operations.read_parking_lots import lots_of
from celery_ratelimit.prometheus import Collector
from celery_ratelimit.testing import EmbeddedServer
from celery_ratelimit.web.page_data import PageData
from tests.conftest import PATIENT
from tests.integration.limiter.either import KINDS, opened

#: The options of a limit in two apps: of every algorithm, and from one algorithm to another.
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "token_bucket": ({"rate": "100/h", "burst": 3}, {"rate": "1/h"}),
    "warm-up": ({"rate": "100/h", "warmup": 1}, {"rate": "1/h", "warmup": 2}),
    "another algorithm": ({"rate": "3/d", "algorithm": "sliding_log"}, {"rate": "1/h"}),
}
for each in ("leaky_bucket", "fixed_window", "sliding_window", "sliding_log"):
    OPTIONS[each] = {"rate": "3/d", "algorithm": each}, {"rate": "2/d", "algorithm": each}
for option, value in (("refill", "interval"), ("shadow", True)):
    OPTIONS[option] = {"rate": "100/h", option: value}, {"rate": "1/h", option: value}
LIMITS: dict[str, tuple[Any, Any]] = {
    "concurrency": (Concurrency(2, name="api"), Concurrency(1, name="api", lease=5)),
    **{id: (Limit(name="api", **here), Limit(name="api", **there)) for id, (here, there) in OPTIONS.items()},
}


class Seen:
    """What the store holds, and the commands that it was sent."""

    def __init__(self, url: str) -> None:
        store = self._store = redis.Redis.from_url(url)  # its replies are bytes, as DUMP needs
        self._writes = {name for name, each in store.command().items() if "write" in each["flags"]}
        self._before = self._dump()
        store.config_resetstat()

    def _dump(self) -> dict[bytes, bytes]:
        dumped = {key: self._store.dump(key) for key in self._store.scan_iter()}
        return {key: value for key, value in dumped.items() if value is not None}  # else it has expired meanwhile

    def assert_unchanged(self) -> None:
        sent = {name.removeprefix("cmdstat_").partition("|")[0] for name in self._store.info("commandstats")}
        assert sent & self._writes == set()
        assert self._dump().items() <= self._before.items(), "some may have expired"


def use_up(limiter: Limiter, limit: Any) -> None:
    """Take all permits, and keep a slot."""
    for _ in range(5):
        limiter.acquire(limit)
    if not limit.shadow:
        demands = limiter._reader.demands(limit, None, None)
        assert not limiter._asker.ask(demands, id="waits", claim=1e6).allowed
    assert limiter._counting is not None
    limiter._counting.close()


@pytest.mark.parametrize("kind", LIMITS)
@pytest.mark.parametrize("make", KINDS)
def test_no_reading_method_writes(server: EmbeddedServer, store: redis.Redis, kind: str, make: Any) -> None:
    here, elsewhere = LIMITS[kind]
    with Limiter.from_url(server.url + PATIENT) as limiter:
        use_up(limiter, here)
    with opened(make, lambda kind: kind.from_url(server.url + PATIENT, quotas={"api": elsewhere})) as other:
        for method in ("peek", "available", "config", "history", "weights", "stats", "shadow_report", "ping"):
            if hasattr(other, method):
                seen = Seen(server.url)
                getattr(other, method)(*(() if method == "ping" else ("api",)))
                seen.assert_unchanged()


@pytest.mark.parametrize("kind", LIMITS)
def test_no_page_and_no_showing_command_writes(server: EmbeddedServer, store: redis.Redis, kind: str) -> None:
    """App B, on the same store, knows the limit by another rate; and one that it does not know at all."""
    here, elsewhere = LIMITS[kind]
    with Limiter.from_url(server.url + PATIENT) as limiter:
        use_up(limiter, here)
        use_up(limiter, Limit("100/h", burst=3, name="unknown"))
    app = Celery("b", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.ratelimit_url = server.url + PATIENT
    app.conf.ratelimit_quotas = {"api": elsewhere}

    @app.task(name="b.charge", base=RateLimitedTask, limits="api", shared=False)
    def charge() -> None: ...

    looks: dict[str, Callable[[], Any]] = {
        "status": lambda: overview(app),
        "status of one": lambda: overview(app, "unknown"),
        "parked": lambda: lots_of(app),
        "lots": lambda: ParkingLots(app).lots(),
        "explain": lambda: ParkingLots(app).explain("no-such-task"),
        "metrics": lambda: list(Collector(app).collect()),
        "the page": lambda: PageData(app).at(""),
        "the page of one": lambda: PageData(app).at("unknown"),
    }
    limiter_of(app).ping()
    for look in looks.values():
        seen = Seen(server.url)
        look()
        seen.assert_unchanged()


def test_peek_with_another_rate_leaves_the_bucket_unchanged(limiter: Limiter) -> None:
    mine, theirs = Limit("100/h", burst=100, name="api"), Limit("1/h", name="api")
    for _ in range(20):
        limiter.acquire(mine)
    assert limiter.peek(theirs).retry_after > 1000
    assert limiter.acquire(mine).allowed
