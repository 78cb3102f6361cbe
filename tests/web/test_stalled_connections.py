"""Attacks by connections: half a request, none at all, no reading, and too many of each."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from celery_ratelimit.testing import EmbeddedServer
from celery_ratelimit.web.connections import PATIENCE
from celery_ratelimit.web.poller import MOST_VIEWERS
from celery_ratelimit.web.server import listening, server_of
from tests.web.server import TOKEN, Server, page_of

HEAD = b"GET /login HTTP/1.1\r\nHost: localhost\r\n"
STALLED = {
    "says nothing": b"",
    "half a head": HEAD,
    "half a body": b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf",
    "half a second request": HEAD + b"\r\n" + HEAD,
    "never reads": b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.fixture
def page(server: EmbeddedServer) -> Iterator[Server]:
    """A page that may open 512 descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        try:
            page = stack.enter_context(page_of(server.url))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        yield page


@contextlib.contextmanager
def connections(page: Server, number: int, data: bytes) -> Iterator[list[socket.socket]]:
    """Connections that have sent this; the server sees all of them at once."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.create_connection(("127.0.0.1", page.port), 60)) for _ in range(number)]
        os.kill(page.process.pid, signal.SIGSTOP)
        for each in found:
            with contextlib.suppress(OSError):  # closed already
                each.sendall(data)
        os.kill(page.process.pid, signal.SIGCONT)
        yield found


def test_half_open_connections_leave_descriptors_for_others(page: Server) -> None:
    with page.listening("/events") as events:
        next(events)
        with connections(page, 700, HEAD):
            assert page.get("/").status == 200
            page.post("/limit", {})
            assert next(events), "a page that is open stays open"
    said = [line for line in page.said if "connections" in line]
    assert len(said) == 1, "one line a minute"
    assert len(page.said) < 5, page.said


def test_number_of_event_streams_is_bounded(server: EmbeddedServer) -> None:
    with page_of(server.url) as page, connections(page, 300, b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n") as all:
        heads = [each.recv(12) for each in all]
        assert (heads.count(b"HTTP/1.1 200"), heads.count(b"HTTP/1.1 503")) == (MOST_VIEWERS, 300 - MOST_VIEWERS)
        assert page.get("/").status == 200


class Page:
    """A server in this process, whose ticks the test makes: uvicorn makes one every tenth of a second."""

    def __init__(self, at: socket.socket) -> None:
        self.at, self.server = at, server_of(app, None)  # type: ignore[arg-type]
        self.server.config.load()
        self.server.lifespan = self.server.config.lifespan_class(self.server.config)

    async def tick(self, seconds: int) -> int:
        """How many connections it has."""
        for _ in range(2000):  # until what is on its way has come
            await asyncio.sleep(0)
        await self.server.on_tick(10 * seconds)
        for _ in range(10):
            await asyncio.sleep(0)
        return len(self.server.server_state.connections)


async def app(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    if scope["path"] == "/waits":
        await asyncio.Event().wait()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while scope["path"] == "/endless":
        await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b"x"})


async def connected(page: Page, data: bytes) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection(*page.at.getsockname())
    writer.write(data)
    return writer


@contextlib.asynccontextmanager
async def ticking() -> AsyncIterator[Page]:
    with listening("127.0.0.1", 0) as at:
        page = Page(at)
        await page.server.startup([at])
        yield page


@pytest.mark.parametrize("data", STALLED.values(), ids=STALLED)
def test_stalled_connection_is_closed(data: bytes) -> None:
    async def main() -> None:
        async with ticking() as page:
            writer = await connected(page, data)
            assert [await page.tick(seconds) for seconds in (0, 1, PATIENCE)] == [1, 1, 0]
            writer.close()

    asyncio.run(main())


def test_active_connection_stays() -> None:
    async def main() -> None:
        async with ticking() as page:
            waits = await connected(page, HEAD.replace(b"/login", b"/waits") + b"\r\n")
            slow = await connected(page, HEAD)
            for n in range(4):
                assert await page.tick(n * PATIENCE) == 2
                slow.write(b"\r\n" + HEAD)
            waits.close()
            slow.close()

    asyncio.run(main())


def test_body_that_breaks_off_is_no_server_error(server: EmbeddedServer) -> None:
    with page_of(server.url, CELERY_RATELIMIT_WEB_TOKEN=TOKEN) as page:
        with socket.create_connection(("127.0.0.1", page.port)) as connection:
            connection.sendall(
                b"POST /login HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
                b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 9\r\n\r\nhalf"
            )
        assert page.get("/login").status == 200
    assert len(page.said) == 1, page.said
