"""The Lua scripts: read from ``lua/``, put together, and run with one round trip.

A line ``--!include name.lua`` in a script stands for ``lua/include/name.lua``, once; ``--!algorithms`` for the
algorithms that the request names.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from redis import ConnectionPool, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError

__all__ = ["Link", "Script", "bulk", "load_source"]

_INCLUDE = re.compile(r"^--!include (\w+)\.lua\n", re.MULTILINE)
_ALGORITHMS = "--!algorithms\n"


@cache
def _read(path: str) -> str:
    return files("celery_ratelimit.lua").joinpath(path).read_text(encoding="utf-8")


def load_source(name: str, methods: Iterable[str], replace: Mapping[str, str] | None = None) -> str:
    """The source of ``lua/<name>.lua`` with its includes.

    Args:
        name: the script's name, which is its verb.
        methods: the algorithms to put in, by the names of their files.
        replace: includes to put another text in place of (``{"now": …}`` is how tests freeze the clock).
    """
    replace = replace or {}
    included = set()

    def include(match: re.Match[str]) -> str:
        file = match[1]
        if file in included:
            return ""
        included.add(file)
        return expand(replace.get(file) or _read(f"include/{file}.lua"))

    def expand(text: str) -> str:
        named = "".join(f"--!include {method}.lua\n" for method in sorted(methods))
        return _INCLUDE.sub(include, text.replace(_ALGORITHMS, named))

    return expand(_read(f"{name}.lua"))


def bulk(*values: str | int) -> bytes:
    """Values as they go over the wire: RESP bulk strings, one after the other."""
    encoded = [str(value).encode() for value in values]
    return b"".join([b"$%d\r\n%b\r\n" % (len(data), data) for data in encoded])


def unbulk(data: bytes) -> list[bytes]:
    """The values that :func:`bulk` was given."""
    values, at = [], 0
    while at < len(data):
        start = data.index(b"\r\n", at) + 2
        end = start + int(data[at + 1 : start - 2])
        values.append(data[start:end])
        at = end + 2
    return values


class Script:
    """One script, called by its digest; a store that does not know it (new, flushed, failed over) is sent it.

    It is put together for the algorithms that a request names, once for each set of them.
    """

    def __init__(self, name: str, replace: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._replace = replace
        self._variants: dict[Hashable, _Variant] = {}

    def __call__(self, link: Link, methods: Hashable, keys: int, values: int, pieces: Sequence[bytes]) -> Any:
        """Run it.

        Args:
            link: the way to the store.
            methods: the algorithms that are asked for: the name of one, or a frozenset of several.
            keys: how many of the values are keys; they come first.
            values: how many keys and arguments there are.
            pieces: the values, each piece any number of them, made by :func:`bulk`. Most of a request never
                changes, so that a call only puts pieces together.
        """
        variant = self._variants.get(methods) or self._make(methods)
        try:
            if link.takes_bytes:
                head = b"*%d\r\n%b%b" % (3 + values, variant.head, bulk(keys))
                return link.exchange(head + b"".join(pieces))
            return link.execute("EVALSHA", variant.digest, keys, *unbulk(b"".join(pieces)))
        except NoScriptError:
            return link.execute("EVAL", variant.source, keys, *unbulk(b"".join(pieces)))

    def _make(self, methods: Any) -> _Variant:
        source = load_source(self.name, [methods] if isinstance(methods, str) else methods, self._replace)
        digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        variant = self._variants[methods] = _Variant(source, digest, bulk("EVALSHA", digest))
        return variant


class _Variant(NamedTuple):
    source: str
    digest: str
    head: bytes


class Link:
    """A connection to the store for each thread that asks, made anew after a fork.

    ``Redis.execute_command`` takes a connection from its pool and gives it back at every call, which is a
    third of the cost of asking for a permit (``benchmarks/``, scenario ``acquire``). A connection that stays
    with its thread saves that. Clients with a pool of another kind (Sentinel, cluster) are used as they are.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client
        pool = getattr(client, "connection_pool", None)
        self._pool: ConnectionPool | None = pool if type(pool) is ConnectionPool else None
        self._local = threading.local()

    @property
    def takes_bytes(self) -> bool:
        """Whether :meth:`exchange` can be used."""
        return self._pool is not None

    def exchange(self, command: bytes) -> Any:
        """Send a command in its wire form and return the reply.

        A connection that the store has closed (a restart) is replaced once. A timeout is final: asking again
        would keep the caller for twice as long.
        """
        try:
            return self._exchange(command)
        except RedisConnectionError:
            return self._exchange(command)

    def execute(self, *command: Any) -> Any:
        """Send a command through the client."""
        return self._client.execute_command(*command)

    def _exchange(self, command: bytes) -> Any:
        connection = self._connection()
        try:
            connection.send_packed_command([command], check_health=False)
            return connection.read_response()
        except ResponseError:
            raise  # the reply, read to its end: the connection is in order
        except BaseException:
            # Lost, timed out, interrupted: whatever reply may still come must not be read as another's.
            self._drop()
            raise

    def _connection(self) -> Any:
        local = self._local
        if getattr(local, "pid", None) != os.getpid():
            assert self._pool is not None
            local.connection = self._pool.connection_class(**self._pool.connection_kwargs)
            local.pid = os.getpid()
        return local.connection

    def _drop(self) -> None:
        self._local.connection.disconnect()
        self._local.pid = None
