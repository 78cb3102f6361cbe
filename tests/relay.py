"""A relay in front of a store, which does to the request that parks a task what networks do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from celery_ratelimit.testing import EmbeddedServer
from tests.far_away import listening

__all__ = ["TROUBLES", "Relay", "relay_to"]

#: ``late``: what is sent on this connection from now on arrives later, also when nothing listens any more. ``frozen``:
#: so does everything, on all connections. ``cut``: the request arrives, and the connection ends before its answer.
#: ``deaf``: the same, and then everything is frozen.
TROUBLES = ("late", "frozen", "cut", "deaf")

#: What only a request to park has in it: the beginning of a message.
_PARKS = b'{"to": "'


class Relay:
    """One store, as its clients see it.

    Attributes:
        url: where to reach the store.
    """

    def __init__(self, server: EmbeddedServer) -> None:
        self.url = ""
        self._server = server
        self._trouble, self._left, self._seconds = "", 0, 0.0
        self._frozen = asyncio.Event()
        self._frozen.set()
        self._over = threading.Event()

    def trouble(self, how: str, *, after: int, seconds: float) -> None:
        """The request that parks a task, after so many others, meets with trouble, which lasts for so long."""
        self._over.clear()
        self._trouble, self._left, self._seconds = how, after, seconds

    def is_over(self) -> bool:
        """Whether the trouble has been, and what was late has arrived."""
        return self._over.is_set()

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._frozen.wait()
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        back = asyncio.create_task(_pump(there_reader, writer))
        late = 0.0
        loop = asyncio.get_running_loop()
        try:
            while chunk := await reader.read(1 << 20):
                how = self._meets_trouble(chunk)
                late = self._seconds if how == "late" else late
                if how == "late":
                    loop.call_later(late + 0.1, self._over.set)
                if how in ("frozen", "deaf"):
                    self._frozen.clear()
                    loop.call_later(self._seconds, self._thaw)
                if how != "deaf":
                    await self._frozen.wait()
                loop.call_later(late, there_writer.write, chunk)
                if how == "cut":
                    loop.call_later(0.1, self._over.set)
                if how in ("cut", "deaf"):
                    back.cancel()
                    writer.close()
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            loop.call_later(late + 1.0, there_writer.close)

    def _meets_trouble(self, chunk: bytes) -> str:
        if not self._trouble or _PARKS not in chunk:
            return ""
        self._left -= 1
        if self._left >= 0:
            return ""
        how, self._trouble = self._trouble, ""
        return how

    def _thaw(self) -> None:
        self._frozen.set()
        self._over.set()


@contextmanager
def relay_to(server: EmbeddedServer) -> Iterator[Relay]:
    """A relay in front of ``server``; gone at the end of the block."""
    relay = Relay(server)
    with listening(relay.relay) as relay.url:
        yield relay


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(1 << 20):
            writer.write(chunk)
    except ConnectionError:
        pass
    finally:
        writer.close()
