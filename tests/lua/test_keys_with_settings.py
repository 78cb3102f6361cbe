"""Which keys of a limit have a pause or a rate of their own: an index, which has none that has ended."""

from __future__ import annotations

import redis

from celery_ratelimit import Limit, Limiter
from tests.conftest import Clock

from .frozen import expiries

INDEX = "ratelimit:v1:{api}::key_settings"
ENDLESS = 2**53


def index(store: redis.Redis) -> dict[str, float]:
    return dict(store.zrange(INDEX, 0, -1, withscores=True))


def test_keys_with_own_settings_are_listed_until_they_end(frozen: Limiter, store: redis.Redis, clock: Clock) -> None:
    limit = Limit("5/s", name="api", key="{tenant}")
    frozen.pause(limit, 60)
    frozen.set_rate(limit, "7/s")
    assert not store.exists(INDEX), "of the whole limit"
    frozen.pause(limit, 60, key="7")
    frozen.set_rate(limit, "9/s", key="8")
    frozen.expire_rate(limit, 10, key="8")
    frozen.set_rate(limit, "9/s", key="9")
    until = clock.us + 60_000_000
    assert index(store) == {"p7": until, "r8": until - 50_000_000, "r9": ENDLESS}
    frozen.resume(limit, key="7")
    assert index(store).keys() == {"r8", "r9"}
    clock.advance(11)
    frozen.pause(limit, 5, key="9")
    assert index(store) == {"r9": ENDLESS, "p9": clock.us + 5_000_000}, "what has ended is gone with the next change"
    frozen.unset_rate(limit, key="9")
    assert expiries(store)[INDEX] == clock.us + 5_000_000
    frozen.resume(limit, key="9")
    assert not store.exists(INDEX)
