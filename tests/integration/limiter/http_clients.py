"""HTTP clients whose calls are limited, under one face, and a server for them on loopback."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
import redis
import requests

from celery_ratelimit import AsyncLimiter, Limiter
from celery_ratelimit.testing import EmbeddedServer
from celery_ratelimit.transports import AsyncLimitedTransport, LimitedAdapter, LimitedTransport
from tests.conftest import PATIENT

__all__ = ["BODY", "Client", "Upstream", "client", "running", "upstream"]

BODY = "xxxxx."


class Upstream(ThreadingHTTPServer):
    """Answers as the test has set, the body well after its head; counts requests, and how many there are at once."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.lock = threading.Lock()
        self.says(200)

    def says(self, status: int, **headers: str) -> None:
        self.status, self.headers = status, headers
        self.calls: list[str] = []
        self.now = self.most = 0


class _Handler(BaseHTTPRequestHandler):
    server: Upstream
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        upstream = self.server
        with upstream.lock:
            upstream.calls.append(self.path)
            upstream.now += 1
            upstream.most = max(upstream.most, upstream.now)
        status, headers = upstream.status, {**upstream.headers, "Content-Length": str(len(BODY))}
        if self.path == "/redirect":
            status, headers["Location"] = 302, "/end"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        with suppress(ConnectionError):  # a client may close its stream
            for letter in BODY[:-1]:
                self.wfile.write(letter.encode())
                time.sleep(0.004)
            with upstream.lock:
                upstream.now -= 1
            self.wfile.write(BODY[-1:].encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def running() -> Iterator[Upstream]:
    with Upstream() as upstream:
        thread = threading.Thread(target=upstream.serve_forever, args=(0.05,))
        thread.start()
        yield upstream
        upstream.shutdown()
        thread.join()


@pytest.fixture
def upstream(running: Upstream) -> Upstream:
    running.says(200)
    return running


class Client:
    """One face for httpx, requests, and httpx with asyncio; each call as from a process of its own."""

    def __init__(self, library: str, store: str, quotas: Any) -> None:
        self.library, self.store, self.quotas = library, store, quotas

    def get(self, url: str, limits: Any = "api", **options: Any) -> str:
        return self.get_all([url], limits, **options)[0]

    def get_all(self, urls: Sequence[str], limits: Any, **options: Any) -> list[str]:
        """The bodies of responses to simultaneous requests."""
        if self.library == "httpx async":
            return asyncio.run(self._awaited(urls, limits, **options))
        client: Any
        with Limiter.from_url(self.store, quotas=self.quotas, counts=False) as limiter:
            if self.library == "httpx":
                client = httpx.Client(transport=LimitedTransport(limiter, limits, **options), follow_redirects=True)
            else:
                client = requests.Session()
                client.mount("http://", LimitedAdapter(limiter, limits, **options))
            with client, ThreadPoolExecutor(6) as threads:
                return list(threads.map(lambda url: client.get(url).text, urls))

    async def _awaited(self, urls: Sequence[str], limits: Any, **options: Any) -> list[str]:
        async with AsyncLimiter.from_url(self.store, quotas=self.quotas, counts=False) as limiter:
            transport = AsyncLimitedTransport(limiter, limits, **options)
            async with httpx.AsyncClient(transport=transport, follow_redirects=True) as client:
                return [response.text for response in await asyncio.gather(*map(client.get, urls))]


@pytest.fixture(params=["httpx", "requests", "httpx async"])
def client(request: pytest.FixtureRequest, server: EmbeddedServer, store: redis.Redis) -> Client:
    return Client(request.param, server.url + PATIENT, request.module.QUOTAS)
