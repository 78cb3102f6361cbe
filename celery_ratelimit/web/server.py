"""The page's server: one process, which keeps nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from celery import Celery
from starlette.types import ASGIApp

from .connections import MOST_CONNECTIONS, PATIENCE, Connection, OncePerMinute, close_stalled
from .guard import Guard
from .options import Options
from .page_data import PageData
from .pages import Pages
from .poller import Poller
from .sessions import Sessions

__all__ = ["listening", "made", "serve", "server_of"]


def made(app: Celery, options: Options, port: int, tell: Callable[[str], object]) -> tuple[ASGIApp, Poller]:
    """What serves the limits of ``app``, and what looks at them.

    Args:
        app: the app; its tasks have to be imported.
        options: how it is served.
        port: at which it listens.
        tell: is given a line for each change.
    """
    queries, sessions = PageData(app), Sessions(options.token, port)
    poller = Poller(queries.at, options.store)
    return Guard(Pages(queries, poller, options, sessions, tell).app(), options, sessions), poller


def listening(host: str, port: int) -> socket.socket:
    """A socket at that address. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def serve(app: Celery, options: Options, at: socket.socket, tell: Callable[[str], object] = print) -> None:
    """Serve until SIGINT or SIGTERM."""
    server = server_of(*made(app, options, at.getsockname()[1], tell))
    for name in ("uvicorn.error", "asyncio", "celery_ratelimit"):
        logging.getLogger(name).addFilter(OncePerMinute())
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[at])


def server_of(asgi: ASGIApp, poller: Poller) -> uvicorn.Server:
    config = uvicorn.Config(
        asgi,
        loop="asyncio",
        http=Connection,
        backlog=MOST_CONNECTIONS // 16,  # are accepted at once: a request is read before a flood closes its connection
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,  # a name that a proxy is told is no proof of anything here
        timeout_graceful_shutdown=3,
    )
    return _Server(config, poller)


class _Server(uvicorn.Server):
    """Closes connections that stall; and ends all streams of events when it ends: it would wait for them."""

    def __init__(self, config: uvicorn.Config, poller: Poller) -> None:
        super().__init__(config)
        self._poller = poller
        self._stalled = set[Any]()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        for each in sockets or ():  # the system keeps more: as many as it may
            each.listen(4096)

    async def on_tick(self, counter: int) -> bool:
        if counter % (10 * PATIENCE) == 0:
            self._stalled = close_stalled(self.server_state.connections, self._stalled)
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._loop.call_soon_threadsafe(self._poller.close)
