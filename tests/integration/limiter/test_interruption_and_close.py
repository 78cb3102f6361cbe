"""Interrupted calls return slots and leases; a closed limiter leaves no thread and no connection behind."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
import redis.asyncio

from benchmarks.servers import Cluster, Sentinels
from celery_ratelimit import AsyncLimiter, Concurrency, Limit, Limiter
from celery_ratelimit.limiter.leases import LeaseKeeper
from celery_ratelimit.limiter.operation import Operation
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.conftest import PATIENT
from tests.fleet_of import until

SLOW = Limit("1/m", name="slow")
HALF = Limit("2/m", name="half")
PLACE = Concurrency(1, name="place", lease=600)


class TimeIsUp(Exception):
    """As ``SoftTimeLimitExceeded``: raised in the main thread, wherever it is."""


@contextmanager
def interrupted(when: Callable[[], Any], by: type[BaseException]) -> Iterator[None]:
    """Raises ``by`` in the main thread, by a signal, as soon as ``when`` says so."""

    def handle(*_: object) -> None:
        raise by

    def watch() -> None:
        until(when, 10, "what is to be interrupted")
        os.kill(os.getpid(), signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, handle)
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        with pytest.raises(by):
            yield
    finally:
        thread.join()
        signal.signal(signal.SIGALRM, before)


def slots(store: redis.Redis) -> list[str]:
    return [id for key in store.scan_iter("ratelimit:*:slots") for id in store.zrange(key, 0, -1)]


#: Threads of limiters of other tests, which may still hold something.
OTHERS: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def others() -> None:
    OTHERS.clear()
    OTHERS.update(threading.enumerate())


def threads() -> list[str]:
    return [each.name for each in new_threads() if each.name == "celery_ratelimit-leases"]


def new_threads() -> set[threading.Thread]:
    return set(threading.enumerate()) - OTHERS


@pytest.fixture
def limiter(server: EmbeddedServer, store: redis.Redis) -> Iterator[Limiter]:
    with Limiter.from_url(server.url + PATIENT) as limiter:
        yield limiter


# -- Interrupted -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [TimeIsUp, KeyboardInterrupt])
@pytest.mark.parametrize("how", ["acquire", "permit"])
def test_interrupted_waiting_call_gives_its_slot_back(
    limiter: Limiter, store: redis.Redis, how: str, by: type[BaseException]
) -> None:
    limiter.acquire(SLOW)
    with interrupted(lambda: slots(store), by):
        if how == "acquire":
            limiter.acquire(SLOW, max_wait=1e6)
        else:
            with limiter.permit(SLOW):
                pytest.fail("ran without a permit")
    assert slots(store) == []
    assert limiter.peek(SLOW).retry_after <= 60


def test_interrupted_call_that_waits_for_a_lease_gets_none(limiter: Limiter, store: redis.Redis) -> None:
    with limiter.permit(PLACE):
        with interrupted(lambda: slots(store), TimeIsUp), limiter.permit([PLACE, HALF]):
            pytest.fail("ran without a place")
        assert slots(store) == []
    assert limiter.peek(PLACE).remaining == 1
    assert limiter.peek(HALF).remaining == 1


def test_interrupted_block_gives_its_lease_back(limiter: Limiter) -> None:
    inside = threading.Event()
    with interrupted(inside.is_set, TimeIsUp), limiter.permit(PLACE):
        inside.set()
        time.sleep(60)
    assert limiter.peek(PLACE).remaining == 1


def test_call_interrupted_before_its_reply_keeps_no_lease(limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    limiter.release(limiter.acquire(PLACE))
    link = limiter._asker.link
    exchange = link.exchange

    def interrupted_once(command: bytes) -> None:
        monkeypatch.setattr(link, "exchange", exchange)
        exchange(command)
        raise TimeIsUp

    monkeypatch.setattr(link, "exchange", interrupted_once)
    with pytest.raises(TimeIsUp):
        limiter.acquire(PLACE)
    assert limiter.peek(PLACE).remaining == 1


# -- Closed ------------------------------------------------------------------------------------------------------------


def connected(store: redis.Redis) -> set[str]:
    return {each["id"] for each in store.client_list()}


def test_closed_limiter_leaves_no_thread_and_no_connection(server: EmbeddedServer, store: redis.Redis) -> None:
    before = connected(store)
    with Limiter.from_url(server.url + PATIENT) as limiter:
        limiter.check_store()
        with limiter.permit(PLACE):
            assert threads() == ["celery_ratelimit-leases"]
        assert connected(store) - before
    assert threads() == []
    until(lambda: connected(store) <= before, 10, "every connection to be closed")


def test_close_returns_leases_that_could_not_be_returned_before(server: EmbeddedServer) -> None:
    with embedded_server(persist=True) as own:
        limiter = Limiter.from_url(own.url)
        with limiter.permit(PLACE):
            own.kill()
        own.start()
        limiter.close()
        with Limiter.from_url(own.url) as other:
            assert other.peek(PLACE).remaining == 1


def test_renewing_thread_ends_with_the_last_lease_or_the_limiter_and_starts_again(limiter: Limiter) -> None:
    with limiter.permit(Concurrency(1, name="short", lease=0.3)):
        assert threads() == ["celery_ratelimit-leases"]
    until(lambda: not threads(), 10, "the end of the thread")
    for _ in range(2):
        with limiter.permit(PLACE):
            assert threads() == ["celery_ratelimit-leases"]
        limiter.close()
        assert threads() == []
    limiter.close()


def test_close_leaves_a_given_client_open(server: EmbeddedServer, store: redis.Redis) -> None:
    with redis.Redis.from_url(server.url, single_connection_client=True) as client:
        mine = client.client_id()
        before = connected(store)
        with Limiter(client) as limiter:
            limiter.acquire(HALF)
        until(lambda: connected(store) <= before, 10, "its own connections to be closed")
        assert client.client_id() == mine

    async def main() -> None:
        async with redis.asyncio.Redis.from_url(server.url) as client:
            async with AsyncLimiter(client) as limiter:
                await limiter.acquire(HALF)
                connection = await client.client_id()
            assert await client.client_id() == connection

    asyncio.run(main())


def test_close_behind_sentinels_and_on_a_cluster_leaves_no_connection(
    sentinel_store: Sentinels, cluster_store: Cluster
) -> None:
    clients = [redis.Redis(port=port) for port in sentinel_store.ports]
    clients += [redis.Redis.from_url(sentinel_store.master.url), *cluster_store.clients]

    def ours() -> int:
        return sum(
            each["addr"].startswith("127.0.0.1") and not each["name"] and not set("MS") & set(each["flags"])
            for c in clients
            for each in c.client_list()  # but for servers that follow one another, from now on perhaps
        )

    names = [client.client_setname("test") for client in clients]
    assert all(names)
    before = ours()
    with Limiter.from_url(f"{sentinel_store.url}/0?service_name={Sentinels.NAME}") as limiter:
        limiter.acquire(HALF)
    with Limiter.from_url(cluster_store.url) as limiter:
        limiter.acquire([HALF, SLOW, PLACE])

    async def awaited() -> None:
        async with AsyncLimiter.from_url(f"{sentinel_store.url}/0?service_name={Sentinels.NAME}") as limiter:
            await limiter.acquire(HALF)
        async with AsyncLimiter.from_url(cluster_store.url) as limiter:
            await limiter.acquire([HALF, SLOW, PLACE])

    asyncio.run(awaited())
    until(lambda: ours() <= before, 10, "every connection to be closed")
    followers = "celery_ratelimit-sentinel"
    until(
        lambda: followers not in [each.name for each in new_threads()],
        10,
        "the end of the threads that follow a master",
    )


# -- Renewed, whatever happens -----------------------------------------------------------------------------------------


class Broken:
    """A limiter whose first renewals fail with an unforeseen error."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter, self.faults = limiter, 3

    def renew(self, leases: Any) -> Any:
        if self.faults:
            self.faults -= 1
            raise ZeroDivisionError("unforeseen")
        return self.limiter._asker.renew(leases)

    def release(self, ended: Any) -> int:
        return self.limiter._asker.release(ended)


def test_renewing_goes_on_after_an_unforeseen_error(limiter: Limiter, caplog: pytest.LogCaptureFixture) -> None:
    short = Concurrency(1, name="short", lease=60)
    broken = Broken(limiter)
    leases = LeaseKeeper(broken)
    decision = limiter.acquire(short)
    leases.begin(decision.id, decision._demands, decision._granted_at)
    until(lambda: leases._wake.set() or not broken.faults, 10, "the faults")  # type: ignore[union-attr]
    assert threads() == ["celery_ratelimit-leases"]
    leases.end(decision.id)
    leases.close()
    said = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(said) == 1, "once, not at each attempt"
    assert said[0].exc_info is not None
    assert limiter.acquire(short).allowed


def test_async_renewing_goes_on_after_an_unforeseen_error(
    server: EmbeddedServer, store: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    short = Concurrency(1, name="short", lease=0.9)

    async def main() -> None:
        async with AsyncLimiter.from_url(server.url + PATIENT) as limiter:
            renew, faults = limiter._asker.core.renew, [ZeroDivisionError("unforeseen")]
            renewed = asyncio.Event()

            def broken(leases: Any) -> Operation[list[bool]]:
                if faults:
                    raise faults.pop()
                kept = yield from renew(leases)
                renewed.set()
                return kept

            monkeypatch.setattr(limiter._asker.core, "renew", broken)
            async with limiter.permit(short):
                await asyncio.wait_for(renewed.wait(), 60)

    asyncio.run(main())
    assert "A lease was not renewed, and is tried again" in caplog.text
