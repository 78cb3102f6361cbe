"""Connections to the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.cluster import RedisCluster
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    SlotNotCoveredError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .link import Link
from .resp import unbulk

__all__ = ["ClusterLink", "slot_of"]

#: Most names that are tried to find a key on each node of a cluster.
_MOST_NAMES = 10_000


class ClusterLink(Link):
    """Sends commands to a cluster, with a link to each node.

    Exceptions (a hash slot has moved or is moving, a node is gone) are left to the client, which looks for the nodes
    again.
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
        )  # the source may contain braces like a hash tag

    def exchange_all(self, commands: Sequence[bytes]) -> list[Any]:
        """As :meth:`Link.exchange_all`: each node gets its commands at once, before any reply is read."""
        replies: dict[int, Any] = {}
        places: dict[Link, list[int]] = {}  # positions of each node's commands
        for place, command in enumerate(commands):
            try:
                places.setdefault(self._link_for(command), []).append(place)
            except (RedisError, RedisClusterException) as error:
                replies[place] = error
        connections: dict[Link, Any] = {}
        try:
            for link, own in places.items():
                try:
                    connections[link] = link._send(b"".join([commands[place] for place in own]))
                except RedisError as error:
                    replies.update(dict.fromkeys(own, error))
            while connections:
                link, connection = connections.popitem()
                replies.update(zip(places[link], link._receive(connection, len(places[link])), strict=True))
        except BaseException:
            for link, connection in connections.items():  # interrupted: its replies will not be read
                link._drop(connection)
            raise
        if any(isinstance(reply, RedisTimeoutError) for reply in replies.values()):
            self._look_anew()
        return [replies[place] for place in range(len(commands))]

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
        """Look for the nodes again after a node has hung: the next caller shall use its successor."""
        with suppress(RedisError, RedisClusterException):
            self._client.nodes_manager.initialize()

    def _link_for(self, command: bytes) -> Link:
        """The link to the node that has the first key of a command, which has a hash tag."""
        tag = command.index(b"{") + 1
        node = self._client.nodes_manager.get_node_from_slot(key_slot(command[tag : command.index(b"}", tag)]))
        return self._nodes.get(node.name) or self._link_to(node)

    def _link_to(self, node: Any) -> Link:
        link = self._nodes[node.name] = Link(node.redis_connection or self._client.get_redis_connection(node))
        return link


def slot_of(tag: str) -> int:
    """The hash slot of keys with this hash tag."""
    slot: int = key_slot(tag.encode())
    return slot
