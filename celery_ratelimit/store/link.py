"""Connections to the store that are kept between calls, and replaced once after an error."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis import ConnectionPool, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError, ResponseError
from redis.sentinel import SentinelConnectionPool

from .connection_deadline import with_deadline
from .masters import Master
from .resp import bulk, unbulk

__all__ = ["Link", "SentinelLink"]

#: A master without replicas, perhaps because one of them is the master now (Redis 6.2 wraps the error).
_NOREPLICAS = re.compile(r"^NOREPLICAS |: -NOREPLICAS ")


class Link:
    """A connection to the store for each concurrent call; a fork opens its own.

    ``Redis.execute_command`` takes a connection from its pool and returns it at every call, which is a third of the
    cost of ``acquire`` (``benchmarks/``, scenario ``acquire``). A stack of idle connections avoids that. One connection
    for each thread would, too; but under gevent each timer is a greenlet, which counts as a thread, and would connect
    at each call. Each call has a deadline. Clients with another kind of pool are used through their own methods.
    """

    #: Whether another server is becoming the master, so that a write may be lost.
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
        """Send a command in wire form and return the reply.

        A connection is replaced once if the store has closed it (a restart), or if its server has become a replica or
        has lost its replicas (a failover). A timeout is final: a second try would double the caller's wait.
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
        """Send a command on the connections of scripts."""
        if not self.takes_bytes:
            return self.execute(*command)
        return self.exchange(b"*%d\r\n%b" % (len(command), bulk(*command)))

    def execute(self, *command: Any) -> Any:
        """Send a command through the client."""
        return self._client.execute_command(*command)

    def close(self) -> None:
        """Close the idle connections. A later call makes new ones."""
        if self._pid == os.getpid():  # after a fork they are the parent's
            while self._idle:
                self._idle.pop().disconnect()

    def exchange_all(self, commands: Sequence[bytes]) -> list[Any]:
        """Send commands at once and return the replies; the reply of a failed command is its error.

        No command is sent twice.
        """
        try:
            connection = self._send(b"".join(commands))
        except RedisError as error:
            return [error] * len(commands)
        return self._receive(connection, len(commands))

    def _exchange(self, command: bytes) -> Any:
        connection = self._send(command)
        try:
            reply = connection.read_response()
        except ResponseError as error:  # read to its end
            told = _told(error)
            if _leads_elsewhere(told):
                self._drop(connection)
            else:
                self._idle.append(connection)
            raise told from None
        except BaseException:  # lost, timed out or interrupted: its reply must not be read as another command's
            self._drop(connection)
            raise
        self._idle.append(connection)
        return reply

    def _send(self, commands: bytes) -> Any:
        """Send commands; returns the connection on which :meth:`_receive` reads all their replies."""
        connection = self._take()
        try:
            connection.begin()
            connection.send_packed_command([commands], check_health=False)
        except BaseException:
            self._drop(connection)
            raise
        return connection

    def _receive(self, connection: Any, number: int) -> list[Any]:
        """Read ``number`` replies; an error reply, or a missing one, is returned as an error."""
        replies: list[Any] = []
        try:
            while len(replies) < number:
                if replies:
                    connection.begin()  # each reply has a deadline of its own
                replies.append(_reply_on(connection))
        except RedisError as error:
            # Lost or timed out: a late reply must not be read as another command's.
            self._drop(connection)
            return [*replies, *[error] * (number - len(replies))]
        except BaseException:  # interrupted
            self._drop(connection)
            raise
        if any(map(_leads_elsewhere, replies)):
            self._drop(connection)
        else:
            self._idle.append(connection)
        return replies

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
        """Close a connection, and the idle ones, which lead to the same server."""
        connection.disconnect()
        with suppress(IndexError):  # other threads take some meanwhile
            while True:
                self._idle.pop().disconnect()


def _reply_on(connection: Any) -> Any:
    """Read one reply to its end; an error reply is returned as an error."""
    try:
        return connection.read_response()
    except ResponseError as error:
        return _told(error)


def _told(error: ResponseError) -> ResponseError:
    return ReadOnlyError(str(error)) if ": -READONLY " in str(error) else error  # as Redis 6.2 wraps it


def _leads_elsewhere(reply: Any) -> bool:
    """Whether a reply comes from a server that is not, or no longer, the master."""
    return isinstance(reply, ResponseError) and (
        isinstance(reply, ReadOnlyError) or bool(_NOREPLICAS.search(str(reply)))
    )


class SentinelLink(Link):
    """A link to the master that Sentinels name: connections to other servers are not used."""

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
