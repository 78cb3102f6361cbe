"""``memory://``: a store in this process, for tests and notebooks. fakeredis runs the same scripts.

It counts within one process: its use in another process (after a fork) is an error. Needs
``celery-ratelimit[testing]``.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from ..errors import ConfigurationError
from ..forks import begin_anew_after_fork
from .url_text import without_password

try:
    import fakeredis
    import lupa  # noqa: F401  # without it fakeredis has no scripts, and fails late
except ImportError as _error:
    raise ConfigurationError(
        f"memory:// runs the scripts in this process, and what it needs for that is missing ({_error}): "
        "pip install 'celery-ratelimit[testing]'"
    ) from _error

__all__ = ["Clock", "async_memory_client", "clear", "clock", "memory_client"]

_URL = re.compile(r"memory://(\w[\w.-]*)?")


class Clock:
    """The clock of all stores in memory: the machine's, unless a test has stopped it and moves it by hand."""

    def __init__(self) -> None:
        self._us: int | None = None
        self.begin_anew()
        begin_anew_after_fork(self)

    def begin_anew(self) -> None:
        """After a fork: another thread of the parent process may have had the lock."""
        self._lock = threading.Lock()

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        return self.us / 1e6

    @property
    def us(self) -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1000 if self._us is None else self._us

    def advance(self, seconds: float) -> None:
        """Move the stopped clock by 0 seconds or more."""
        with self._lock:
            if self._us is None:
                raise ConfigurationError("this clock is running: only one that is stopped can be moved by hand")
            if not seconds >= 0:
                raise ConfigurationError(f"a clock moves by 0 seconds or more, not by {seconds!r}")
            self._us += round(seconds * 1e6)

    def stop(self, us: int | None) -> int | None:
        """Stop the clock at a time, or let it run again (``None``). Returns the earlier setting."""
        with self._lock:
            before, self._us = self._us, us
        return before

    # The functions of ``time`` that a waiting limiter uses.

    def monotonic(self) -> float:
        return time.monotonic() if self._us is None else self.now

    def sleep(self, seconds: float) -> None:
        """Sleep; a stopped clock is moved on instead, since the wait would never end."""
        with self._lock:
            if self._us is not None:
                self._us += round(seconds * 1e6)
                return
        time.sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        if self._us is None:
            await asyncio.sleep(seconds)
        else:
            self.sleep(seconds)
            await asyncio.sleep(0)


clock: Clock = Clock()

#: The stores by name.
_stores: dict[str, _Server] = {}


def memory_client(url: str) -> Redis:
    """A client of the store at ``memory://`` or ``memory://name``: one store for each name and process.

    Raises:
        ConfigurationError: another URL, or the store belongs to another process.
    """
    return _Client(server=_store(url), connection_class=_Connection)


def async_memory_client(url: str) -> AsyncRedis:
    """A client for asyncio, of the same store as :func:`memory_client`."""
    return _AsyncClient(server=_store(url), connection_class=_AsyncConnection)


def clear() -> None:
    """Empty every store of this process."""
    mine = [server for server in list(_stores.values()) if server.pid == os.getpid()]
    for server in mine:
        with _Client(server=server, connection_class=_Connection) as client:
            client.flushall()


def _store(url: str) -> _Server:
    match = _URL.fullmatch(url)
    if match is None:
        raise ConfigurationError(
            f"{without_password(url)!r} does not name a store in memory: write 'memory://' or 'memory://name'"
        )
    server = _stores.setdefault(match[1] or "", _Server())  # atomic, also for concurrent threads
    _check_process(server)
    return server


def _check_process(server: _Server) -> None:
    if server.pid != os.getpid():
        raise ConfigurationError(
            f"a memory:// store counts within one process, and this one is that of process {server.pid}, "
            f"not of {os.getpid()}: use threads instead of processes, or take a real store: "
            "'redis://host:6379/0', or celery_ratelimit.testing.embedded_server() in tests"
        )


class _Client(fakeredis.FakeRedis):
    #: For limiters that wait for a slot.
    clock = clock


class _AsyncClient(fakeredis.FakeAsyncRedis):
    clock = clock

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        _check_process(self.connection_pool.connection_kwargs["server"])  # a connection would hide the error's text
        return await super().execute_command(*args, **options)


class _Server(fakeredis.FakeServer):
    """A fakeredis on our clock, by which its keys also expire."""

    def __init__(self) -> None:
        super().__init__()
        self.pid = os.getpid()
        self.dbs[0] = _Database(self.lock)


class _Database(type(fakeredis.FakeServer().dbs[0])):  # type: ignore[misc]  # it has no public name
    @property
    def time(self) -> float:
        return clock.now

    @time.setter
    def time(self, now: float) -> None:
        """fakeredis sets the machine's time before each command."""


class _Connection(fakeredis.FakeRedisConnection):
    """A connection of one thread. In a forked process a new one is refused."""

    def _connect(self) -> Any:
        _check_process(self._server)
        socket = super()._connect()
        socket.time = _time  # replaces its method for the command TIME
        return socket


class _AsyncConnection(fakeredis.FakeAsyncRedisConnection):
    async def _connect(self) -> None:
        await super()._connect()
        self._sock.time = _time


def _time() -> list[bytes]:
    return [b"%d" % part for part in divmod(clock.us, 1_000_000)]
