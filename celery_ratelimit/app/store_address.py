"""The address of an app's store, and the options with which Celery reaches the broker or result backend that it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from celery import Celery

from ..errors import ConfigurationError
from ..store.url import SCHEMES, is_sentinel
from ..store.url_text import ENCODE, read_option, without_password

__all__ = ["check_broker_url", "store_address"]

#: Options of Celery's that are the client's, too; the ones about Sentinels; and what only a host has, and no socket.
_SHARED = (
    *("credential_provider", "username", "password", "client_name", "health_check_interval", "retry_on_timeout"),
    *("socket_timeout", "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options"),
)
_SENTINEL = ("master_name", "sentinel_kwargs", "min_other_sentinels")
_OF_HOSTS = ("ssl", "socket_connect", "socket_keepalive")
#: What the URL says, or a setting of its own.
_NO_OPTIONS = frozenset(("url", "host", "port", "path", "db", "quotas", "prefix", "counts", "lowest_first"))
_SECURE = {"redis": "rediss", "valkey": "valkeys"}


def store_address(app: Celery, configured: Any, given: Any) -> tuple[str, dict[str, Any]]:
    """The URL of an app's store, and the options of its client; ``given``: ``ratelimit_store_options``.

    Raises:
        ConfigurationError: there is no store, or an invalid setting.
    """
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigurationError("ratelimit_store_options must be a mapping of redis-py's options to their values")
    for name in given.keys() & _NO_OPTIONS:
        raise ConfigurationError(f"ratelimit_store_options: {name!r} is no option of a client: see ratelimit_url")
    given = {name: read_option(name, value) for name, value in given.items()}
    if configured is not None and (
        not isinstance(configured, str) or not (_is_store(configured) or configured.startswith("memory://"))
    ):
        raise ConfigurationError(
            f"ratelimit_url={without_password(repr(configured))} is not the URL of a Redis or Valkey store: "
            "it must look like 'redis://host:6379/0' (or rediss://, unix://, sentinel://, redis+cluster://, "
            "valkey://, memory:// in tests)"
        )
    for url, options in _of_celery(app):
        if configured in (None, url):
            scheme, _, rest = url.partition("://")
            if any(name.startswith("ssl") for name in options):
                scheme = _SECURE.get(scheme, scheme)
            return f"{scheme}://{rest}", {**options, **given}
    if configured is not None:
        return configured, {**_of_sentinels(app, configured), **given}
    raise ConfigurationError(
        "neither the broker nor the result backend is a Redis, so the limits need a store of their own: "
        "set ratelimit_url, for example to 'redis://localhost:6379/0'"
    )


def check_broker_url(app: Celery) -> None:
    """Raise ConfigurationError if kombu cannot read the broker's URL; the text has no part of the password."""
    conf = app.conf
    for address, connect in (
        (conf.broker_write_url, app.connection_for_write),
        (conf.broker_read_url, app.connection_for_read),
    ):
        try:  # nothing is connected
            connection = connect()
            connection.get_transport_cls()
            for url in connection.alt:
                connect(url)
        except Exception as error:
            shown = without_password(_joined(address))
            why = "it has no such transport, or the library of it is missing"
            why = ENCODE if isinstance(error, ValueError) else why
            raise ConfigurationError(f"kombu cannot read the broker's URL {shown!r}: {why}") from None


def _joined(address: Any) -> str:
    return ";".join(map(str, address)) if isinstance(address, (list, tuple)) else str(address or "")


def _is_store(url: str) -> bool:
    scheme, separator, _ = url.partition("://")
    return bool(separator) and scheme in SCHEMES


def _of_celery(app: Celery) -> Iterator[tuple[str, dict[str, Any]]]:
    """The broker and the result backend, if they can be the store, each with its options."""
    conf, transports = app.conf, [app.conf.broker_transport_options, app.conf.result_backend_transport_options]
    backends: dict[str, Any] = {name: conf.get(f"redis_{name}") for name in ("username", "password")}
    backends["credential_provider"] = conf.get("redis_backend_credential_provider")
    none: dict[str, Any] = {}
    places = ((conf.broker_url, conf.broker_use_ssl, none), (conf.result_backend, conf.redis_backend_use_ssl, backends))
    for (address, tls, more), transport in zip(places, transports, strict=True):
        url = _joined(address)
        found, every = _of_sentinels(app, url), {**(transport or {}), **more}
        found.update((name, every[name]) for name in _SHARED if every.get(name) is not None)
        if isinstance(tls, Mapping):
            found.update((name, read_option(name, value)) for name, value in tls.items())
        if not is_sentinel(url):
            url = url.split(";")[0]
        elif "master_name" not in found and "service_name=" not in url:
            continue
        elif any(name.startswith("ssl") for name in found):
            found["ssl"] = True
        if _is_store(url):
            is_socket = url.startswith(("unix:", "redis+socket:"))
            yield url, {name: found[name] for name in found if not (is_socket and name.startswith(_OF_HOSTS))}


def _of_sentinels(app: Celery, url: str) -> dict[str, Any]:
    """Celery's transport options about Sentinels: the broker's; what they lack, the result backend's."""
    transports = (app.conf.result_backend_transport_options or {}, app.conf.broker_transport_options or {})
    return {name: each[name] for each in transports for name in _SENTINEL if is_sentinel(url) and name in each}
