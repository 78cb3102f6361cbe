"""From URLs to clients, and from errors to advice; no server is called."""

from __future__ import annotations

import ast
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import redis
from redis import exceptions
from redis.sentinel import SentinelConnectionPool

from celery_ratelimit import AsyncLimiter, ConfigurationError, StoreUnavailable
from celery_ratelimit.app.app_store import limiter_of
from celery_ratelimit.app.settings import settings_of
from celery_ratelimit.errors import StoreFull
from celery_ratelimit.store import url as urls
from celery_ratelimit.store.startup_check import check_fitness
from celery_ratelimit.store.store_errors import trouble
from celery_ratelimit.store.url import async_client_of, client_of
from tests.unit.apps import make_app

# -- URLs --------------------------------------------------------------------------------------------------------------


SERVER = {"host": "host", "port": 7000, "db": 2, "username": "app", "password": "p@ss"}
SECURE = {"ssl_cert_reqs": "required", "ssl_ca_certs": "/etc/ca.pem", "kind": "SSLConnection"}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://app:p%40ss@host:7000/2", SERVER),
        ("valkey://app:p%40ss@host:7000/2", SERVER),
        ("rediss://host:6380/0?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs=/etc/ca.pem", SECURE),
        ("valkeys://host:6380/0?ssl_cert_reqs=required&ssl_ca_certs=/etc/ca.pem", SECURE),
        ("unix:///run/redis.sock?db=3", {"path": "/run/redis.sock", "db": 3}),
        ("redis+socket:///run/redis.sock?virtual_host=3", {"path": "/run/redis.sock", "db": 3, "virtual_host": None}),
        ("redis://host", {"socket_timeout": 0.5, "socket_connect_timeout": 0.5}),
        ("redis://host?socket_timeout=2", {"socket_timeout": 2.0}),
    ],
)
def test_connection_of_a_url(url: str, expected: dict[str, Any]) -> None:
    pool = client_of(url).connection_pool
    made = {**pool.connection_kwargs, "kind": pool.connection_class.__name__}
    assert {name: made.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    "url",
    [
        "sentinel://app:secret@one:26379/1;sentinel://two:26380;sentinel://three?service_name=limits",
        "sentinel://app:secret@one:26379;sentinel://two:26380/1;sentinel://three:26379?master_name=limits",
        "sentinel://app:secret@one,two:26380,three/1?service_name=limits",
    ],
)
def test_sentinels(url: str) -> None:
    pool = client_of(url).connection_pool
    assert type(pool) is SentinelConnectionPool
    assert pool.service_name == "limits"
    asked = [each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels]
    assert [(each["host"], each["port"]) for each in asked] == [("one", 26379), ("two", 26380), ("three", 26379)]
    assert {each["socket_timeout"] for each in asked} == {0.5}
    assert {each["retry"]._retries for each in asked} == {0}, "three that are dead would cost seconds"
    assert {each.get("password") for each in asked} == {None}
    kwargs = pool.connection_kwargs
    assert (kwargs["db"], kwargs["username"], kwargs["password"]) == (1, "app", "secret")
    assert kwargs["socket_timeout"] == 0.5


def test_sentinels_with_a_password_of_their_own_in_the_url_and_tls_to_the_master() -> None:
    url = "sentinel://one/0?service_name=limits&sentinel_password=theirs&ssl=true&ssl_ca_certs=/etc/ca.pem"
    pool = client_of(url).connection_pool
    assert issubclass(pool.connection_class, redis.SSLConnection)
    assert pool.connection_kwargs["ssl_ca_certs"] == "/etc/ca.pem"
    assert pool.sentinel_manager.sentinels[0].connection_pool.connection_kwargs["password"] == "theirs"


def test_a_cluster_that_is_not_there_is_an_outage_and_no_bug() -> None:
    with pytest.raises(StoreUnavailable, match="cannot be connected"):
        client_of("redis+cluster://127.0.0.1:1,127.0.0.1:2")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis+cluster://host:7000/3", "database 0"),
        ("redis+cluster://host/0?max_connections=x", "max_connections cannot have that value"),
        ("redis://host?db=x", "db cannot have that value"),
        ("redis+cluster://host:port", "not the URL"),
        ("sentinel://host:99999999/0?service_name=x", "not the URL"),
        ("rediss+sentinel://host", "begins with none of redis://"),
        ("redis://host:x", "not the URL"),
        ("sentinel://:secret@one/0", r"'sentinel://\*\*@one/0' does not say which master.*service_name="),
    ],
)
def test_invalid_url_error_gives_a_reason(url: str, why: str) -> None:
    for make in (client_of, async_client_of):
        with pytest.raises(ConfigurationError, match=why):
            make(url)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("redis://host:7000/2", "Redis"),
        ("unix:///run/redis.sock", "Redis"),
        ("sentinel://one,two/0?service_name=limits", "Redis"),
        ("redis+cluster://app:secret@one:7000,two:7001", "RedisCluster"),
        ("rediss+cluster://one:7000", "RedisCluster"),
    ],
)
def test_async_clients_of_urls(url: str, kind: str) -> None:
    client = async_client_of(url)
    assert type(client).__module__.startswith("redis.asyncio")
    assert type(client).__name__ == kind
    kwargs = client.connection_kwargs if kind == "RedisCluster" else client.connection_pool.connection_kwargs
    assert (kwargs["socket_timeout"], kwargs["socket_connect_timeout"]) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("url", "options", "seconds"),
    [
        ("redis+cluster://one:7000", {}, 5.0),
        ("redis+cluster://one:7000?timeout=7", {}, 7.0),
        ("redis+cluster://one:7000", {"timeout": 8.0}, 8.0),
        ("redis+cluster://one:7000?timeout=7", {"timeout": 8.0}, 7.0),
    ],
)
def test_how_long_callers_wait_for_a_connection_of_a_cluster(url: str, options: Any, seconds: float) -> None:
    cluster = AsyncLimiter.from_url(url, **options)._asker._cluster
    assert cluster is not None
    assert cluster.timeout == seconds


def test_their_options_are_known_without_parsing_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython before 3.11.8 fails to parse in several threads at once, and six made their limiters in that moment."""

    def parse(source: str, *_: Any, **__: Any) -> None:
        pytest.fail(f"parsed {source!r}")

    urls._known.cache_clear()
    urls._parameters.cache_clear()
    for url in ("redis://host/0?nosuch=1", "redis+cluster://host?nosuch=1"):
        with monkeypatch.context() as patched:
            patched.setattr(ast, "parse", parse)
            with pytest.raises(ConfigurationError, match="nosuch"):
                client_of(url)


# -- Celery's settings -------------------------------------------------------------------------------------------------


def test_a_broker_behind_sentinels_is_the_default_store() -> None:
    url = "sentinel://:secret@one:26379;sentinel://two:26379"
    options = {"sentinel_kwargs": {"password": "theirs"}, "min_other_sentinels": 2}
    app = make_app(url, broker_transport_options={**options, "master_name": "tasks"})
    assert settings_of(app).url == url
    pool = limiter_of(app).client.connection_pool
    assert (pool.service_name, pool.connection_kwargs["password"]) == ("tasks", "secret")
    manager = pool.sentinel_manager
    assert manager.min_other_sentinels == 2
    asked = [each.connection_pool.connection_kwargs for each in manager.sentinels]
    told = [(each["host"], each["password"], each["socket_timeout"]) for each in asked]
    assert told == [("one", "theirs", 0.5), ("two", "theirs", 0.5)]


@pytest.mark.parametrize(
    ("conf", "master"),
    [
        (
            {"result_backend": "sentinel://one/3", "result_backend_transport_options": {"master_name": "results"}},
            ("results", 3),
        ),
        (
            {
                "ratelimit_url": "sentinel://one,two/0?service_name=limits",
                "broker_transport_options": {"master_name": "tasks"},
            },
            ("limits", 0),
        ),
    ],
)
def test_sentinels_are_asked_for_the_master_of_their_settings(conf: dict[str, Any], master: tuple[str, int]) -> None:
    pool = limiter_of(make_app("memory://", **conf)).client.connection_pool
    assert (pool.service_name, pool.connection_kwargs["db"]) == master


# -- What errors mean --------------------------------------------------------------------------------------------------

OUTAGES = [
    exceptions.ConnectionError("refused"),
    exceptions.TimeoutError("timed out"),
    exceptions.BusyLoadingError("Redis is loading the dataset in memory"),
    exceptions.ReadOnlyError("You can't write against a read only replica."),
    exceptions.MasterDownError("Link with MASTER is down"),
    exceptions.ClusterDownError("The cluster is down"),
    exceptions.TryAgainError("Multiple keys request during rehashing of slot"),
    exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
    exceptions.ResponseError("BUSY Redis is busy running a script."),
    exceptions.ResponseError("MISCONF Redis is configured to save RDB snapshots, but"),
    exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."),
    exceptions.ClusterError("TTL exhausted."),
    exceptions.InvalidResponse("Protocol Error"),
    exceptions.RedisClusterException("Redis Cluster cannot be connected. Please provide at least one reachable node: "),
    exceptions.RedisClusterException("All slots are not covered after query all startup_nodes."),
    exceptions.SlotNotCoveredError('Slot "1" not covered by the cluster.'),
    exceptions.ResponseError("Error running script (call to f_1): @user_script:7: -READONLY You can't write against a"),
]
MISCONFIGURED = [
    (exceptions.NoPermissionError("User limiter has no permissions to run the 'zadd' command"), "docs/stores.md"),
    (exceptions.ResponseError("ACL failure in script: User x has no permissions to run the 'get' command"), "rights"),
    (exceptions.ResponseError("The user executing the script can't run this command or subcommand"), "rights"),
    (exceptions.AuthenticationError("Authentication required."), "wants a password"),
    (exceptions.AuthenticationError("invalid username-password pair or user is disabled."), "is wrong"),
    (exceptions.ClusterCrossSlotError("Keys in request don't hash to the same slot"), "{stripe}"),
    (exceptions.MovedError("12182 127.0.0.1:7002"), "redis\\+cluster://"),
    (exceptions.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"), "ratelimit_prefix"),
    (exceptions.ResponseError("Error compiling script (new function): user_script:1: '=' expected"), "docs/stores.md"),
    (exceptions.ResponseError("unknown command 'EVALSHA', with args beginning with:"), "docs/stores.md"),
    (exceptions.ResponseError("DB index is out of range"), "docs/stores.md"),
    (
        exceptions.RedisClusterException("cannot be connected. Cluster mode is not enabled on this node"),
        "a plain server: begin the URL with redis://",
    ),
]


@pytest.mark.parametrize("error", OUTAGES, ids=lambda error: f"{type(error).__name__} {str(error)[:12]}")
def test_temporary_error_is_an_outage(error: Exception) -> None:
    made = trouble(error)
    assert type(made) is (StoreFull if isinstance(error, exceptions.OutOfMemoryError) else StoreUnavailable)
    assert str(error) in str(made)


@pytest.mark.parametrize(("error", "mend"), MISCONFIGURED, ids=lambda each: str(each)[:20])
def test_permanent_error_is_a_configuration_error_with_a_remedy(error: Exception, mend: str) -> None:
    made = trouble(error)
    assert not isinstance(made, StoreUnavailable)
    with pytest.raises(ConfigurationError, match=mend):
        raise made


# -- Fitness -----------------------------------------------------------------------------------------------------------


def fitness(server: Any = None, replication: Any = None, memory: Any = None) -> list[str]:
    said = {"server": server, "replication": replication, "memory": memory}

    def info(section: str) -> Any:
        if said[section] is None:
            raise exceptions.NoPermissionError("no permissions to run the 'info' command")
        return said[section]

    return check_fitness(info)


@pytest.mark.parametrize("version", ["6.2.0", "7.0.15", "8.0.1", "255.255.255"])
def test_fit_store_has_no_warning(version: str) -> None:
    assert fitness() == [], "a store that may not be asked"
    assert fitness({"redis_version": version}, {"role": "master"}, {"maxmemory_policy": "noeviction"}) == []


REPLICA = {"role": "slave", "slave_read_only": 1, "master_host": "10.0.0.1", "master_port": 6379}


@pytest.mark.parametrize(
    ("server", "replication", "text"),
    [
        *[
            ({"redis_version": version}, None, rf"Redis {version}: it has to be Redis 6\.2 or later")
            for version in ("2.8.24", "5.0.14", "6.0.16")
        ],
        (None, REPLICA, r"read-only replica of 10\.0\.0\.1:6379"),
    ],
)
def test_unfit_store_is_an_error(server: Any, replication: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        fitness(server, replication)


# -- Rights ------------------------------------------------------------------------------------------------------------


def commands_of(source: str) -> set[str]:
    return set(re.findall(r"call\('([A-Z]+)'", source))


def test_commands_of_scripts_are_probed_and_documented() -> None:
    lua = Path(str(files("celery_ratelimit.lua")))
    scripts = [path for path in lua.rglob("*.lua") if path.parent.name != "broker"]
    used = set().union(*[commands_of(path.read_text()) for path in scripts])
    # Optional: without PUBLISH idle workers poll; without the others shares are not counted.
    unasked = {"PUBLISH", "ZLEXCOUNT", "HGETALL"}
    probe = commands_of((lua / "check_permissions.lua").read_text() + (lua / "include/now.lua").read_text())
    assert used - probe == unasked
    assert used >= probe
    documented = re.findall(r"\+(\w+)", (Path(__file__).parents[3] / "docs/stores.md").read_text())
    assert {command.lower() for command in used} <= set(documented)
