"""A store that is far away: a relay in front of a server, whose answers take their time, or come a byte at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol

__all__ = ["Relay", "far_away", "listening", "relay"]


class HasPort(Protocol):
    """A server on this machine."""

    port: int


class Relay:
    """What a relay does with what comes from the server.

    Attributes:
        url: where it listens.
        seconds: that each answer takes longer.
        trickle: seconds between two bytes of an answer; 0.0: it comes as a whole.
        connections: how many were made.
        cut: ends all that are there.
    """

    def __init__(self) -> None:
        self.url = ""
        self.seconds = self.trickle = 0.0
        self.connections = 0
        self.cut: Callable[[], None] = lambda: None


@contextmanager
def far_away(server: HasPort, seconds: float) -> Iterator[str]:
    """The address of ``server`` as seen from where each answer takes ``seconds`` longer."""
    with relay(server) as between:
        between.seconds = seconds
        yield between.url


@contextmanager
def relay(server: HasPort) -> Iterator[Relay]:
    """A relay in front of ``server``, which lets all through until it is told otherwise."""
    between = Relay()
    writers: set[asyncio.StreamWriter] = set()

    def cut() -> None:
        for writer in writers:
            writer.transport.abort()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        between.connections += 1
        between.cut = partial(asyncio.get_running_loop().call_soon_threadsafe, cut)
        writers.add(writer)
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            with suppress(asyncio.CancelledError):  # the relay ends: nothing is to be told of it
                await asyncio.gather(_pump(reader, there_writer, Relay()), _pump(there_reader, writer, between))
        finally:
            writers.discard(writer)

    with listening(connected) as between.url:
        yield between


@contextmanager
def listening(connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> Iterator[str]:
    """The address at which ``connected`` has each connection, in a loop and a thread of its own."""
    ready: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        listener, end = await asyncio.start_server(connected, "127.0.0.1", 0), asyncio.Event()
        ready.set_result((listener.sockets[0].getsockname()[1], asyncio.get_running_loop(), end))
        await end.wait()
        listener.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    port, loop, end = ready.result(10)
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, between: Relay) -> None:
    loop = asyncio.get_running_loop()
    seconds = 0.0
    try:
        while chunk := await reader.read(65536):
            seconds = between.seconds
            for byte in chunk if between.trickle else b"":
                writer.write(bytes([byte]))
                await asyncio.sleep(between.trickle)
            if not between.trickle:
                loop.call_later(seconds, writer.write, chunk)
    except ConnectionError:
        pass
    finally:
        loop.call_later(seconds, writer.close)
