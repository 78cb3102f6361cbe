"""Restarted, dead and hung stores, threads and forks: each call reads its own reply."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import pytest
import redis

from celery_ratelimit import ConfigurationError, Limit, Limiter, StoreUnavailable
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from celery_ratelimit.worker.limit_watcher import read_changes
from tests.far_away import relay
from tests.integration.limiter.either import KINDS, opened

LIMIT = Limit("1/m", name="api")
OTHERS = [Limit("1/m", name=f"other{n}") for n in range(3)]


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    """A store that this test may kill and freeze."""
    with embedded_server(persist=True) as running:
        yield running


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def names(decision: Any) -> list[str]:
    return [state.name for state in decision.states]


def test_restarted_store_is_reconnected_and_a_dead_one_is_an_error(own_server: EmbeddedServer, kind: Any) -> None:
    """For thirty callers, who have a connection each, or ten together."""
    url = own_server.url + "?socket_timeout=60&socket_connect_timeout=60"
    fast = Limit("1000/s", burst=1000, name="fast")
    with opened(kind, lambda kind: kind.from_url(url)) as limiter:
        for outcomes in (
            lambda: limiter.at_once("ping", 30),
            lambda: limiter.at_once("acquire", 30, fast, max_wait=60),
            lambda: limiter.at_once("acquire", 30, LIMIT),
            lambda: limiter.at_once("peek", 30, LIMIT),
            lambda: limiter.at_once("reset", 30, LIMIT),
        ):
            outcomes()
            own_server.kill()
            own_server.start()
            assert not [each for each in outcomes() if isinstance(each, BaseException)]
            own_server.kill()
            for error in outcomes():
                assert isinstance(error, StoreUnavailable)
                assert error.__cause__ is not None
            own_server.start()
        assert limiter.acquire(LIMIT).allowed
        own_server.kill()
        own_server.start()
        assert not limiter.acquire(LIMIT).allowed, "the store keeps its data"


@pytest.mark.parametrize("when", ["connecting", "connected"])
def test_late_replies_of_a_hung_store_are_discarded(own_server: EmbeddedServer, kind: Any, when: str) -> None:
    """Twenty callers wait for their time-outs together: one after the other they would take 40 s."""
    url = own_server.url + "?socket_timeout=2&socket_connect_timeout=2"
    with opened(kind, lambda kind: kind.from_url(url)) as limiter:
        if when == "connected":
            limiter.at_once("peek", 10, LIMIT)
        own_server.freeze()
        began = time.monotonic()
        assert {type(each) for each in limiter.at_once("acquire", 20, OTHERS)} == {StoreUnavailable}
        assert time.monotonic() - began < 30
        own_server.thaw()
        # The replies to the calls that were given up tell of three limits.
        for decision in limiter.at_once("peek", 20, LIMIT):
            assert names(decision) == ["api"]
        assert names(limiter.peek(OTHERS)) == [limit.name for limit in OTHERS]


#: Each byte comes in time for a time-out of half a second; a whole reply takes longer than that.
TRICKLE = 0.2


@pytest.mark.parametrize("when", ["connecting", "connected"])
def test_timeout_is_for_the_whole_call(server: EmbeddedServer, store: redis.Redis, kind: Any, when: str) -> None:
    with relay(server) as between, opened(kind, lambda kind: kind.from_url(between.url)) as limiter:
        if when == "connected":
            limiter.acquire(LIMIT)
        between.trickle = TRICKLE
        calls = [lambda: limiter.acquire(OTHERS), limiter.ping]
        if not limiter.is_async:
            calls.append(lambda: read_changes(limiter._asker, ["api"]))
        for call in calls:
            with pytest.raises(StoreUnavailable):
                call()
        between.trickle = 0.0
        assert names(limiter.acquire(OTHERS)) == [limit.name for limit in OTHERS]


def test_long_reply_may_come_in_many_pieces(server: EmbeddedServer, store: redis.Redis) -> None:
    limiter = Limiter.from_url(server.url)
    store.set("ratelimit:v1:{long}::changed", "x" * 5_000_000, ex=60)
    key = next(iter(store.scan_iter("*:{long}:*")))
    assert len(limiter._asker.link.call("GET", key)) == 5_000_000
    assert limiter.acquire(LIMIT).allowed


def test_connection_is_usable_after_an_error_reply(limiter: Limiter) -> None:
    limiter.client.set("ratelimit:v1:{api}::slots", "not a sorted set", ex=60)
    limiter.client.set("ratelimit:v1:{api}::state", "t1 1 9999999999999999 0 9999999999999999 1 1", ex=60)
    with pytest.raises(ConfigurationError, match=r"WRONGTYPE.*ratelimit_prefix"):
        limiter.acquire(LIMIT)
    assert connection_id(limiter) == connection_id(limiter)
    assert limiter.acquire(OTHERS).allowed


def test_simultaneous_callers_have_a_connection_each_which_later_calls_use(
    server: EmbeddedServer, store: redis.Redis
) -> None:
    limiter = Limiter.from_url(server.url + "?client_name=asks")

    def scripts() -> set[str]:
        return {each["id"] for each in store.client_list() if (each["name"], each["cmd"]) == ("asks", "evalsha")}

    limiter.acquire(LIMIT)
    limiter.peek(OTHERS)  # a script that the store does not know takes another way
    store.client_pause(60_000, all=False)  # scripts wait, as they may write
    with ThreadPoolExecutor(4) as threads:
        asking = [threads.submit(limiter.acquire, LIMIT) for _ in range(4)]
        while len(mine := scripts()) < 4:
            assert not any(each.done() for each in asking)
            time.sleep(0.001)
        store.client_unpause()
        assert [each.result().allowed for each in asking] == [False] * 4
        for each in [threads.submit(limiter.peek, OTHERS) for _ in range(200)]:
            assert names(each.result()) == [limit.name for limit in OTHERS]
    assert scripts() == mine


def test_fork_does_not_share_a_connection(limiter: Limiter) -> None:
    """The child's first call comes after the parent's; then both ask at once, and each reads its own replies."""
    limiter.acquire(LIMIT)
    mine = connection_id(limiter)
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    child = fork.Process(target=ask_in_child, args=(limiter, there))
    child.start()
    try:
        theirs = here.recv() if here.poll(60) else None
        for _ in range(300):
            assert names(limiter.peek(OTHERS)) == [limit.name for limit in OTHERS]
        assert here.poll(60)
        assert here.recv() == "every reply was right"
    finally:
        child.join(60)
    assert child.exitcode == 0
    assert theirs not in (mine, None)
    assert connection_id(limiter) == mine, "the child's end has not closed the parent's connection"


def ask_in_child(limiter: Limiter, pipe: Connection) -> None:
    pipe.send(connection_id(limiter))
    right = all(limiter.peek(LIMIT).states[0].name == "api" for _ in range(300))
    pipe.send("every reply was right" if right else "a reply was another's")


def connection_id(limiter: Limiter) -> int:
    """The number that the store gave to this thread's connection."""
    number: int = limiter._asker.link.exchange(b"*2\r\n$6\r\nCLIENT\r\n$2\r\nID\r\n")
    return number
