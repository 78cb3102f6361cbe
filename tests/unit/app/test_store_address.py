"""A store that is the broker or the result backend has the connection options of Celery."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest
from celery import Celery
from redis.credentials import UsernamePasswordCredentialProvider

from celery_ratelimit import AsyncLimiter, ConfigurationError, Limit, Limiter, StoreUnavailable
from celery_ratelimit.app.app_store import check_store, check_url, limiter_of
from celery_ratelimit.app.limiters import async_limiter_of
from celery_ratelimit.app.settings import settings_of
from celery_ratelimit.store.url import async_client_of, client_of
from celery_ratelimit.testing import EmbeddedServer

TLS = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "/ca.pem"}
CA = {"ssl_ca_certs": "/ca.pem"}
CREDENTIALS = ("iam", "token")
PROVIDER = UsernamePasswordCredentialProvider(*CREDENTIALS)


def make_app(broker: Any = "memory://", backend: Any = None, **conf: Any) -> Celery:
    app = Celery("test", broker=broker, backend=backend, set_as_current=False)
    app.conf.update(conf)
    check_url(app)
    return app


def kwargs_of(app: Celery) -> dict[str, Any]:
    """How the store's connections are made; the same for both limiters."""
    pool, other = limiter_of(app).client.connection_pool, async_limiter_of(app).client.connection_pool
    assert pool.connection_class.__name__ == other.connection_class.__name__
    for name in ("ssl_ca_certs", "ssl_cert_reqs", "credential_provider", "username", "password", "client_name"):
        assert pool.connection_kwargs.get(name) == other.connection_kwargs.get(name)
    return {**pool.connection_kwargs, "kind": pool.connection_class.__name__}


@pytest.mark.parametrize("scheme", ["redis", "rediss", "valkey", "valkeys"])
@pytest.mark.parametrize("place", ["broker", "backend"])
def test_tls_of_celerys_settings(scheme: str, place: str) -> None:
    url = f"{scheme}://host/1"
    app = make_app(url, broker_use_ssl=TLS) if place == "broker" else make_app(None, url, redis_backend_use_ssl=TLS)
    made = kwargs_of(app)
    assert (made["kind"], made["ssl_ca_certs"], made["ssl_cert_reqs"]) == ("SSLConnection", "/ca.pem", "required")
    assert (made["host"], made["db"]) == ("host", 1)


UNREAD = {"visibility_timeout": 5, "global_keyprefix": "x", "queue_order_strategy": "priority", "max_connections": 3}
READ = {"socket_timeout": 7, "socket_keepalive": True, "health_check_interval": 9, "client_name": "mine"}
OPTIONS = {**UNREAD, **READ}
OF_RESULTS = {
    "broker_transport_options": {"client_name": "broker"},
    "redis_backend_use_ssl": TLS,
    "result_backend_transport_options": {"client_name": "results"},
}
PASSWORD = {"redis_username": "me", "redis_password": "secret"}
OWN = {"broker_use_ssl": TLS, "ratelimit_url": "redis://limits", "ratelimit_store_options": {"client_name": "me"}}
SENTINELS = {"broker_transport_options": {"master_name": "limits"}, "broker_use_ssl": TLS}


@pytest.mark.parametrize(
    ("broker", "backend", "conf", "expected"),
    [
        *[
            ("redis://host", None, {"broker_use_ssl": {"ssl_cert_reqs": reqs}}, {"ssl_cert_reqs": "none"})
            for reqs in ("CERT_NONE", "none", ssl.CERT_NONE)
        ],
        ("sentinel://one;sentinel://two", None, SENTINELS, {"kind": "SentinelManagedSSLConnection", **CA}),
        *[
            (f"{scheme}://host", None, {"broker_use_ssl": tls}, {"kind": kind})
            for tls in (True, False, None, {})
            for scheme, kind in (("redis", "Connection"), ("rediss", "SSLConnection"))
        ],
        # The store has the options of its source alone.
        ("redis://host", "redis://results", OF_RESULTS, {"kind": "Connection", "client_name": "broker"}),
        ("amqp://host", "redis://results", OF_RESULTS, {"kind": "SSLConnection", "client_name": "results"}),
        ("redis://host", None, {"broker_transport_options": OPTIONS}, READ),
        (
            *("redis+socket:///run/redis.sock", None, {"broker_transport_options": OPTIONS, "broker_use_ssl": TLS}),
            {"kind": "UnixDomainSocketConnection", "socket_timeout": 7},
        ),
        (None, "redis://results", PASSWORD, {"username": "me", "password": "secret"}),
        (None, "redis://:own@results", PASSWORD, {"password": "own"}),
        # A URL of its own has options of its own, unless it is the broker's.
        ("rediss://host", None, OWN, {"kind": "Connection", "host": "limits", "client_name": "me"}),
        ("rediss://host", None, {**OWN, "ratelimit_url": "rediss://host"}, {"kind": "SSLConnection", **CA}),
        (
            *("redis://host", None),
            {"broker_transport_options": {"socket_timeout": 7}, "ratelimit_store_options": {"socket_timeout": "2"}},
            {"socket_timeout": 2},
        ),
        (
            *("memory://", None),
            {"ratelimit_url": "rediss://limits", "ratelimit_store_options": {"ssl_cert_reqs": "CERT_NONE"}},
            {"ssl_cert_reqs": "none"},
        ),
    ],
)
def test_options_of_the_connection(broker: Any, backend: Any, conf: dict[str, Any], expected: dict[str, Any]) -> None:
    app = make_app(broker, backend, **conf)
    made = kwargs_of(app)
    assert {name: made.get(name) for name in expected} == expected
    assert "secret" not in repr(settings_of(app))


NAME = "tests.unit.app.test_store_address.Provider"


class Provider(UsernamePasswordCredentialProvider):
    def __init__(self) -> None:
        super().__init__("iam", "token")


@pytest.mark.parametrize(
    ("broker", "backend", "conf"),
    [
        (f"redis://me:secret@host/1?credential_provider={NAME}&socket_timeout=3", None, {}),
        ("redis://host/1", None, {"broker_transport_options": {"credential_provider": PROVIDER}}),
        (None, "redis://host/1", {"redis_backend_credential_provider": NAME, "redis_password": "old"}),
        (None, "redis://:old@host/1", {"redis_backend_credential_provider": PROVIDER}),
        (None, f"redis://host/1?credential_provider={NAME}", {}),
        (None, None, {"ratelimit_url": "redis://host/1", "ratelimit_store_options": {"credential_provider": NAME}}),
    ],
)
def test_a_credential_provider_logs_in(broker: str | None, backend: str | None, conf: dict[str, Any]) -> None:
    app = make_app(broker or "memory://", backend, **conf)
    pool = limiter_of(app).client.connection_pool
    made = pool.connection_kwargs
    assert (made["host"], made["db"], made.get("username"), made.get("password")) == ("host", 1, None, None)
    assert pool.make_connection().credential_provider.get_credentials() == ("iam", "token")
    assert async_limiter_of(app).client.connection_pool.make_connection().credential_provider is not None


def test_a_credential_provider_of_sentinels_master_and_of_a_cluster() -> None:
    url = "sentinel://:old@one;sentinel://two/0?service_name=limits"
    for make in (client_of, async_client_of):
        made = make(url, credential_provider=PROVIDER).connection_pool.connection_kwargs
        assert (made["credential_provider"].get_credentials(), made.get("password")) == (CREDENTIALS, None)
    cluster = async_client_of("redis+cluster://me:old@one,two", credential_provider=PROVIDER)
    assert cluster.connection_kwargs["credential_provider"].get_credentials() == CREDENTIALS
    assert cluster.connection_kwargs.get("password") is None


@pytest.mark.parametrize("name", ["nowhere.Provider", "tests.unit.app.test_store_address.Absent", "ssl"])
def test_missing_provider_error(name: str) -> None:
    with pytest.raises(ConfigurationError, match="credential_provider is no provider, nor the name of a class"):
        client_of(f"redis://host?credential_provider={name}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *[(options, "ratelimit_store_options must be a mapping") for options in (None, [], "socket_timeout=1", {1: 2})],
        *[
            ({name: "1"}, f"'{name}' is no option of a client: see ratelimit_url")
            for name in ("url", "host", "db", "quotas", "prefix")
        ],
        ({"socket_timeout": "abc"}, "socket_timeout='abc' cannot be"),
    ],
)
def test_store_options_that_no_client_has_are_an_error(options: Any, message: str) -> None:
    for make in (make_app, lambda broker, **conf: async_limiter_of(Celery(broker=broker, changes=conf))):
        with pytest.raises(ConfigurationError, match=message):
            make("redis://host/1", ratelimit_store_options=options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"socket_timout": 1}, "'socket_timout'; did you mean 'socket_timeout'"),
        *[({"retry": value}, "retry must be a redis.retry.Retry, as in") for value in (3, "3")],
        *[
            ({"socket_timeout": value}, "socket_timeout must be a number of seconds above 0")
            for value in (0, -1, [1], float("nan"))
        ],
        ({"socket_connect_timeout": 0}, "socket_connect_timeout must be a number of seconds above 0"),
        ({"health_check_interval": -1}, "health_check_interval must be a number of seconds"),
        ({"retry_on_error": 3}, "retry_on_error must be a list of exceptions"),
        ({"socket_keepalive_options": 5}, "socket_keepalive_options must be a mapping"),
    ],
)
def test_option_that_would_fail_at_each_call_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_app("redis://host", ratelimit_store_options=options)
    for made in (Limiter, AsyncLimiter):
        for url in ("redis://host", "redis+cluster://host", "sentinel://host?service_name=m"):
            with pytest.raises(ConfigurationError, match=message):
                made.from_url(url, **options)


class Failing(UsernamePasswordCredentialProvider):
    def get_credentials(self) -> tuple[str]:
        raise RuntimeError("the token service is down, and its password is secret")


@pytest.mark.parametrize("provider", [Failing(), Failing, "tests.unit.app.test_store_address.Failing"])
def test_credential_provider_error_is_store_unavailable(server: EmbeddedServer, provider: Any) -> None:
    """No task fails for it: as while the store does not answer."""
    app = make_app(server.url, ratelimit_store_options={"credential_provider": provider})
    with pytest.raises(StoreUnavailable, match="its credential provider has raised RuntimeError"):
        limiter_of(app).acquire(Limit("1/s", name="a"))

    async def acquire() -> None:
        async with async_limiter_of(app) as limiter:
            await limiter.acquire(Limit("1/s", name="a"))

    with pytest.raises(StoreUnavailable, match="its credential provider has raised RuntimeError"):
        asyncio.run(acquire())


@pytest.mark.parametrize("options", [{"parser_class": 3}, {"encoding": "latin-0"}])
def test_invalid_option_value_is_found_at_the_start(server: EmbeddedServer, options: dict[str, Any]) -> None:
    app = make_app(server.url, ratelimit_store_options=options)
    with pytest.raises(ConfigurationError, match=f"one of its options .{'|'.join(options)}. cannot have its value"):
        check_store(app)
