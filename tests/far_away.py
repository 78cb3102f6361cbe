"""A store that is far away: a relay in front of a server, whose answers take their time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from celery_ratelimit.testing import EmbeddedServer

__all__ = ["far_away"]


@contextmanager
def far_away(server: EmbeddedServer, seconds: float) -> Iterator[str]:
    """The address of ``server`` as seen from where each answer takes ``seconds`` longer."""
    ready: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(_pump(reader, there_writer, 0.0), _pump(there_reader, writer, seconds))

    async def serve() -> None:
        listener, end = await asyncio.start_server(relay, "127.0.0.1", 0), asyncio.Event()
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


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    try:
        while chunk := await reader.read(65536):
            loop.call_later(seconds, writer.write, chunk)
    except ConnectionError:
        pass
    finally:
        loop.call_later(seconds, writer.close)
