"""A store that is the broker or the result backend has the connection options of Celery."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest
from celery import Celery
from redis.credentials import UsernamePasswordCredentialProvider

from celery_ratelimit import AsyncLimiter, ConfigurationError, Limit, Limiter, StoreUnavailable
from celery_ratelimit.app.limiters import async_limiter_of
from celery_ratelimit.app.settings import settings_of
from celery_ratelimit.app.state import check_store, check_url, limiter_of
from celery_ratelimit.store.url import async_client_of, client_of
from celery_ratelimit.testing import EmbeddedServer

TLS = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "/ca.pem"}
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


@pytest.mark.parametrize("reqs", ["CERT_NONE", "none", ssl.CERT_NONE])
def test_each_spelling_of_the_verification(reqs: Any) -> None:
    assert kwargs_of(make_app("redis://host", broker_use_ssl={"ssl_cert_reqs": reqs}))["ssl_cert_reqs"] == "none"


def test_tls_of_sentinels_master() -> None:
    options = {"master_name": "limits"}
    app = make_app("sentinel://one;sentinel://two", broker_transport_options=options, broker_use_ssl=TLS)
    made = kwargs_of(app)
    assert (made["kind"], made["ssl_ca_certs"]) == ("SentinelManagedSSLConnection", "/ca.pem")


@pytest.mark.parametrize("tls", [True, False, None, {}])
def test_without_options_of_tls_the_url_says(tls: Any) -> None:
    assert kwargs_of(make_app("redis://host", broker_use_ssl=tls))["kind"] == "Connection"
    assert kwargs_of(make_app("rediss://host", broker_use_ssl=tls))["kind"] == "SSLConnection"


def test_store_has_only_the_settings_of_its_source() -> None:
    other = {"redis_backend_use_ssl": TLS, "result_backend_transport_options": {"client_name": "results"}}
    made = kwargs_of(make_app("redis://host", "redis://results", **other))
    assert (made["kind"], made.get("client_name")) == ("Connection", None)
    made = kwargs_of(make_app("amqp://host", "redis://results", broker_use_ssl=TLS, **other))
    assert (made["kind"], made["client_name"]) == ("SSLConnection", "results")


def test_transport_options_of_the_client_are_used() -> None:
    options = {
        "visibility_timeout": 5,
        "global_keyprefix": "x",
        "queue_order_strategy": "priority",
        "max_connections": 3,
        "socket_timeout": 7,
        "socket_keepalive": True,
        "health_check_interval": 9,
        "client_name": "mine",
    }
    made = kwargs_of(make_app("redis://host", broker_transport_options=options))
    assert (made["socket_timeout"], made["socket_keepalive"]) == (7, True)
    assert (made["health_check_interval"], made["client_name"]) == (9, "mine")
    made = kwargs_of(make_app("redis+socket:///run/redis.sock", broker_transport_options=options, broker_use_ssl=TLS))
    assert (made["kind"], made["socket_timeout"]) == ("UnixDomainSocketConnection", 7)


def test_user_and_password_of_the_result_backend() -> None:
    conf = {"redis_username": "me", "redis_password": "secret"}
    made = kwargs_of(make_app(None, "redis://results", **conf))
    assert (made["username"], made["password"]) == ("me", "secret")
    assert kwargs_of(make_app(None, "redis://:own@results", **conf))["password"] == "own"
    assert "secret" not in repr(settings_of(make_app(None, "redis://results", **conf)))


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


def test_a_url_of_its_own_has_options_of_its_own() -> None:
    conf = {"broker_use_ssl": TLS, "ratelimit_url": "redis://limits", "ratelimit_store_options": {"client_name": "me"}}
    made = kwargs_of(make_app("rediss://host", **conf))
    assert (made["kind"], made["host"], made["client_name"]) == ("Connection", "limits", "me")
    made = kwargs_of(make_app("rediss://host", **{**conf, "ratelimit_url": "rediss://host"}))
    assert (made["kind"], made["ssl_ca_certs"]) == ("SSLConnection", "/ca.pem"), "it is the broker"


def test_options_of_its_own_go_before_celerys() -> None:
    conf = {"broker_transport_options": {"socket_timeout": 7}, "ratelimit_store_options": {"socket_timeout": 2}}
    assert kwargs_of(make_app("redis://host", **conf))["socket_timeout"] == 2


@pytest.mark.parametrize("options", [None, [], "socket_timeout=1", {1: 2}])
def test_store_options_must_be_a_mapping(options: Any) -> None:
    with pytest.raises(ConfigurationError, match="ratelimit_store_options must be a mapping"):
        make_app("redis://host", ratelimit_store_options=options)


def test_unknown_option_error_names_it() -> None:
    with pytest.raises(ConfigurationError, match="'socket_timout'; did you mean 'socket_timeout'"):
        make_app("redis://host", ratelimit_store_options={"socket_timout": 1})


@pytest.mark.parametrize("name", ["url", "host", "db", "quotas", "prefix"])
def test_option_outside_the_client_error_names_it(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}' is no option of a client: see ratelimit_url"):
        make_app("redis://host/1", ratelimit_store_options={name: "1"})
    with pytest.raises(ConfigurationError, match=f"'{name}' is no option of a client: see ratelimit_url"):
        async_limiter_of(Celery(broker="redis://host/1", changes={"ratelimit_store_options": {name: "1"}}))


def test_a_number_may_be_a_text_as_in_a_url() -> None:
    made = kwargs_of(make_app("redis://host", ratelimit_store_options={"socket_timeout": "2", "max_connections": "3"}))
    assert made["socket_timeout"] == 2
    with pytest.raises(ConfigurationError, match="socket_timeout='abc' cannot be"):
        make_app("redis://host", ratelimit_store_options={"socket_timeout": "abc"})


@pytest.mark.parametrize(
    ("name", "value", "must_be"),
    [
        *[("retry", value, "a redis.retry.Retry, as in") for value in (3, "3")],
        *[("socket_timeout", value, "a number of seconds above 0") for value in (0, -1, [1], float("nan"))],
        ("socket_connect_timeout", 0, "a number of seconds above 0"),
        ("health_check_interval", -1, "a number of seconds"),
        ("retry_on_error", 3, "a list of exceptions"),
        ("socket_keepalive_options", 5, "a mapping"),
    ],
)
def test_value_that_would_fail_at_each_call_is_an_error(name: str, value: Any, must_be: str) -> None:
    options, says = {name: value}, f"{name} must be {must_be}"
    with pytest.raises(ConfigurationError, match=says):
        make_app("redis://host", ratelimit_store_options=options)
    for made in (Limiter, AsyncLimiter):
        for url in ("redis://host", "redis+cluster://host", "sentinel://host?service_name=m"):
            with pytest.raises(ConfigurationError, match=says):
                made.from_url(url, **options)


def test_a_timeout_in_a_url_is_not_zero() -> None:
    with pytest.raises(ConfigurationError, match="socket_timeout must be a number of seconds above 0"):
        Limiter.from_url("redis://host?socket_timeout=0")


def test_a_spelling_of_celerys_in_options_of_its_own() -> None:
    conf = {"ratelimit_url": "rediss://limits", "ratelimit_store_options": {"ssl_cert_reqs": "CERT_NONE"}}
    assert kwargs_of(make_app(**conf))["ssl_cert_reqs"] == "none"


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
