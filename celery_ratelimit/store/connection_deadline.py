"""Connections whose calls have a deadline. redis-py's timeout is for each ``recv``, and a reply may take many."""

from __future__ import annotations

import socket
from functools import cache
from time import monotonic
from typing import Any

__all__ = ["with_deadline"]


class _Socket:
    """A connected socket. All reads after :meth:`begin` together take no longer than its timeout.

    A reply usually comes at once, and setting a timeout costs a system call: only later reads get a shorter timeout.
    """

    def __init__(self, connected: Any, until: float) -> None:
        self._socket, self._timeout, self._until = connected, connected.gettimeout(), until
        self._recv, self._recv_into, self.sendall = connected.recv, connected.recv_into, connected.sendall
        self._is_first = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def begin(self) -> None:
        """A call begins."""
        self._until = monotonic() + self._timeout
        self._is_first = True

    def recv(self, size: int) -> Any:
        if self._is_first:
            self._is_first = False
            return self._recv(size)
        return self._read_on(self._recv, size)

    def recv_into(self, buffer: Any) -> Any:
        if self._is_first:
            self._is_first = False
            return self._recv_into(buffer)
        return self._read_on(self._recv_into, buffer)

    def _read_on(self, read: Any, argument: Any) -> Any:
        left = self._until - monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left)
        try:
            return read(argument)
        finally:
            self._socket.settimeout(self._timeout)


@cache
def with_deadline(connection_class: Any) -> Any:
    """A subclass of a redis-py connection class with :meth:`begin`, which the caller calls before each command.

    A call takes ``socket_timeout`` at most. Connecting together with the handshake takes as long at most, or
    ``socket_connect_timeout`` if that is longer. Without a timeout there is no deadline.

    Relies on ``AbstractConnection._connect``, which returns the socket that is read from (redis-py 5.0 to 8.1).
    """

    class Timely(connection_class):
        @staticmethod
        def begin() -> None:
            """A call begins."""

        def _connect(self) -> Any:
            began = monotonic()
            connected = super()._connect()
            timeout = connected.gettimeout() if isinstance(connected, socket.socket) else None
            if timeout is None:
                return connected
            timely = _Socket(connected, began + max(timeout, self.socket_connect_timeout or 0.0))
            self.begin = timely.begin  # type: ignore[method-assign]
            return timely

    return Timely
