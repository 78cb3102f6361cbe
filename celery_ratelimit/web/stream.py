"""Server-sent events: an answer that goes on as long as a browser listens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from starlette.types import Receive, Scope, Send

__all__ = ["Stream"]


class Stream:
    """An answer of one event after the other, until they end or the browser goes.

    Args:
        events: what is sent, in its wire form.
        places: one of which it holds.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], places: asyncio.Semaphore) -> None:
        self._events, self._places = events, places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._places:
            await self._send_until_it_goes(receive, send)

    async def _send_until_it_goes(self, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sending = asyncio.ensure_future(self._send_all(send))
        leaving = asyncio.ensure_future(_until_it_goes(receive))
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (sending, leaving):
                each.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        async with contextlib.aclosing(self._events) as events:  # whatever ends it: no browser listens any more
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _until_it_goes(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
