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
from celery_ratelimit.store.bell import Bell
from celery_ratelimit.store.memory import memory_client
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import until
from tests.parks import park_one


def heard(bell: Bell) -> Bell:
    bell.listen()
    until(lambda: bell.is_up, 10, "the subscription")
    return bell


def threads() -> int:
    return sum(thread.name == "celery_ratelimit-bell" for thread in threading.enumerate())


@pytest.mark.parametrize("prefix", ["ratelimit", "a:v1:b", "a:v2:b\n", "x{y}:", "*", "ä"])
def test_first_parked_task_of_a_limit_rings(server: EmbeddedServer, store: redis.Redis, prefix: str) -> None:
    limiter = Limiter(redis.Redis.from_url(server.url), prefix=prefix)
    parking = Backlog(limiter, "fleet", redelivery=3600)
    api = LimitRequest(Limit("1/s"), "api")
    bell = heard(parking.bell())
    assert bell.has_rung(), "a ring may have been missed"
    assert not bell.has_rung()
    assert parking.due(["api", "other"]) is None
    park_one(parking, api, "one@q", '{"id": "one"}')
    until(bell.has_rung, 10, "the ring")
    assert parking.due(["api", "other"]) == [("api", "")]
    before = bell.rings
    for number in range(5):
        park_one(parking, api, f"{number}@q", f'{{"id": "{number}"}}')
    parking.contents.remove(("api", ""), [f"{number}@q" for number in range(5)] + ["one@q"], purge=True)
    assert parking.due(["api"]) is None
    park_one(parking, api, "one@q", '{"id": "one"}')
    until(bell.has_rung, 10, "the ring")
    assert bell.rings == before + 1, "only for the first task"
    bell.close()


@pytest.fixture
def deaf(server: EmbeddedServer, store: redis.Redis) -> Iterator[redis.Redis]:
    """A client whose user has all rights, but may be refused the one to subscribe."""
    store.execute_command("ACL", "SETUSER", "deaf", "reset", "on", ">secret", "~*", "+@all", "&*")
    yield redis.Redis.from_url(server.url.replace("redis://", "redis://deaf:secret@"))
    store.execute_command("ACL", "DELUSER", "deaf")


def test_user_without_the_right_to_subscribe_always_asks(deaf: redis.Redis, store: redis.Redis) -> None:
    store.execute_command("ACL", "SETUSER", "deaf", "resetchannels")
    bell = Bell(deaf, "ratelimit")
    bell.listen()
    until(lambda: threads() == 0, 10, "the end of the thread")
    assert [bell.has_rung() for _ in range(2)] == [True, True]
    parking = Backlog(Limiter(deaf), "fleet", 3600)
    for limit in (Limit("1/s"), Concurrency(1)):
        assert park_one(parking, LimitRequest(limit, f"of {limit}"), "one@q", '{"id": "one"}') == 0


def test_user_who_loses_the_right_to_subscribe_always_asks(deaf: redis.Redis, store: redis.Redis) -> None:
    bell = heard(Bell(deaf, "ratelimit"))
    assert bell.has_rung()
    store.execute_command("ACL", "SETUSER", "deaf", "resetchannels")  # which ends its connection
    until(lambda: threads() == 0, 10, "the end of the thread")
    assert not bell.is_up
    assert [bell.has_rung() for _ in range(2)] == [True, True]


def test_lost_connection_counts_as_a_ring(server: EmbeddedServer, store: redis.Redis) -> None:
    bell = heard(Bell(redis.Redis.from_url(server.url), "ratelimit"))
    assert bell.has_rung()
    for _ in range(3):
        assert not bell.has_rung()
        rings = bell.rings
        store.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        until(lambda before=rings: bell.rings > before and bell.is_up, 10, "its being heard again")
        assert bell.has_rung()
    bell.close()


def test_thread_ends_with_its_bell(server: EmbeddedServer, store: redis.Redis) -> None:
    gc.collect()
    until(lambda: threads() == 0, 10, "the end of threads of other tests")
    bell = heard(Bell(redis.Redis.from_url(server.url), "ratelimit"))
    assert threads() == 1
    heard(bell)
    until(lambda: threads() == 1, 10, "the end of the first")
    bell.close()
    assert bell.has_rung(), "it is not heard"
    until(lambda: threads() == 0, 10, "its end")
    bell = heard(bell)
    del bell
    gc.collect()
    until(lambda: threads() == 0, 10, "its end")


def test_memory_store_has_no_bell() -> None:
    bell = Bell(memory_client("memory://bell"), "ratelimit")
    bell.listen()
    assert threads() == 0
    assert bell.has_rung()
