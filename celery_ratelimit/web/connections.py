"""Bounds of the server's connections: how many there are, and how long each may stall.

uvicorn has no time-out for a request; its ``limit_concurrency`` refuses requests for the connections that send none.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Iterable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["MOST_CONNECTIONS", "PATIENCE", "Connection", "OncePerMinute", "close_stalled"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Connections at once: the store and those that are accepted meanwhile have the other half of the descriptors.
MOST_CONNECTIONS = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, 1024)
#: Seconds after which a connection is closed that stalls: at least so many, at most twice as many.
PATIENCE = 10


class Connection(H11Protocol):
    """Where there are too many connections, the older half of those that have sent no whole request is closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since: float = self.loop.time()
        if len(self.connections) > MOST_CONNECTIONS:
            logger.warning("More than %d connections: the oldest without a whole request are closed", MOST_CONNECTIONS)
            waiting: list[Any] = [each for each in self.connections if _is_asked_nothing(each)]
            for each in sorted(waiting, key=lambda each: each.since)[: (len(waiting) + 1) // 2]:
                _close(each)


def close_stalled(connections: Iterable[Any], before: set[Any]) -> set[Any]:
    """Close the connections on which nothing has happened since the last call, although the client has to act.

    Args:
        connections: all that there are.
        before: what the last call has returned.
    """
    sizes = [(each, each.transport.get_write_buffer_size()) for each in connections]
    stalled = {(each, each.cycle, size) for each, size in sizes if size or _is_asked_nothing(each)}
    for each, *_ in stalled & before:
        _close(each)
    return stalled


def _is_asked_nothing(connection: Any) -> bool:
    return connection.conn.their_state in (h11.IDLE, h11.SEND_BODY)


def _close(connection: Any) -> None:
    connection.connections.discard(connection)
    connection.transport.abort()


class OncePerMinute(logging.Filter):
    """What one line of the code logs is written once a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._until: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        place = record.pathname, record.lineno
        if record.created < self._until.get(place, 0.0):
            return False
        self._until[place] = record.created + 60
        return True
