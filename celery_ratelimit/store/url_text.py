"""A store's URL as text: the parts that may be shown, and errors in its spelling.

User, password, path and query are secret. A password may contain a character that ends its part of the URL, so that
parts are mistaken for each other: only parts that are recognized for certain are shown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import parse_qs

from redis.connection import URL_QUERY_ARGUMENT_PARSERS

from ..errors import ConfigurationError
from ..name_suggestions import near

__all__ = ["ENCODE", "check_address", "check_options", "check_text", "not_a_url", "read_option", "without_password"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}")
_HOST = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")

#: A path that is the number of a database, and nothing else.
_DATABASE = re.compile(r"/\d{1,2}(?=\?|$)")

#: What options that redis-py does not check must be; None is its own default.
_VALUES = {
    **dict.fromkeys(("socket_timeout", "socket_connect_timeout", "timeout"), "a number of seconds above 0"),
    "health_check_interval": "a number of seconds",
    "retry": "a redis.retry.Retry, as in Retry(NoBackoff(), 1)",
    "retry_on_error": "a list of exceptions",
    "socket_keepalive_options": "a mapping",
}

ENCODE = "in user and password, write '/' as %2F, '?' as %3F, '#' as %23, '@' as %40, ':' as %3A and ';' as %3B"


def without_password(url: Any) -> str:
    """A URL as it may be shown: its scheme, and its hosts and database if they are recognized for certain."""
    scheme, separator, rest = str(url).strip("'\"").partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        return "…"
    return f"{scheme}://{_hosts(rest) if rest else ''}"


def _hosts(rest: str) -> str:
    shown = []
    for i, part in enumerate(rest.split(";")):
        scheme, separator, address = part.partition("://")
        if i and not (separator and _SCHEME.fullmatch(scheme)):
            return "…"
        authority, tail = _split(address if i and separator else part)
        _, at, hosts = authority.rpartition("@")
        if "@" in tail or "#" in part or not all(_HOST.fullmatch(host) for host in hosts.split(",")):
            return "…"
        database = _DATABASE.match(tail)
        shown.append(f"{'**@' if at else ''}{hosts}{database[0] if database else ''}")
    if len(shown) > 1 and any(each.startswith("**@") for each in shown) and not shown[0].startswith("**@"):
        return "…"
    return ";".join(shown)


def _split(address: str) -> tuple[str, str]:
    """Split an address before its path and query."""
    end = min([at for at in (address.find("/"), address.find("?")) if at >= 0], default=len(address))
    return address[:end], address[end:]


def not_a_url(url: Any, why: str) -> ConfigurationError:
    """The error for an unreadable URL. ``why`` never contains a part of it."""
    return ConfigurationError(f"{without_password(url)!r} is not the URL of a Redis or Valkey store: {why}")


def check_text(url: Any) -> None:
    """Raise :class:`ConfigurationError` unless the URL is a text."""
    if not isinstance(url, str):
        raise ConfigurationError(f"a store's URL is a text such as 'redis://host:6379/0', not a {type(url).__name__}")


def check_address(url: str, address: str, *, unix: bool = False) -> None:
    """Check that each part of one address of a URL is what it seems to be.

    Args:
        url: the whole URL.
        address: the text after the scheme.
        unix: the path is a socket's, and there is no host.

    Raises:
        ConfigurationError: a part is not, for example because a password contains a character that must be encoded.
    """
    authority, tail = _split(address)
    path, _, query = tail.partition("?")
    hosts = authority.rpartition("@")[2]
    if "#" in address:
        raise not_a_url(url, f"there is a '#' in it: {ENCODE}")
    if not unix and ("@" in path or ("@" in query and not re.fullmatch(r"/\d*", path))):
        raise not_a_url(url, f"there is an '@' behind its first '/' or '?': {ENCODE}")
    if unix and hosts:
        raise not_a_url(url, f"it has to be unix:///path/of/the.socket; {ENCODE}")
    for host in [] if unix else hosts.split(","):
        port = host.rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""
        if (host and not (_HOST.fullmatch(host) or re.fullmatch(r":\d{1,5}", host))) or (port and int(port) > 65535):
            raise not_a_url(url, f"its host or port cannot be one; {ENCODE}")


def read_option(name: str, value: Any) -> Any:
    """An option's value: numbers may be texts, as in a URL, and ``ssl.CERT_REQUIRED`` is ``"required"``.

    Raises:
        ConfigurationError: a text is no such number.
    """
    text = getattr(value, "name", value)
    if isinstance(text, str) and text.startswith("CERT_"):
        return text.removeprefix("CERT_").lower()
    if not isinstance(value, str) or name not in URL_QUERY_ARGUMENT_PARSERS:
        return value
    try:
        return URL_QUERY_ARGUMENT_PARSERS[name](value)
    except ValueError as error:
        raise ConfigurationError(f"the store's option {name}={value!r} cannot be: {error}") from None


def _may_be(value: Any, text: str) -> bool:
    """Whether the value of an option is what a text of :data:`_VALUES` says."""
    if text.startswith("a number"):
        try:
            return 0 <= float(value) < 1e9 and (float(value) > 0 or "above" not in text)
        except (TypeError, ValueError):
            return False
    if text.startswith("a redis"):
        return hasattr(value, "call_with_retry")
    return isinstance(value, Mapping if text == "a mapping" else (list, tuple))


def check_options(
    url: str, query: str, options: Mapping[str, Any], known: Collection[str], tls: Collection[str]
) -> None:
    """Check the names of options, and values that would fail at each call.

    Args:
        url: the whole URL.
        query: of the URL.
        options: passed beside the URL.
        known: all options.
        tls: options that need TLS.

    Raises:
        ConfigurationError: an unknown option, with similar names; or what a value must be.
    """
    values = parse_qs(query, keep_blank_values=True)
    written = list(values)
    for name in [*written, *options]:
        if name in known:
            value = options[name] if name in options else values[name][0]
            if value is not None and name in _VALUES and not _may_be(value, _VALUES[name]):
                raise ConfigurationError(f"{without_password(url)!r}: {name} must be {_VALUES[name]}")
            continue
        if name in tls:
            raise ConfigurationError(
                f"{without_password(url)!r}: {name} is for TLS: begin the URL with rediss:// (rediss+cluster:// for a "
                "cluster; ssl=true in the query for Sentinel)"
            )
        close = near(name, known)
        unclear = len(written) > 1 or "@" in query or not re.fullmatch("[a-z_]{1,40}", name)
        if name in written and unclear and not close:  # it may be the end of a password that contains '&'
            raise ConfigurationError(
                f"{without_password(url)!r}: its query has an option that there is not. In a password, write '&' as %26"
            )
        raise ConfigurationError(
            f"{without_password(url)!r}: there is no option {name!r}; {close or 'there are those of redis-py'}"
        )
