"""A worker's line that waits for a place hears when one may be free; and asks by itself where it could not hear it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import redis

from celery_ratelimit import Concurrency, Limiter
from celery_ratelimit.limiter.calls import Asking
from celery_ratelimit.limiter.demand import Demand
from celery_ratelimit.testing import EmbeddedServer
from celery_ratelimit.worker.lease_notifications import LeaseNotifications
from celery_ratelimit.worker.request_queues import RequestQueues
from tests.fleet_of import until

PLACE = Demand(Concurrency(1, name="places"), "places")


def worker(*, wakes: bool = True) -> Any:
    return SimpleNamespace(timers=SimpleNamespace(are_called_soon=wakes, call_soon=lambda call: call()))


def test_a_line_hears_of_its_place_and_no_other_line_does(server: EmbeddedServer, store: redis.Redis) -> None:
    limiter, lines, moved = Limiter(redis.Redis.from_url(server.url)), RequestQueues(), []
    ear = LeaseNotifications(worker(), limiter.asker, lines, lambda some: moved.extend(some))
    waits, other = lines.get_or_create((("places", ""),)), lines.get_or_create((("others", ""),))
    until(lambda: ear.name_of(waits), 10, "the subscription")
    waits.channel, other.channel = ear.name_of(waits), ear.name_of(other)
    waits.next_ask = other.next_ask = 1e9
    mine = limiter.acquire(PLACE.limit)
    (said,) = limiter.asker.hand_on((PLACE,), Asking(["task"], 0, 60_000_000, waits.channel, 1, False), ())
    assert (said.allowed, moved) == (False, [])
    assert limiter.release(mine)
    until(lambda: moved == [waits], 10, "the ring")
    assert (waits.next_ask, other.next_ask) == (0.0, 1e9)
    ear.close()


def test_whoever_hears_again_asks_for_nobody_knows_what_was_missed(server: EmbeddedServer, store: redis.Redis) -> None:
    limiter, lines, moved = Limiter(redis.Redis.from_url(server.url)), RequestQueues(), []
    ear = LeaseNotifications(worker(), limiter.asker, lines, lambda some: moved.extend(some))
    line = lines.get_or_create((("places", ""),))
    until(lambda: ear.name_of(line), 10, "the subscription")
    line.channel = ear.name_of(line)
    store.client_kill_filter(_type="pubsub")
    until(lambda: moved == [line], 10, "its asking")
    ear.close()


def test_where_nothing_would_be_heard_nobody_waits_for_it(server: EmbeddedServer, store: redis.Redis) -> None:
    lines = RequestQueues()
    line = lines.get_or_create((("places", ""),))
    limiter = Limiter(redis.Redis.from_url(server.url))
    late = LeaseNotifications(worker(wakes=False), limiter.asker, lines, lambda some: None)
    assert late.name_of(line) == ""
    assert not late._listens, "its loop would not wake"
    store.execute_command("ACL", "SETUSER", "deaf", "reset", "on", ">secret", "~*", "+@all", "resetchannels")
    try:
        url = server.url.replace("redis://", "redis://deaf:secret@")
        deaf = LeaseNotifications(worker(), Limiter(redis.Redis.from_url(url)).asker, lines, lambda some: None)
        assert deaf.name_of(line) == ""
        until(lambda: not deaf._bell.is_up, 1, "its being refused")
        assert deaf.name_of(line) == ""
    finally:
        store.execute_command("ACL", "DELUSER", "deaf")
