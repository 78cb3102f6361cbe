"""Diagnoses connection errors that no waiting mends: TLS, certificates, and servers that are no Sentinel.

It reads the texts of redis-py's errors, the only source, and removes the secrets of a URL from them.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator, Sequence
from typing import Any

from redis.exceptions import RedisClusterException, RedisError

__all__ = ["addresses_of", "clean", "mend_by_asking", "mend_of"]

#: Texts of redis-py's errors, and what to do about each.
_MENDS = [
    (
        r"(?i)hostname mismatch|IP address mismatch|certificate is not valid for",
        "its certificate is for another host: connect to it by the name that the certificate has",
    ),
    (r"certificate has expired|certificate is not yet valid", "its certificate is out of date: renew it there"),
    (
        r"CERTIFICATE_VERIFY_FAILED",
        "its certificate is not signed by a CA that is known here: name the CA's, ?ssl_ca_certs=/path/of/ca.pem, "
        "or ssl_ca_certs in broker_use_ssl",
    ),
    (
        r"Error 2 connecting to (?!/|the socket)",
        "a file that the URL names does not exist here: look at ssl_ca_certs, ssl_certfile and ssl_keyfile",
    ),
    (
        r"NO_CERTIFICATE_OR_CRL_FOUND|\bPEM\b|\bX509:|KEY_VALUES_MISMATCH",
        "a file that the URL names is no certificate, or not the one of that key: look at ssl_ca_certs, ssl_certfile "
        "and ssl_keyfile",
    ),
    (
        r"ALERT_CERTIFICATE_REQUIRED",
        "it asks for a certificate of its clients: ?ssl_certfile=/path/of/client.pem&ssl_keyfile=/path/of/client.key",
    ),
    (
        r"ALERT_(?:UNKNOWN_CA|BAD_CERTIFICATE|CERTIFICATE_\w+|UNSUPPORTED_CERTIFICATE|ACCESS_DENIED)",
        "it does not accept the certificate of this client: have ssl_certfile signed by a CA that is known there",
    ),
    (
        r"ALERT_HANDSHAKE_FAILURE|ALERT_PROTOCOL_VERSION|UNSUPPORTED_PROTOCOL|NO_SHARED_CIPHER",
        "it agrees to no version or cipher of TLS that is allowed here, or asks for a certificate of its clients",
    ),
    (
        r"WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|HTTP_REQUEST",
        "it does not speak TLS: begin the URL with redis:// (redis+cluster:// for a cluster)",
    ),
    (
        r"(?i)unknown command [`'\"]?sentinel",
        "it is a server and no Sentinel: name the Sentinels (their port is 26379 by default), or begin the URL with "
        "redis://",
    ),
    (r"Invalid SSL Certificate Requirements", "ssl_cert_reqs is one of required, optional and none"),
]
_PLAIN = "it does not speak TLS: begin the URL with redis:// (redis+cluster:// for a cluster)"
_CERTIFICATE = (
    "it asks for a certificate of its clients that is signed by a CA known there: ?ssl_certfile=/path/of/client.pem&"
    "ssl_keyfile=/path/of/client.key"
)
_TLS = "it speaks TLS: begin the URL with rediss:// (rediss+cluster:// for a cluster)"

#: No server listens at the address.
_NOT_THERE = re.compile(r"refused|not known|resolution|unreachable|No route")

#: Paths of sockets, names of users, and clients' representations.
_SECRETS = [
    (re.compile(r"((?:connecting to|reading from) )(?:unix socket: )?/.*?(?= : |\. [A-Z][^.]*\.$|$)"), r"\1the socket"),
    (re.compile(r"\bUser \S+ (?=has no permissions)"), "its user "),
    (re.compile(r" : <redis\..*", re.DOTALL), ""),
    (re.compile(r"(Requirements Flag: ).*", re.DOTALL), r"\1…"),
]


def clean(error: BaseException) -> None:
    """Remove the secrets of a URL from an error and its causes."""
    for each in _chain(error):
        if each.args and isinstance(each.args[0], str):
            text = each.args[0]
            for pattern, instead in _SECRETS:
                text = pattern.sub(instead, text)
            if text != each.args[0]:
                each.args = (text, *each.args[1:])


def mend_of(error: BaseException) -> str | None:
    """What to do about an error; ``None``: it may be over in a moment, or is unknown."""
    for each in _chain(error):
        for pattern, mend in _MENDS:
            if re.search(pattern, str(each)):
                return mend
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The client's errors that led to one. (Errors beyond them may be the caller's.)"""
    for _ in range(10):
        if error is None:
            return
        if isinstance(error, (RedisError, RedisClusterException)):
            yield error
        error = error.__cause__ or error.__context__


def mend_by_asking(error: BaseException, addresses: Sequence[tuple[str, int, bool]], timeout: float) -> str | None:
    """What to do about a server that does not answer, or hangs up, because TLS is missing or not supported.

    Such servers return no error, so this function tries the other way, with TLS or without.

    Args:
        error: of the first try.
        addresses: hosts, ports, and whether TLS is used; the first address is tried.
        timeout: seconds for each step.
    """
    if not addresses or _NOT_THERE.search(str(error)):
        return None
    host, port, tls = addresses[0]
    if not tls and "Timeout" in str(error):  # it would have hung up
        return None
    try:
        with socket.create_connection((host, port), timeout) as connection:
            if tls and "Timeout" in str(error):
                connection.sendall(b"PING\r\n")
                return _PLAIN if connection.recv(1) in (b"+", b"-") else None
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with context.wrap_socket(connection, server_hostname=host) as wrapped:
                if tls:
                    wrapped.recv(1)  # reads why it hangs up, before a write loses that
            return None if tls else _TLS
    except ssl.SSLError as refused:
        alert = "ALERT" in str(refused.reason)
        return (_CERTIFICATE if tls else _TLS) if alert else None
    except OSError:
        return None


def addresses_of(client: Any) -> list[tuple[str, int, bool]]:
    """The addresses of a client, and whether it uses TLS; none if the client does not choose them itself."""
    nodes = getattr(client, "nodes_manager", None)
    if nodes is not None:
        startup = nodes.startup_nodes.values()
        options = getattr(nodes, "connection_kwargs", None) or getattr(client, "connection_kwargs", {})
        return [(str(node.host), int(node.port), _is_tls(options)) for node in startup]
    pool = getattr(client, "connection_pool", None)
    options = getattr(pool, "connection_kwargs", {})
    if pool is None or "host" not in options or hasattr(pool, "sentinel_manager"):
        return []
    return [(str(options["host"]), int(options.get("port", 6379)), _is_tls(options, pool.connection_class))]


def _is_tls(options: Any, kind: type | None = None) -> bool:
    kind = kind or options.get("connection_class")
    return bool(options.get("ssl")) or (kind is not None and "SSL" in kind.__name__)
