"""Stores behind Sentinels: the call after a failover goes to the new master."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis.sentinel import Sentinel

from benchmarks.servers import Sentinels
from celery_ratelimit import AsyncLimiter, Limit, Limiter, StoreUnavailable
from celery_ratelimit.testing import EmbeddedServer
from celery_ratelimit.worker.limit_watcher import read_changes
from tests.fleet_of import until
from tests.integration.store.helpers import answers

#: Of three names that are in three slots, on three nodes.
SPREAD = [Limit("10/s", burst=5, name=name) for name in ("a", "b", "c")]


def sentinel_limiters(sentinel_store: Sentinels) -> dict[str, Limiter]:
    addresses = [("127.0.0.1", port) for port in sentinel_store.ports]
    short = ",".join(f"127.0.0.1:{port}" for port in sentinel_store.ports)
    made = Sentinel(addresses, socket_timeout=0.5).master_for(Sentinels.NAME)
    return {
        "celery's": Limiter.from_url(f"{sentinel_store.url}/0", master_name=Sentinels.NAME),
        "short": Limiter.from_url(f"sentinel://{short}/0?service_name={Sentinels.NAME}"),
        "a client": Limiter(made),
    }


@pytest.mark.slow
def test_unknown_master_name_is_an_outage(sentinel_store: Sentinels) -> None:
    with pytest.raises(StoreUnavailable, match="No master found for 'other'"):
        Limiter.from_url(f"{sentinel_store.url}/0?service_name=other").acquire(SPREAD)


def test_call_after_a_failover_goes_to_the_new_master(sentinel_store: Sentinels) -> None:
    limiters = sentinel_limiters(sentinel_store)
    for limiter in limiters.values():
        assert limiter.check_store() == []
        assert limiter.acquire(SPREAD).allowed
    new = sentinel_store.fail_over()
    for how, limiter in limiters.items():
        assert limiter.acquire(Limit("1/h", name=how)).allowed, how
    with redis.Redis.from_url(new.url) as client:
        assert client.info("replication")["role"] == "master"
        assert len(list(client.scan_iter("ratelimit:*:state"))) >= 3


def test_call_after_an_orderly_failover_goes_to_the_new_master(sentinel_store: Sentinels) -> None:
    """The old master lives on as a replica; a plain limiter and one for asyncio."""
    limiter = sentinel_limiters(sentinel_store)["celery's"]
    limiter.acquire(SPREAD)
    sentinel_store.hand_over()
    assert limiter.acquire([Limit("1/h", name="other")]).allowed

    async def main() -> None:
        async with AsyncLimiter.from_url(f"{sentinel_store.url}/0?service_name={Sentinels.NAME}") as for_asyncio:
            assert (await for_asyncio.acquire(SPREAD)).allowed

    asyncio.run(main())


def scripts_on(server: EmbeddedServer) -> int:
    with redis.Redis.from_url(server.url) as client:
        stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval", "mget"))


@pytest.mark.slow
def test_no_connection_stays_with_a_demoted_master(sentinel_store: Sentinels) -> None:
    """No connection of any thread stays; also where a Sentinel does not allow subscriptions."""
    limiters = {**sentinel_limiters(sentinel_store), "asks": limiter_that_may_not_listen(sentinel_store)}
    old = sentinel_store.master
    barrier = threading.Barrier(4)

    def connect(limiter: Limiter) -> None:
        connection = limiter._asker.link._take()
        barrier.wait(60)
        limiter._asker.link._idle.append(connection)

    def peek(limiter: Limiter) -> bool:
        return limiter.peek(SPREAD).allowed

    async def main() -> None:
        async with AsyncLimiter.from_url(f"{sentinel_store.url}/0?service_name={Sentinels.NAME}") as for_asyncio:
            await asyncio.gather(*[for_asyncio.acquire(SPREAD) for _ in range(10)])
            await asyncio.to_thread(sentinel_store.hand_over)
            await asyncio.to_thread(until, lambda: all(map(is_at_the_new_one, limiters.values())), 5, "the new master")
            before = -1
            while before != scripts_on(old):  # the limiter asks once a second, and a Sentinel may be late
                before = scripts_on(old)
                await asyncio.gather(*[for_asyncio.peek(SPREAD) for _ in range(10)])
                await asyncio.sleep(1.1)
            there = scripts_on(sentinel_store.master)
            await asyncio.gather(*[for_asyncio.peek(SPREAD) for _ in range(10)])
            for limiter in limiters.values():
                with ThreadPoolExecutor(4) as threads:
                    assert all(threads.map(peek, [limiter] * 20))
                read_changes(limiter._asker, ["a"])
                limiter._asker.probe()
            assert scripts_on(old) == before
            assert scripts_on(sentinel_store.master) > there

    def is_at_the_new_one(limiter: Limiter) -> bool:
        limiter.peek(SPREAD)
        return limiter._asker.link._master.address == ("127.0.0.1", sentinel_store.master.port)

    for limiter in limiters.values():
        limiter.acquire(SPREAD)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(connect, [limiter] * 4))
        assert len(limiter._asker.link._idle) >= 4
    asyncio.run(main())


def limiter_that_may_not_listen(sentinel_store: Sentinels) -> Limiter:
    for number in range(3):
        with sentinel_store._ask(number) as sentinel:
            rights = ("reset", "on", ">secret", "resetchannels", "+sentinel|masters", "+ping")
            sentinel.execute_command("ACL", "SETUSER", "asks", *rights)
    query = f"service_name={Sentinels.NAME}&sentinel_username=asks&sentinel_password=secret"
    return Limiter.from_url(f"{sentinel_store.url}/0?{query}")


@pytest.mark.slow
def test_late_replies_of_a_hung_master_are_discarded(sentinel_store: Sentinels) -> None:
    limiter = sentinel_limiters(sentinel_store)["celery's"]
    limiter.acquire(SPREAD)
    master = sentinel_store.master
    master.freeze()
    try:
        for call in (limiter.ping, lambda: read_changes(limiter._asker, ["one", "two", "three"])):
            with pytest.raises(StoreUnavailable):
                call()
    finally:
        master.thaw()
    until(lambda: answers(limiter), 20, "an answer")
    assert read_changes(limiter._asker, ["one"]) == [None]
    limiter.ping()
    assert [state.name for state in limiter.acquire(SPREAD).states] == ["a", "b", "c"]


def test_threads_that_follow_a_master_end_with_their_limiter(sentinel_store: Sentinels) -> None:
    def watching() -> int:
        return sum(thread.name == "celery_ratelimit-sentinel" for thread in threading.enumerate())

    gc.collect()
    until(lambda: watching() == 0, 10, "the end of threads of other tests")
    limiter = sentinel_limiters(sentinel_store)["short"]
    limiter._counting = None  # which would ask once more, for what was counted
    assert watching() == 0
    limiter.acquire(SPREAD)
    until(lambda: watching() == 3, 10, "the threads")
    limiter._asker.link.close()
    until(lambda: watching() == 0, 10, "the end of the threads of one that is closed")
    limiter.acquire(SPREAD)
    until(lambda: watching() == 3, 10, "the threads")
    del limiter
    gc.collect()
    until(lambda: watching() == 0, 10, "the end of the threads")
