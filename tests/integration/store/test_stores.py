"""Stores of one server: a unix socket, a user with the least rights, refusals, and replicas."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_ratelimit import Concurrency, ConfigurationError, Limit, Limiter, StoreUnavailable
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.conftest import PATIENT
from tests.fleet_of import Fleet, until
from tests.integration.store.helpers import rights

#: Of three names that are in three slots, on three nodes.
SPREAD = [Limit("10/s", burst=5, name=name) for name in ("a", "b", "c")]


@pytest.mark.parametrize("scheme", ["unix", "redis+socket"])
def test_unix_socket(tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "redis.sock"
    with embedded_server(options=["--unixsocket", str(path)]):
        limiter = Limiter.from_url(f"{scheme}://{path}?db=3")
        assert limiter.check_store() == []
        assert limiter.acquire(SPREAD).allowed
        assert limiter.client.connection_pool.connection_kwargs["db"] == 3


@pytest.fixture
def user(server: EmbeddedServer, store: redis.Redis) -> Iterator[str]:
    """The URL of a user with the least rights."""
    store.execute_command("ACL", "SETUSER", "limiter", "reset", ">secret", *rights())
    yield server.url.replace("redis://", "redis://limiter:secret@")
    store.execute_command("ACL", "DELUSER", "limiter")


def test_documented_rights_are_enough(user: str) -> None:
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
def test_missing_right_is_an_error_of_the_store_check(user: str, store: redis.Redis, missing: str) -> None:
    store.execute_command("ACL", "SETUSER", "limiter", missing)
    with pytest.raises(ConfigurationError, match=r"docs/stores\.md"):
        Limiter.from_url(user).check_store()


def test_worker_whose_user_lacks_a_right_does_not_start(
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


@pytest.mark.parametrize("url", ["redis://limiter:wrong@{}", "redis://unknown:secret@{}"])
def test_wrong_user_or_password_is_an_error(user: str, url: str) -> None:
    with pytest.raises(ConfigurationError, match="the user or the password in the URL is wrong"):
        Limiter.from_url(url.format(user.partition("@")[2])).acquire(SPREAD)


def test_missing_password_is_an_error(server: EmbeddedServer, store: redis.Redis) -> None:
    store.config_set("requirepass", "secret")
    try:
        with pytest.raises(ConfigurationError, match="it wants a password"):
            Limiter.from_url(server.url + PATIENT).acquire(SPREAD)
    finally:
        store.config_set("requirepass", "")


def test_store_that_may_evict_keys_is_a_warning(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    store.config_set("maxmemory-policy", "volatile-lru")
    try:
        (warning,) = Limiter.from_url(server.url + PATIENT).check_store()
        assert "maxmemory-policy volatile-lru" in warning
        with Fleet(server, tmp_path) as fleet:
            fleet.start()
            assert fleet.log().count("maxmemory-policy volatile-lru") == 1
            assert "WARNING/MainProcess] ratelimit_url=" in fleet.log()
    finally:
        store.config_set("maxmemory-policy", "noeviction")


def test_read_only_replica_is_an_error(server: EmbeddedServer) -> None:
    with embedded_server(options=["--replicaof", "127.0.0.1", str(server.port)]) as replica:
        limiter = Limiter.from_url(replica.url + PATIENT)
        with pytest.raises(ConfigurationError, match=f"read-only replica of 127.0.0.1:{server.port}"):
            limiter.check_store()
        with pytest.raises(StoreUnavailable, match="read only replica"):
            limiter.acquire(SPREAD)


def test_connection_to_a_master_that_became_a_replica_is_closed(server: EmbeddedServer) -> None:
    """Behind one address that leads to the new master (a managed store's): only a new connection gets there."""
    with embedded_server() as other:
        limiter = Limiter.from_url(other.url + PATIENT)
        limiter.acquire(SPREAD)
        with redis.Redis.from_url(other.url) as admin:
            admin.replicaof("127.0.0.1", server.port)
            connections = admin.info("stats")["total_connections_received"]
            with pytest.raises(StoreUnavailable):
                limiter.acquire(SPREAD)
            assert admin.info("stats")["total_connections_received"] > connections
            admin.replicaof("NO", "ONE")
        assert limiter.acquire(SPREAD).allowed


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


def test_probe_is_refused_when_requests_are(refusing: tuple[EmbeddedServer, Any]) -> None:
    own, refuse = refusing
    limiter = Limiter.from_url(own.url + PATIENT)
    limiter._asker.probe()
    refuse(True)
    limiter.ping()
    for call in (limiter._asker.probe, lambda: limiter.acquire(Limit("1/h", burst=5, name="one"))):
        with pytest.raises((StoreUnavailable, ConfigurationError)):
            call()
    refuse(False)
    limiter._asker.probe()
    assert limiter.acquire(SPREAD).allowed


@pytest.mark.parametrize(
    ("refusing", "says"),
    [
        pytest.param("NOREPLICAS", "WARNING/MainProcess] the limiter's store", marks=pytest.mark.slow),
        pytest.param("NOPERM", "refuses to serve", marks=pytest.mark.slow),
        ("a pause", "WARNING/MainProcess] the limiter's store"),
    ],
    indirect=["refusing"],
)
def test_outage_ends_when_requests_are_served_and_loses_no_task(
    server: EmbeddedServer, store: redis.Redis, refusing: tuple[EmbeddedServer, Any], tmp_path: Path, says: str
) -> None:
    own, refuse = refusing
    with Fleet(server, tmp_path, ratelimit_url=own.url) as fleet:
        fleet.start()
        refuse(True)
        for index in range(10):
            fleet.send("retry", index)
        until(lambda: says in fleet.log(), 10, "the line in the log")
        time.sleep(2)
        assert fleet.started() == 0
        assert "store is back" not in fleet.log()
        refuse(False)
        assert sorted(start.index for start in fleet.wait_for(10, 20)) == list(range(10))
        assert (fleet.log().count(says), fleet.log().count("store is back")) == (1, 1)
        assert "Traceback" not in fleet.log()


def test_store_lost_during_its_check_is_an_outage(
    server: EmbeddedServer, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that starts then waits for the store."""
    limiter = Limiter.from_url(server.url + PATIENT)

    def is_lost(*_: object, **__: object) -> None:
        raise redis.TimeoutError("no answer")

    monkeypatch.setattr(limiter._asker.client, "info", is_lost)
    with pytest.raises(StoreUnavailable, match="no answer") as raised:
        limiter.check_store()
    assert isinstance(raised.value.__cause__, redis.TimeoutError)
