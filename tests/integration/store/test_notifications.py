"""Idle workers are notified when the first task is parked, and do not ask whether one is."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import redis

from celery_ratelimit import Concurrency, Limit, Limiter
from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.store.memory import memory_client
from celery_ratelimit.store.notifications import NotificationListener
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import until
from tests.parks import park_one


def subscribed(listener: NotificationListener) -> NotificationListener:
    listener.listen()
    until(lambda: listener.is_up, 10, "the subscription")
    return listener


def threads() -> int:
    return sum(thread.name == "celery_ratelimit-notifications" for thread in threading.enumerate())


@pytest.mark.parametrize("prefix", ["ratelimit", "a:v1:b", "a:v2:b\n", "x{y}:", "*", "ä"])
def test_first_parked_task_of_a_limit_notifies(server: EmbeddedServer, store: redis.Redis, prefix: str) -> None:
    limiter = Limiter(redis.Redis.from_url(server.url), prefix=prefix)
    parking = Backlog(limiter, "fleet", redelivery=3600)
    api = LimitRequest(Limit("1/s"), "api")
    listener = subscribed(parking.notification_listener())
    assert listener.was_notified(), "one may have been missed"
    assert not listener.was_notified()
    assert parking.due(["api", "other"]) is None
    park_one(parking, api, "one@q", '{"id": "one"}')
    until(listener.was_notified, 10, "the notification")
    assert parking.due(["api", "other"]) == [("api", "")]
    before = listener.notifications
    for number in range(5):
        park_one(parking, api, f"{number}@q", f'{{"id": "{number}"}}')
    parking.contents.remove(("api", ""), [f"{number}@q" for number in range(5)] + ["one@q"], purge=True)
    assert parking.due(["api"]) is None
    park_one(parking, api, "one@q", '{"id": "one"}')
    until(listener.was_notified, 10, "the notification")
    assert listener.notifications == before + 1, "only for the first task"
    listener.close()


@pytest.fixture
def deaf(server: EmbeddedServer, store: redis.Redis) -> Iterator[redis.Redis]:
    """A client whose user has all rights, but may be refused the one to subscribe."""
    store.execute_command("ACL", "SETUSER", "deaf", "reset", "on", ">secret", "~*", "+@all", "&*")
    yield redis.Redis.from_url(server.url.replace("redis://", "redis://deaf:secret@"))
    store.execute_command("ACL", "DELUSER", "deaf")


def test_user_without_the_right_to_subscribe_always_asks(deaf: redis.Redis, store: redis.Redis) -> None:
    store.execute_command("ACL", "SETUSER", "deaf", "resetchannels")
    listener = NotificationListener(deaf, "ratelimit")
    listener.listen()
    until(lambda: threads() == 0, 10, "the end of the thread")
    assert [listener.was_notified() for _ in range(2)] == [True, True]
    parking = Backlog(Limiter(deaf), "fleet", 3600)
    for limit in (Limit("1/s"), Concurrency(1)):
        assert park_one(parking, LimitRequest(limit, f"of {limit}"), "one@q", '{"id": "one"}') == 0


def test_user_who_loses_the_right_to_subscribe_always_asks(deaf: redis.Redis, store: redis.Redis) -> None:
    listener = subscribed(NotificationListener(deaf, "ratelimit"))
    assert listener.was_notified()
    store.execute_command("ACL", "SETUSER", "deaf", "resetchannels")  # which ends its connection
    until(lambda: threads() == 0, 10, "the end of the thread")
    assert not listener.is_up
    assert [listener.was_notified() for _ in range(2)] == [True, True]


def test_lost_connection_counts_as_a_notification(server: EmbeddedServer, store: redis.Redis) -> None:
    listener = subscribed(NotificationListener(redis.Redis.from_url(server.url), "ratelimit"))
    assert listener.was_notified()
    for _ in range(3):
        assert not listener.was_notified()
        before = listener.notifications
        store.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        until(lambda before=before: listener.notifications > before and listener.is_up, 10, "the new subscription")
        assert listener.was_notified()
    listener.close()


def test_thread_ends_with_its_listener(server: EmbeddedServer, store: redis.Redis) -> None:
    gc.collect()
    until(lambda: threads() == 0, 10, "the end of threads of other tests")
    listener = subscribed(NotificationListener(redis.Redis.from_url(server.url), "ratelimit"))
    assert threads() == 1
    subscribed(listener)
    until(lambda: threads() == 1, 10, "the end of the first")
    listener.close()
    assert listener.was_notified(), "it is not subscribed"
    until(lambda: threads() == 0, 10, "its end")
    listener = subscribed(listener)
    del listener
    gc.collect()
    until(lambda: threads() == 0, 10, "its end")


def test_memory_store_has_no_channel() -> None:
    listener = NotificationListener(memory_client("memory://notifications"), "ratelimit")
    listener.listen()
    assert threads() == 0
    assert listener.was_notified()
