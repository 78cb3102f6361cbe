"""Restarted, dead and hung stores, threads and forks: each call reads its own reply."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import pytest
import redis

from celery_ratelimit import AsyncLimiter, ConfigurationError, Limit, Limiter, StoreUnavailable
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from celery_ratelimit.worker.limit_watcher import read_changes
from tests.far_away import relay

LIMIT = Limit("1/m", name="api")
OTHERS = [Limit("1/m", name=f"other{n}") for n in range(3)]


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    """A store that this test may kill and freeze."""
    with embedded_server(persist=True) as running:
        yield running


def test_restarted_store_is_reconnected_and_a_dead_one_is_an_error(own_server: EmbeddedServer) -> None:
    limiter = Limiter.from_url(own_server.url + "?socket_timeout=60&socket_connect_timeout=60")
    for call in (limiter.acquire, limiter.peek, limiter.reset, lambda limit: limiter.ping()):
        call(LIMIT)
        own_server.kill()
        own_server.start()
        call(LIMIT)
        own_server.kill()
        with pytest.raises(StoreUnavailable) as caught:
            call(LIMIT)
        assert caught.value.__cause__ is not None
        own_server.start()
    assert limiter.acquire(LIMIT).allowed
    own_server.kill()
    own_server.start()
    assert not limiter.acquire(LIMIT).allowed, "the store keeps its data"


def test_late_replies_of_a_hung_store_are_discarded(own_server: EmbeddedServer) -> None:
    limiter = Limiter.from_url(own_server.url)
    own_server.freeze()
    for connected in (False, True):
        with pytest.raises(StoreUnavailable):
            limiter.acquire(OTHERS)
        if not connected:
            own_server.thaw()
            limiter.peek(LIMIT)
            own_server.freeze()
    own_server.thaw()
    # The reply to the call that was given up tells of three limits.
    assert [state.name for state in limiter.acquire(LIMIT).states] == ["api"]
    assert [state.name for state in limiter.peek(OTHERS).states] == [limit.name for limit in OTHERS]


#: Each byte comes in time for a time-out of half a second; a whole reply takes longer than that.
TRICKLE = 0.2


@pytest.mark.parametrize("when", ["connecting", "connected"])
def test_timeout_is_for_the_whole_call(server: EmbeddedServer, store: redis.Redis, when: str) -> None:
    with relay(server) as between:
        limiter = Limiter.from_url(between.url)
        if when == "connected":
            limiter.acquire(LIMIT)
        between.trickle = TRICKLE
        for call in (lambda: limiter.acquire(OTHERS), limiter.ping, lambda: read_changes(limiter._asker, ["api"])):
            with pytest.raises(StoreUnavailable):
                call()
        between.trickle = 0.0
        assert [state.name for state in limiter.acquire(OTHERS).states] == [limit.name for limit in OTHERS]


def test_timeout_is_for_the_whole_call_of_an_async_limiter(server: EmbeddedServer, store: redis.Redis) -> None:
    async def main(url: str) -> None:
        async with AsyncLimiter.from_url(url) as limiter:
            await limiter.acquire(LIMIT)
            between.trickle = TRICKLE
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    await limiter.acquire(OTHERS)
            between.trickle = 0.0
            assert [state.name for state in (await limiter.acquire(OTHERS)).states] == [each.name for each in OTHERS]

    with relay(server) as between:
        asyncio.run(main(between.url))


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
            assert [state.name for state in each.result().states] == [limit.name for limit in OTHERS]
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
            assert [state.name for state in limiter.peek(OTHERS).states] == [limit.name for limit in OTHERS]
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
