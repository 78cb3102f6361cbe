"""An HTTP upstream that enforces its own quota: ``python -m benchmarks.upstream_server PORT RATE BURST``.

GCRA by throttled-py, in this process's memory, asked once a request as it arrives; beyond the quota the
answer is 429. HTTP/1.1 with keep-alive over plain asyncio: some 50 µs a request, because everything here
shares the processor with the workers that are being measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from throttled import MemoryStore, Throttled, per_sec


def _answer(status: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


_OK = _answer("200 OK", b'{"ok": true}')
_REFUSED = _answer("429 Too Many Requests", b'{"ok": false}')


async def serve(port: int, rate: int, burst: int) -> None:
    quota = Throttled(key="upstream", using="gcra", quota=per_sec(rate, burst=burst), store=MemoryStore())

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await reader.readuntil(b"\r\n\r\n")  # GET only: there is no body to read
                free = request.startswith(b"GET /health")
                writer.write(_OK if free or not quota.limit().limited else _REFUSED)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(client, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(*(int(argument) for argument in sys.argv[1:4])))
