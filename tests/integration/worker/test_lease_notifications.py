"""A queue that waits for a lease is notified when one may be free; without notifications it asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import redis

from celery_ratelimit import Concurrency, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.script_calls import LeaseRequests
from celery_ratelimit.testing import EmbeddedServer
from celery_ratelimit.worker.concurrency import ConcurrencyLeases, release_and_acquire
from celery_ratelimit.worker.request_queues import RequestQueues
from tests.fleet_of import until

PLACE = LimitRequest(Concurrency(1, name="places"), "places")


def leases_of(url: str, queues: RequestQueues, moved: list[Any], *, wakes: bool = True) -> ConcurrencyLeases:
    worker: Any = SimpleNamespace(timers=SimpleNamespace(call_soon_wakes_loop=wakes, call_soon=lambda call: call()))
    asker, unused = Limiter(redis.Redis.from_url(url))._asker, None
    parts: Any = (worker, asker, unused, unused, unused, queues)
    return ConcurrencyLeases(*parts, on_end=lambda request: None, on_free=lambda some: moved.extend(some))


def test_queue_is_notified_of_its_own_lease(server: EmbeddedServer, store: redis.Redis) -> None:
    limiter, queues, moved = Limiter(redis.Redis.from_url(server.url)), RequestQueues(), []
    leases = leases_of(server.url, queues, moved)
    waits, other = queues.get_or_create((("places", ""),)), queues.get_or_create((("others", ""),))
    until(lambda: leases._channel_of(waits), 10, "the subscription")
    waits.channel, other.channel = leases._channel_of(waits), leases._channel_of(other)
    waits.next_acquire = other.next_acquire = 1e9
    mine = limiter.acquire(PLACE.limit)
    (said,) = release_and_acquire(
        limiter._asker, (PLACE,), LeaseRequests(["task"], 0, 60_000_000, waits.channel, 1, False), ()
    )
    assert (said.allowed, moved) == (False, [])
    assert limiter.release(mine)
    until(lambda: moved == [waits], 10, "the notification")
    assert (waits.next_acquire, other.next_acquire) == (0.0, 1e9)
    leases.close()


def test_queue_asks_after_a_new_subscription(server: EmbeddedServer, store: redis.Redis) -> None:
    queues, moved = RequestQueues(), []
    leases = leases_of(server.url, queues, moved)
    waits = queues.get_or_create((("places", ""),))
    until(lambda: leases._channel_of(waits), 10, "the subscription")
    waits.channel = leases._channel_of(waits)
    store.client_kill_filter(_type="pubsub")
    until(lambda: moved == [waits], 10, "its asking")
    leases.close()


def test_queue_waits_for_no_notification_that_cannot_come(server: EmbeddedServer, store: redis.Redis) -> None:
    queues = RequestQueues()
    waits = queues.get_or_create((("places", ""),))
    late = leases_of(server.url, queues, [], wakes=False)
    assert late._channel_of(waits) == ""
    assert not late._listens, "its loop would not wake"
    store.execute_command("ACL", "SETUSER", "deaf", "reset", "on", ">secret", "~*", "+@all", "resetchannels")
    try:
        deaf = leases_of(server.url.replace("redis://", "redis://deaf:secret@"), queues, [])
        assert deaf._channel_of(waits) == ""
        until(lambda: not deaf._listener.is_up, 10, "the refusal")
        assert deaf._channel_of(waits) == ""
    finally:
        store.execute_command("ACL", "DELUSER", "deaf")
