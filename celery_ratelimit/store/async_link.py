"""The way of callers who await their replies to a server, or to the nodes of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from inspect import Parameter, signature
from typing import Any

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.retry import Retry
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

#: redis-py before 5.3 wants the name of a command, and does nothing with it; later ones want none.
_WANTS_NAME = signature(ConnectionPool.get_connection).parameters["command_name"].default is Parameter.empty
_FOR = ("_",) if _WANTS_NAME else ()

#: What looking for the nodes may end with.
_FAILED = (RedisError, RedisClusterException, OSError)

#: What it means when another node may have the slot by now.
_ELSEWHERE = (RedisConnectionError, ReadOnlyError, MovedError, ClusterDownError, SlotNotCoveredError)


class AsyncLink:
    """Sends commands in their wire form, on connections from the client's pool.

    ``Redis.execute_command`` packs a command anew, and measures each call. A store in memory, and a client that has one
    connection for all, are used as they are.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._takes_bytes = not hasattr(client, "clock") and not getattr(client, "single_connection_client", False)

    async def exchange(self, command: bytes) -> Any:
        """Send a command and return the reply; tried again as the client's ``Retry`` says."""
        if not self._takes_bytes:
            return await self._client.execute_command(*_values(command))
        pool = self._client.connection_pool
        connection = await pool.get_connection(*_FOR)

        async def once() -> Any:
            await connection.send_packed_command(command)
            return await connection.read_response()

        try:
            return await connection.retry.call_with_retry(once, lambda error: connection.disconnect())
        finally:
            await pool.release(connection)

    async def evaluate(self, source: str, keys: int, values: int, pieces: Sequence[bytes]) -> Any:
        """Run a script that the store does not know, see :class:`~celery_ratelimit.store.script.Script`."""
        return await self.exchange(b"*%d\r\n%b" % (3 + values, bulk("EVAL", source, keys)) + b"".join(pieces))


def _values(command: bytes) -> list[Any]:
    name, *values = unbulk(command[command.index(b"\n") + 1 :])
    return [name.decode(), *values]


class AsyncClusterLink:
    """The same for a cluster: a pool of connections for each node, whose callers wait for each other.

    The client of ``redis.asyncio`` has no such pool: it refuses whoever comes when all connections are in use, and
    one caller who finds that a slot has moved closes the connections that others read from. So it only tells which
    node has which slot, and follows a slot that is on its way; for both, one caller uses it at a time.

    Args:
        client: the cluster's client.
        timeout: seconds that a caller waits for a connection to be free.
    """

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
                with suppress(*_FAILED):  # then what is known stays, and the caller is told what is the matter
                    await asyncio.shield(self._look_anew())
                return await (await self._node_of(slot)).execute_command(name, *arguments)
        except (AskError, TryAgainError):
            async with self._alone:
                return await self._client.execute_command(name, *arguments)
        except RedisTimeoutError:
            self._look_anew()  # it hangs: who asks next shall know who has taken its place
            raise

    async def exchange(self, command: bytes) -> Any:
        """As :meth:`AsyncLink.exchange`, on the node that has the first key of a call of a script."""
        return await self.execute(*_values(command))

    async def evaluate(self, source: str, keys: int, values: int, pieces: Sequence[bytes]) -> Any:
        return await self.execute("EVAL", source, keys, *unbulk(b"".join(pieces)))

    async def ping(self) -> None:
        """Ask every master whether it is there, and where one is not, who has taken its place."""
        await self._know()
        try:
            await self._ping_all()
        except _FAILED:
            await asyncio.shield(self._look_anew())
            await self._ping_all()

    async def aclose(self) -> None:
        """Close the connections. Whoever asks afterwards makes new ones."""
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
        if self._client.get_default_node() is None:  # nobody has asked yet which nodes there are
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
        """Who has which slot: one looks for all who want to know."""
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
