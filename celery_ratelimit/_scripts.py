"""The Lua scripts: read from ``lua/``, put together, and run with one round trip.

A line ``--!include name.lua`` in a script stands for ``lua/include/name.lua``, once; ``--!algorithms`` for the
algorithms that the request names.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from redis import ConnectionPool, Redis
from redis.cluster import RedisCluster
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    SlotNotCoveredError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import SentinelConnectionPool

from .deadline import with_deadline
from .masters import Master

__all__ = ["ClusterLink", "Link", "Script", "SentinelLink", "bulk", "link_to", "load_source", "slot_of"]

_INCLUDE = re.compile(r"^--!include (\w+)\.lua\n", re.MULTILINE)
_ALGORITHMS = "--!algorithms\n"
_METHOD = re.compile("[a-z_]+")
#: Tried, to find keys on each node of a cluster.
_MOST_NAMES = 10_000
#: A master whose replicas are gone, perhaps since one of them is the master now (Redis 6.2 wraps it).
_NOREPLICAS = re.compile(r"^NOREPLICAS |: -NOREPLICAS ")


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
    """Values as they go over the wire: RESP bulk strings, one after the other.

    Users' text may hold half of a surrogate pair, which JSON allows and UTF-8 does not: it is written all the same.
    """
    encoded = [str(value).encode(errors="surrogatepass") for value in values]
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
            try:
                if link.takes_bytes:
                    return link.exchange(_command(variant, keys, values, pieces))
                return link.execute("EVALSHA", variant.digest, keys, *unbulk(b"".join(pieces)))
            except NoScriptError:
                return link.evaluate(variant.source, keys, values, pieces)
        except ResponseError as error:
            self._add_algorithm(methods, variant, error)
            return self(link, methods, keys, values, pieces)

    def command(self, methods: Hashable, keys: int, values: int, pieces: Sequence[bytes]) -> bytes:
        """A call in its wire form, for a store that knows the script."""
        return _command(self._variants.get(methods) or self._make(methods), keys, values, pieces)

    async def awaited(
        self,
        execute: Callable[..., Awaitable[Any]],
        methods: Hashable,
        keys: int,
        values: int,
        pieces: Sequence[bytes],
    ) -> Any:
        """The same on a store that is awaited: ``execute`` sends a command and returns the reply."""
        variant = self._variants.get(methods) or self._make(methods)
        arguments = unbulk(b"".join(pieces))
        try:
            try:
                return await execute("EVALSHA", variant.digest, keys, *arguments)
            except NoScriptError:
                return await execute("EVAL", variant.source, keys, *arguments)
        except ResponseError as error:
            self._add_algorithm(methods, variant, error)
            return await self.awaited(execute, methods, keys, values, pieces)

    def _add_algorithm(self, methods: Any, asked: _Variant, error: ResponseError) -> None:
        """What is stored for a limit has an algorithm that the request does not name: from now on it is put in.

        Others may ask at the same time and put it in first, so what counts is what was asked, not what is there now.

        Args:
            methods: the algorithms that the request names.
            asked: what was run for them.
            error: what it said.

        Raises:
            ResponseError: that was not what the script said.
        """
        verb, _, method = str(error).partition(" ")
        if verb != "LOAD" or method in asked.methods or not _METHOD.fullmatch(method):
            raise error
        held = self._variants[methods].methods
        if method in held:
            return
        try:
            self._make(methods, {*held, method})
        except FileNotFoundError:
            raise ResponseError(
                f"a limit is stored with the algorithm {method!r}, which this version of celery_ratelimit does not have"
            ) from None

    def _make(self, methods: Any, held: Iterable[str] | None = None) -> _Variant:
        if held is None:
            held = [methods] if isinstance(methods, str) else methods
        source = load_source(self.name, held, self._replace)
        digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        variant = self._variants[methods] = _Variant(source, digest, bulk("EVALSHA", digest), frozenset(held))
        return variant


class _Variant(NamedTuple):
    source: str
    digest: str
    head: bytes
    methods: frozenset[str]


def _command(variant: _Variant, keys: int, values: int, pieces: Sequence[bytes]) -> bytes:
    return b"*%d\r\n%b%b" % (3 + values, variant.head, _number(keys)) + b"".join(pieces)


@cache
def _number(keys: int) -> bytes:
    """How many keys a call has, made once for each number: there are few."""
    return bulk(keys)


class Link:
    """A connection to the store for each who asks at the same time, made anew after a fork.

    ``Redis.execute_command`` takes a connection from its pool and gives it back at every call, which is a
    third of the cost of asking for a permit (``benchmarks/``, scenario ``acquire``). A stack of idle ones saves that.
    One for each thread would, too, but under gevent each timer is a greenlet, which is a thread for the ``threading``
    module: it would connect whenever it asks. Each call has a deadline. Clients with a pool of another kind are used as
    they are.
    """

    #: Whether another server is being made the master, so that what is written now may be lost.
    is_moving = False

    def __init__(self, client: Redis) -> None:
        self._client = client
        pool = getattr(client, "connection_pool", None)
        self._pool: ConnectionPool | None = pool if type(pool) in (ConnectionPool, SentinelConnectionPool) else None
        self._idle: list[Any] = []
        self._pid = 0

    @property
    def takes_bytes(self) -> bool:
        """Whether :meth:`exchange` can be used."""
        return self._pool is not None

    def exchange(self, command: bytes) -> Any:
        """Send a command in its wire form and return the reply.

        A connection that the store has closed (a restart), or that leads to what has become a replica or has none any
        more (a failover), is replaced once. A timeout is final: asking again would keep the caller for twice as long.
        """
        try:
            return self._exchange(command)
        except (RedisConnectionError, ReadOnlyError):
            return self._exchange(command)
        except ResponseError as error:
            if not _NOREPLICAS.search(str(error)):
                raise
            return self._exchange(command)

    def evaluate(self, source: str, keys: int, values: int, pieces: Sequence[bytes]) -> Any:
        """Run a script that the store does not know, see :class:`Script`."""
        if not self.takes_bytes:
            return self.execute("EVAL", source, keys, *unbulk(b"".join(pieces)))
        return self.exchange(b"*%d\r\n%b" % (3 + values, bulk("EVAL", source, keys)) + b"".join(pieces))

    def call(self, *command: str | int) -> Any:
        """Send a command on the way on which scripts are sent."""
        if not self.takes_bytes:
            return self.execute(*command)
        return self.exchange(b"*%d\r\n%b" % (len(command), bulk(*command)))

    def execute(self, *command: Any) -> Any:
        """Send a command through the client."""
        return self._client.execute_command(*command)

    def close(self) -> None:
        """Close the idle connections. Whoever asks afterwards makes new ones."""
        if self._pid == os.getpid():  # after a fork they are the parent's
            while self._idle:
                self._idle.pop().disconnect()

    def _exchange(self, command: bytes) -> Any:
        connection = self._take()
        try:
            connection.begin()
            connection.send_packed_command([command], check_health=False)
            reply = connection.read_response()
        except ResponseError as error:
            if isinstance(error, ReadOnlyError) or ": -READONLY " in str(error):  # as Redis 6.2 wraps it
                self._drop(connection)
                raise ReadOnlyError(str(error)) from None
            if _NOREPLICAS.search(str(error)):
                self._drop(connection)
                raise
            self._idle.append(connection)  # the reply, read to its end: the connection is in order
            raise
        except BaseException:
            # Lost, timed out, interrupted: whatever reply may still come must not be read as another's.
            self._drop(connection)
            raise
        self._idle.append(connection)
        return reply

    def _take(self) -> Any:
        if self._pid != os.getpid():
            self._idle, self._pid = [], os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            assert self._pool is not None
            connection = with_deadline(self._pool.connection_class)(**self._pool.connection_kwargs)
            self._connect(connection)
            return connection

    def _connect(self, connection: Any) -> None:
        connection.connect()

    def _drop(self, connection: Any) -> None:
        """The idle ones, too: they lead to where this one led."""
        connection.disconnect()
        with suppress(IndexError):  # others take some meanwhile
            while True:
                self._idle.pop().disconnect()


class SentinelLink(Link):
    """The same for a master that is known to Sentinels: no connection is used that leads elsewhere."""

    def __init__(self, client: Redis) -> None:
        super().__init__(client)
        self._master = Master(self._pool)

    @property
    def is_moving(self) -> bool:  # type: ignore[override]
        return self._master.is_moving

    def close(self) -> None:
        super().close()
        self._master.watch_no_more()
        self._pid = 0

    def _take(self) -> Any:
        master = self._master
        if self._pid != os.getpid():
            master.watch()
        master.uses += 1
        while True:
            connection = super()._take()
            address = master.address
            if address is None or (connection.host, connection.port) == address:
                return connection
            self._drop(connection)

    def _connect(self, connection: Any) -> None:
        address = self._master.address
        if address is None:
            connection.connect()  # which asks the Sentinels, one after the other
        else:
            connection.connect_to(address)


class ClusterLink(Link):
    """The same for a cluster: a connection for each thread and node.

    Whatever is out of the ordinary (a slot has moved or is moving, a node is gone) is left to the client, which looks
    at the cluster anew.
    """

    def __init__(self, client: RedisCluster) -> None:
        super().__init__(client)
        self._nodes: dict[str, Link] = {}

    @property
    def takes_bytes(self) -> bool:
        return True

    def exchange(self, command: bytes) -> Any:
        """As :meth:`Link.exchange`, on the node that has the first key of ``command``, which has a hash tag."""
        try:
            return self._link_for(command)._exchange(command)
        except (RedisConnectionError, ReadOnlyError, AskError, TryAgainError, ClusterDownError, SlotNotCoveredError):
            name, *values = unbulk(command[command.index(b"\n") + 1 :])
            return self._client.execute_command(name.decode(), *values)
        except RedisTimeoutError:
            self._look_anew()
            raise

    def evaluate(self, source: str, keys: int, values: int, pieces: Sequence[bytes]) -> Any:
        return self.execute(
            "EVAL", source, keys, *unbulk(b"".join(pieces))
        )  # the source may have what looks like a tag

    def exchange_all(self, commands: Sequence[bytes]) -> list[Any]:
        """Send commands to their nodes at once, and return the replies; an error in the place of one that got none.

        None is sent a second time.
        """
        taken: dict[Link, Any] = {}
        sent: list[Link | None] = []
        results: list[Any] = []
        try:
            for command in commands:
                link = None
                try:
                    link = self._link_for(command)
                    if link not in taken:
                        taken[link] = link._take()
                        taken[link].begin()
                    taken[link].send_packed_command([command], check_health=False)
                    results.append(None)
                except (RedisError, RedisClusterException) as error:
                    link = None
                    results.append(error)
                sent.append(link)
            for i, link in enumerate(sent):
                if link is None:
                    continue
                try:
                    results[i] = taken[link].read_response()
                except ResponseError as error:
                    results[i] = error
                except RedisError as error:
                    link._drop(taken.pop(link))
                    for later in range(i, len(sent)):
                        if sent[later] is link:  # its reply would have come on the same connection
                            sent[later], results[later] = None, error
        except BaseException:
            # Interrupted: whatever reply may still come must not be read as another's.
            for link, connection in taken.items():
                link._drop(connection)
            raise
        for link, connection in taken.items():
            link._idle.append(connection)
        if any(isinstance(result, RedisTimeoutError) for result in results):
            self._look_anew()
        return results

    def name_for_each_node(self, stem: str) -> list[str]:
        """Names that begin with ``stem``, whose keys are on one node each, one name for each node that has any keys."""
        nodes = self._client.nodes_manager
        wanted = {node.name for node, *_ in nodes.slots_cache.values()}
        names: dict[str, str] = {}
        for number in range(_MOST_NAMES):
            if len(names) == len(wanted):
                break
            name = f"{stem}{number}"
            names.setdefault(nodes.get_node_from_slot(slot_of(name)).name, name)
        return list(names.values())

    def close(self) -> None:
        for link in list(self._nodes.values()):
            link.close()

    def _look_anew(self) -> None:
        """A node hangs. Another may have taken its place meanwhile: who asks next shall know."""
        with suppress(RedisError, RedisClusterException):
            self._client.nodes_manager.initialize()

    def _link_for(self, command: bytes) -> Link:
        """The way to the node that has the first key of a command, which has a hash tag."""
        tag = command.index(b"{") + 1
        node = self._client.nodes_manager.get_node_from_slot(key_slot(command[tag : command.index(b"}", tag)]))
        return self._nodes.get(node.name) or self._link_to(node)

    def _link_to(self, node: Any) -> Link:
        link = self._nodes[node.name] = Link(node.redis_connection or self._client.get_redis_connection(node))
        return link


def link_to(client: Any) -> Link:
    """The way to the store that fits a client."""
    if isinstance(client, RedisCluster):
        return ClusterLink(client)
    pool: Any = getattr(client, "connection_pool", None)
    return SentinelLink(client) if type(pool) is SentinelConnectionPool and pool.is_master else Link(client)


def slot_of(tag: str) -> int:
    """The slot of a cluster that keys with this hash tag are in."""
    slot: int = key_slot(tag.encode())
    return slot
