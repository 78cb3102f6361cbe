"""Connections for asyncio to a server, or to the nodes of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from inspect import Parameter, signature
from typing import Any

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    SlotNotCoveredError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .async_pool import SharedPool
from .resp import bulk, unbulk

__all__ = ["AsyncClusterLink", "AsyncLink"]

#: redis-py before 5.3 requires the name of a command, and ignores it; later versions take none.
_WANTS_NAME = signature(ConnectionPool.get_connection).parameters["command_name"].default is Parameter.empty
_FOR = ("_",) if _WANTS_NAME else ()

#: Errors of a look for the nodes.
_FAILED = (RedisError, RedisClusterException, OSError)

#: Errors after which another node may have the hash slot.
_ELSEWHERE = (RedisConnectionError, ReadOnlyError, MovedError, ClusterDownError, SlotNotCoveredError)


class AsyncLink:
    """Sends commands in wire form, on connections from the client's pool.

    ``Redis.execute_command`` would pack each command again, and measure each call. The pool's bookkeeping takes a
    quarter of a call, so the link has a connection of its own beside the pool; concurrent calls use the pool. A store
    in memory and a client with a single connection are used through their own methods.

    Attributes:
        takes_bytes: whether :meth:`exchange` sends a command as it is.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client
        self.takes_bytes: bool = not hasattr(client, "clock") and not getattr(client, "single_connection_client", False)
        self._own: Any = None
        # Sentinel's pool closes its connections when the master changes.
        self._own_is_free = self.takes_bytes and not isinstance(client.connection_pool, SentinelConnectionPool)

    async def exchange(self, command: bytes) -> Any:
        """Send a command and return the reply; tried again as the client's ``Retry`` says."""
        if not self.takes_bytes:
            return await self._client.execute_command(*_values(command))
        pool = self._client.connection_pool
        if self._own_is_free:
            self._own_is_free = False
            try:
                if self._own is None:
                    self._own = pool.make_connection()
                return await _exchange(self._own, command)
            finally:
                self._own_is_free = True
        connection = await pool.get_connection(*_FOR)
        try:
            return await _exchange(connection, command)
        finally:
            await pool.release(connection)

    async def aclose(self) -> None:
        """Close the link's own connection. A later call opens it again."""
        if self._own is not None:
            await self._own.disconnect()

    async def evaluate(self, source: str, keys: int, values: int, pieces: Sequence[bytes]) -> Any:
        """Run a script that the store does not know, see :class:`~celery_ratelimit.store.script.Script`."""
        return await self.exchange(b"*%d\r\n%b" % (3 + values, bulk("EVAL", source, keys)) + b"".join(pieces))


async def _exchange(connection: Any, command: bytes) -> Any:
    async def once() -> Any:
        if connection.is_connected and not connection.health_check_interval:
            # Without the task that redis-py makes for the timeout of a write; that of the read is for both.
            connection._writer.write(command)
        else:
            await connection.send_packed_command(command)
        return await connection.read_response()

    return await connection.retry.call_with_retry(once, lambda error: connection.disconnect())


def _values(command: bytes) -> list[Any]:
    name, *values = unbulk(command[command.index(b"\n") + 1 :])
    return [name.decode(), *values]


class AsyncClusterLink:
    """Sends commands to a cluster: each node has a pool of connections, for which callers wait.

    The client of ``redis.asyncio`` has no such pool: it raises an error when all connections are in use, and a caller
    that finds a moved hash slot closes connections on which other callers read. So the client is only used to find the
    node of a hash slot, and to follow a slot that moves; for both, by one caller at a time.

    Args:
        client: the cluster's client.
        timeout: seconds that a caller waits for a free connection.
    """

    #: Each node's client packs commands.
    takes_bytes = False

    def __init__(self, client: RedisCluster, timeout: float = 5.0) -> None:
        self._client = client
        self.timeout = timeout
        self._nodes: dict[str, Redis] = {}
        self._alone = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None

    async def execute(self, name: str, *arguments: Any, key: str | None = None) -> Any:
        """Send a command. ``key``: one of its keys; default: the third argument, as of ``EVALSHA``."""
        slot = key_slot(arguments[2] if key is None else key.encode())
        try:
            try:
                return await (await self._node_of(slot)).execute_command(name, *arguments)
            except _ELSEWHERE:
                with suppress(*_FAILED):  # the known nodes stay, and the caller gets the first error
                    await asyncio.shield(self._look_anew())
                return await (await self._node_of(slot)).execute_command(name, *arguments)
        except (AskError, TryAgainError):
            async with self._alone:
                return await self._client.execute_command(name, *arguments)
        except RedisTimeoutError:
            self._look_anew()  # the node hangs: the next caller shall use its successor
            raise

    async def exchange(self, command: bytes) -> Any:
        """As :meth:`AsyncLink.exchange`, on the node that has the first key of a call of a script."""
        return await self.execute(*_values(command))

    async def evaluate(self, source: str, keys: int, values: int, pieces: Sequence[bytes]) -> Any:
        return await self.execute("EVAL", source, keys, *unbulk(b"".join(pieces)))

    async def ping(self) -> None:
        """Ping every master; if one does not answer, look for its successor."""
        await self._know()
        try:
            await self._ping_all()
        except _FAILED:
            await asyncio.shield(self._look_anew())
            await self._ping_all()

    async def aclose(self) -> None:
        """Close the connections. A later call makes new ones."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            await node.aclose(close_connection_pool=True)

    async def _ping_all(self) -> None:
        said = await asyncio.gather(
            *[self._link_to(node).ping() for node in self._client.get_primaries()], return_exceptions=True
        )
        for error in said:
            if isinstance(error, BaseException):
                raise error

    async def _node_of(self, slot: int) -> Redis:
        await self._know()
        return self._link_to(self._client.nodes_manager.get_node_from_slot(slot))

    async def _know(self) -> None:
        if self._client.get_default_node() is None:  # the nodes are not known yet
            await asyncio.shield(self._look_anew())

    def _link_to(self, node: Any) -> Redis:
        if node.name in self._nodes:
            return self._nodes[node.name]
        options = {
            **node.connection_kwargs,
            "retry": Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
            "retry_on_error": [RedisConnectionError],
        }
        pool = SharedPool(
            max_connections=node.max_connections,
            timeout=self.timeout,
            connection_class=node.connection_class,
            **options,
        )
        link = self._nodes[node.name] = Redis(connection_pool=pool)
        return link

    def _look_anew(self) -> asyncio.Task[None]:
        """Look for the nodes of the hash slots: one look serves all callers."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look())
            self._looking.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._looking

    async def _look(self) -> None:
        async with self._alone:
            if self._client.get_default_node() is None:
                await self._client.initialize()
            else:
                await self._client.nodes_manager.initialize()
