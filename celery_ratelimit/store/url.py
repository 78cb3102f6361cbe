"""Makes a client of the store from a URL: one server, Sentinel or a cluster; Redis or Valkey."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from typing import Any
from urllib.parse import urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry
from redis.sentinel import Sentinel

from ..errors import ConfigurationError, StoreUnavailable
from .connection_diagnosis import mend_by_asking
from .credentials import with_provider
from .store_errors import STORE_ERRORS, out_of_reach, trouble
from .url_text import check_address, check_options, check_text, not_a_url, without_password

__all__ = [
    "SCHEMES",
    "SOCKET_TIMEOUT",
    "async_client_of",
    "async_close_client",
    "check_url",
    "client_of",
    "close_client",
    "connection_wait_of",
    "is_sentinel",
    "without_password",
]

#: Seconds after which a store that does not answer counts as lost. A worker's event loop waits that long at most.
SOCKET_TIMEOUT = 0.5

_ONE = ("redis", "rediss", "valkey", "valkeys", "unix", "redis+socket")
_SENTINEL = ("sentinel", "redis+sentinel")
_CLUSTER = ("redis+cluster", "rediss+cluster", "valkey+cluster", "valkeys+cluster")

#: The schemes of a store's URL.
SCHEMES = (*_ONE, *_SENTINEL, *_CLUSTER)

#: Celery's names of options in a URL's query, and redis-py's names of the same.
_CELERYS = (
    ("virtual_host=", "db="),
    ("CERT_REQUIRED", "required"),
    ("CERT_OPTIONAL", "optional"),
    ("CERT_NONE", "none"),
)

#: Further options of a client of ``redis.asyncio``.
_OF_ASYNC = frozenset(("timeout", "encoder_class"))

#: One of the addresses of a URL: user and password, hosts, path and query.
_ADDRESS = re.compile(r"(?:(?P<user>[^/?]*)@)?(?P<hosts>[^/?]*)(?P<path>/[^?]*)?(?:\?(?P<query>.*))?")

#: Options of Sentinels, in a URL or in Celery's transport options.
_OF_SENTINELS = frozenset(
    (
        *("service_name", "master_name", "sentinel_username", "sentinel_password", "sentinel_kwargs"),
        *("min_other_sentinels", "ssl"),
    )
)


def is_sentinel(url: str) -> bool:
    """Whether a URL names Sentinels."""
    return url.partition("://")[0] in _SENTINEL


def client_of(url: str, **options: Any) -> Any:
    """A client of the store at ``url``. Default timeouts: 0.5 s.

    The client repeats a call once after a lost connection, but not after a timeout, which would double the caller's
    wait.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://`` and ``redis+socket://``; ``valkey`` in place of ``redis`` alike;
            ``sentinel://host:port;sentinel://host:port/0``, or short ``sentinel://host:port,host:port/0``, with
            ``?service_name=`` (or Celery's ``master_name``); ``redis+cluster://host:port,host:port``, and
            ``rediss+cluster://`` for TLS. Its query may set redis-py's connection options.
        options: further options of redis-py's client. For Sentinel also Celery's transport options ``master_name``,
            ``sentinel_kwargs`` (how to reach the Sentinels) and ``min_other_sentinels``.

    Raises:
        ConfigurationError: the URL names no store.
        StoreUnavailable: no node of a cluster answers; only a cluster's client connects at once.
    """
    where = _read(url, options)
    where.options.setdefault("retry", Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)))
    try:
        if where.kind == "one":
            return Redis.from_url(where.url, **where.options)
        if where.kind == "cluster":
            return RedisCluster(startup_nodes=[ClusterNode(*node) for node in where.nodes], **where.options)
        reach = {"retry": Retry(NoBackoff(), 0), **where.reach}
        return Sentinel(where.nodes, where.min_other_sentinels, sentinel_kwargs=reach, **where.options).master_for(
            where.master
        )
    except (ValueError, TypeError) as error:
        raise _cannot_be(url, error) from None
    except STORE_ERRORS as error:
        told = trouble(error)
        if isinstance(told, StoreUnavailable):
            tls = bool(where.options.get("ssl"))
            mend = mend_by_asking(error, [(*node, tls) for node in where.nodes], SOCKET_TIMEOUT)
            told = told if mend is None else out_of_reach(error, mend)
        raise told from error


def async_client_of(url: str, **options: Any) -> Any:
    """A client of ``redis.asyncio``, as :func:`client_of`. A cluster is asked for its nodes at the first call.

    Callers share ``max_connections=10`` (of a cluster: to each node) and wait for a free one for at most ``timeout=5``
    seconds, long enough for thousands of concurrent calls.
    """
    from redis import asyncio
    from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
    from redis.asyncio.retry import Retry as AsyncRetry
    from redis.asyncio.sentinel import Sentinel as AsyncSentinel
    from redis.asyncio.sentinel import SentinelConnectionPool as AsyncSentinelConnectionPool

    from .async_pool import SharedPool

    class SentinelPool(AsyncSentinelConnectionPool, SharedPool):
        """Sentinel's pool, for whose connections callers wait."""

    where = _read(url, options, _OF_ASYNC)
    where.options.setdefault("retry", AsyncRetry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)))
    try:
        if where.kind == "cluster":
            nodes = [AsyncClusterNode(*node) for node in where.nodes]
            where.options.pop("timeout", None)  # an option of AsyncClusterLink
            return asyncio.RedisCluster(startup_nodes=nodes, **{"max_connections": 10, **where.options})
        # redis-py 5 retries after these errors only.
        shared = {"max_connections": 10, "timeout": 5.0, "retry_on_error": [RedisConnectionError], **where.options}
        if where.kind == "one":
            return asyncio.Redis(connection_pool=SharedPool.from_url(where.url, **shared))
        reach = {"retry": AsyncRetry(NoBackoff(), 0), **where.reach}
        sentinel = AsyncSentinel(where.nodes, where.min_other_sentinels, sentinel_kwargs=reach, **shared)
        return sentinel.master_for(where.master, connection_pool_class=SentinelPool)
    except (ValueError, TypeError) as error:
        raise _cannot_be(url, error) from None


def connection_wait_of(url: str, **options: Any) -> float | None:
    """Seconds that callers wait for a connection, if given: an option that a cluster's client does not have."""
    seconds: float | None = _read(url, options, _OF_ASYNC).options.get("timeout")
    return seconds


def check_url(url: str, **options: Any) -> None:
    """Check that :func:`client_of` accepts ``url``; calls no store.

    Raises:
        ConfigurationError: the URL names no store.
    """
    _read(url, options)


def close_client(client: Any) -> None:
    """Close a client of :func:`client_of`, with its connections to Sentinels."""
    client.close()
    for sentinel in _sentinels_of(client):
        sentinel.close()


async def async_close_client(client: Any) -> None:
    """Close a client of :func:`async_client_of`."""
    pool = getattr(client, "connection_pool", None)  # a cluster's client has none
    await client.aclose(**({} if pool is None else {"close_connection_pool": True}))
    for sentinel in _sentinels_of(client):
        await sentinel.aclose(close_connection_pool=True)


def _sentinels_of(client: Any) -> list[Any]:
    manager = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    return [] if manager is None else list(manager.sentinels)


@dataclass
class _Store:
    """The address and the options of a store; ``reach``: the options of its Sentinels."""

    kind: str
    url: str = field(default="", repr=False)
    nodes: list[tuple[str, int]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    master: str = ""
    min_other_sentinels: int = 0
    reach: dict[str, Any] = field(default_factory=dict, repr=False)


def _read(url: str, options: dict[str, Any], more: Collection[str] = ()) -> _Store:
    check_text(url)
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise not_a_url(url, f"it begins with none of {', '.join(f'{each}://' for each in SCHEMES)}")
    address, mark, query = rest.partition("?")
    for celerys, ours in _CELERYS:
        query = query.replace(celerys, ours)
    rest, options = with_provider(url, f"{address}{mark}{query}", options)
    timeouts = {"socket_timeout": SOCKET_TIMEOUT, "socket_connect_timeout": SOCKET_TIMEOUT}
    if scheme in _ONE:
        written = "unix" if scheme == "redis+socket" else scheme.replace("valkey", "redis")
        check_address(url, rest, unix=written == "unix")
        kind = {"unix": UnixDomainSocketConnection, "rediss": SSLConnection}.get(written, Connection)
        check_options(url, query, options, _known(kind) | set(more), _known(SSLConnection))
        return _Store("one", f"{written}://{rest}", options={**timeouts, **options})
    try:
        nodes, given, query = _several(url, rest, 26379 if scheme in _SENTINEL else 6379)
    except ConfigurationError:
        raise
    except ValueError as error:
        raise _cannot_be(url, error) from None
    tls = scheme in ("rediss+cluster", "valkeys+cluster") or "ssl" in given or "ssl" in options
    known = _known(SSLConnection if tls else Connection) | set(more)
    known |= _parameters(RedisCluster) if scheme in _CLUSTER else _OF_SENTINELS
    check_options(url, query, options, known, _known(SSLConnection))
    given = {**timeouts, **options, **given}
    if scheme in _CLUSTER:
        if given.pop("db", 0):
            raise not_a_url(url, "a cluster has the database 0 and no other")
        if scheme in ("rediss+cluster", "valkeys+cluster"):
            given["ssl"] = True
        return _Store("cluster", nodes=nodes, options=given)
    return _sentinel(url, nodes, given, timeouts)


@cache
def _known(connection: type) -> frozenset[str]:
    """The options of a client with such connections."""
    own = {name for name in _parameters(ConnectionPool, Redis) if not name.startswith("ssl")}
    return _parameters(connection) | own


@cache
def _parameters(*kinds: type) -> frozenset[str]:
    """The parameters of these redis-py classes and of their bases.

    Except ``object``: ``inspect`` parses its signature from a text, which CPython before 3.11.8 may fail to do in
    several threads at once.
    """
    bases = [base for kind in kinds for base in kind.__mro__ if base is not object]
    constructors = [vars(base)["__init__"] for base in bases if "__init__" in vars(base)]
    return frozenset(name for each in constructors for name in signature(each).parameters) - {"self", "kwargs", "args"}


def _sentinel(url: str, nodes: list[tuple[str, int]], given: dict[str, Any], timeouts: dict[str, Any]) -> _Store:
    celerys = given.pop("master_name", None)
    master = given.pop("service_name", None) or celerys
    if not master:
        raise ConfigurationError(
            f"{without_password(url)!r} does not say which master the Sentinels are to be asked for: add "
            "?service_name=…, or Celery's broker_transport_options={'master_name': …}"
        )
    reach = {name: given[name] for name in timeouts}
    for name in ("username", "password"):
        if f"sentinel_{name}" in given:
            reach[name] = given.pop(f"sentinel_{name}")
    reach.update(given.pop("sentinel_kwargs", None) or {})
    others = int(given.pop("min_other_sentinels", 0))
    if "ssl" in given:
        given["ssl"] = str(given["ssl"]).lower() in ("1", "true", "yes")
    return _Store("sentinel", nodes=nodes, options=given, master=master, min_other_sentinels=others, reach=reach)


def _several(url: str, rest: str, port: int) -> tuple[list[tuple[str, int]], dict[str, Any], str]:
    """The addresses of a URL, the options of the first address that has any, and the query."""
    nodes, user, path, query = [], "", "", ""
    for each in rest.split(";"):
        address = re.sub(r"^[\w+]+://", "", each)
        check_address(url, address)
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise ValueError("an address of it cannot be one")
        user = user or (match["user"] and f"{match['user']}@") or ""
        path, query = path or match["path"] or "", query or match["query"] or ""
        for host in match["hosts"].split(","):
            split = urlsplit(f"//{host}")
            nodes.append((split.hostname or "localhost", split.port or port))
    options = dict(parse_url(f"redis://{user}localhost{path.rstrip('/')}?{query}"))
    options.pop("host", None)
    options.pop("connection_class", None)
    return nodes, options, query


def _cannot_be(url: str, error: Exception) -> ConfigurationError:
    """The error for a URL that redis-py rejects. Its text may contain secrets; only an option's name is shown."""
    option = re.match(r"Invalid value for ['`](\w+)['`] in connection URL", str(error))
    if option is not None and option[1] in _known(SSLConnection):
        return not_a_url(url, f"{option[1]} cannot have that value")
    return not_a_url(url, "its host, its port or an option cannot be one")
