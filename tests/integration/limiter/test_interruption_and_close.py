"""Interrupted calls return slots and leases; a closed limiter leaves no thread and no connection behind."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
import redis.asyncio

from benchmarks.servers import Cluster, Sentinels
from celery_ratelimit import AsyncLimiter, Concurrency, Limit, Limiter
from celery_ratelimit.limiter.operation import Operation
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.conftest import PATIENT
from tests.fleet_of import until
from tests.integration.limiter.either import KINDS, EitherLimiter, opened

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


def threads(name: str = "leases") -> list[str]:
    new = set(threading.enumerate()) - OTHERS
    return [each.name for each in new if each.name == f"celery_ratelimit-{name}"]


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


def test_close_returns_leases_that_could_not_be_returned_before() -> None:
    with embedded_server(persist=True) as own:
        limiter = Limiter.from_url(own.url + PATIENT)
        with limiter.permit(PLACE):
            own.kill()
        own.start()
        limiter.close()
        with Limiter.from_url(own.url + PATIENT) as other:
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


@pytest.mark.parametrize("kind", KINDS)
def test_close_behind_sentinels_and_on_a_cluster_leaves_no_connection(
    sentinel_store: Sentinels, cluster_store: Cluster, kind: Any
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
    for url in (f"{sentinel_store.url}/0?service_name={Sentinels.NAME}", cluster_store.url):
        with opened(kind, lambda kind, url=url: kind.from_url(url)) as limiter:
            limiter.acquire([HALF, SLOW, PLACE])
    until(lambda: ours() <= before, 10, "every connection to be closed")
    until(lambda: not threads("sentinel"), 10, "the end of the threads that follow a master")


def test_renewing_goes_on_after_an_unforeseen_error(
    either: EitherLimiter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("celery_ratelimit.limiter.leases.renewal_pause", lambda demands: 0.1)
    renew, attempts = either._asker.core.renew, []

    def broken(leases: Any) -> Operation[list[bool]]:
        attempts.append(leases)
        if len(attempts) <= 3:
            raise ZeroDivisionError("unforeseen")
        return (yield from renew(leases))

    def is_renewed() -> bool:
        either.ping()  # lets an event loop go on
        return len(attempts) > 4

    monkeypatch.setattr(either._asker.core, "renew", broken)
    with either.block(PLACE):
        until(is_renewed, 10, "a renewal")
    (said,) = [record for record in caplog.records if record.levelno >= logging.ERROR]  # once, not at each attempt
    assert "not renewed" in said.message
    assert said.exc_info is not None
    assert either.acquire(PLACE).allowed
