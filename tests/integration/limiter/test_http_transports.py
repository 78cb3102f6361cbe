"""HTTP clients that take a permit for every call, on a real server on loopback."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import redis
import requests
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from celery_ratelimit import AsyncLimiter, Concurrency, Limit, Limiter, StoreUnavailable, Throttled
from celery_ratelimit.testing import EmbeddedServer, free_port
from celery_ratelimit.transports import AsyncLimitedTransport, LimitedAdapter, LimitedTransport
from tests.conftest import PATIENT

QUOTAS = {
    "api": Limit("20/s", name="api"),
    "hourly": Limit("3/h", burst=3, name="hourly"),
    "places": Concurrency(1, name="places", lease=600),
}


class Upstream:
    """A server that counts what arrives, and how much of it at once."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.now = self.most = 0
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    async def count(self, request: Request) -> Response:
        self.calls.append(request.url.path)
        self.now += 1
        self.most = max(self.most, self.now)
        if request.url.path == "/redirect":
            self.now -= 1
            return RedirectResponse("/end")
        return StreamingResponse(self._body())

    async def _body(self) -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x"
            await asyncio.sleep(0.004)  # a body comes well after its head
        self.now -= 1
        yield b"."


@pytest.fixture(scope="module")
def running() -> Iterator[Upstream]:
    upstream = Upstream()

    app = Starlette(routes=[Route("/{rest}", upstream.count)])
    server = uvicorn.Server(uvicorn.Config(app, port=upstream.port, log_level="warning", ws="none", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield upstream
    server.should_exit = True
    thread.join()


@pytest.fixture
def upstream(running: Upstream) -> Upstream:
    running.calls.clear()
    running.now = running.most = 0
    return running


@pytest.fixture
def limiter(server: EmbeddedServer, store: redis.Redis) -> Limiter:
    return Limiter.from_url(server.url + PATIENT, quotas=QUOTAS)


def left(limiter: Limiter, name: str, **options: Any) -> int:
    return limiter.peek(name, **options).remaining


class Client:
    """One face for httpx, requests, and httpx with asyncio."""

    def __init__(self, library: str, limiter: Limiter, limits: Any, **options: Any) -> None:
        self._library, self._limiter, self._limits, self._options = library, limiter, limits, options

    def get(self, url: str) -> str:
        return self.get_all([url])[0]

    def get_all(self, urls: Sequence[str]) -> list[str]:
        """The bodies of responses to simultaneous requests."""
        if self._library == "httpx async":
            return asyncio.run(self._awaited(urls))
        client: Any
        if self._library == "httpx":
            transport = LimitedTransport(self._limiter, self._limits, **self._options)
            client = httpx.Client(transport=transport, follow_redirects=True)
        else:
            client = requests.Session()
            client.mount("http://", LimitedAdapter(self._limiter, self._limits, **self._options))
        with client, ThreadPoolExecutor(6) as threads:
            return list(threads.map(lambda url: client.get(url).text, urls))

    async def _awaited(self, urls: Sequence[str]) -> list[str]:
        where = self._limiter.client.connection_pool.connection_kwargs
        url = f"redis://{where['host']}:{where['port']}/0{PATIENT}"
        async with AsyncLimiter.from_url(url, quotas=QUOTAS) as limiter:
            transport = AsyncLimitedTransport(limiter, self._limits, **self._options)
            async with httpx.AsyncClient(transport=transport, follow_redirects=True) as client:
                return [response.text for response in await asyncio.gather(*map(client.get, urls))]


@pytest.fixture(params=["httpx", "requests", "httpx async"])
def library(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_every_call_takes_a_permit(limiter: Limiter, upstream: Upstream, library: str) -> None:
    client = Client(library, limiter, "hourly", max_wait=0)
    assert client.get(f"{upstream.url}/a") == "xxxxx."
    assert client.get(f"{upstream.url}/redirect") == "xxxxx."
    with pytest.raises(Throttled, match="'hourly'"):
        client.get(f"{upstream.url}/b")
    assert upstream.calls == ["/a", "/redirect", "/end"], "a redirect is a call; a refused call is not sent"


def test_calls_wait_for_their_turn(limiter: Limiter, upstream: Upstream, library: str) -> None:
    began = time.monotonic()
    Client(library, limiter, "api").get_all([f"{upstream.url}/{n}" for n in range(11)])
    assert time.monotonic() - began >= 0.499
    assert len(upstream.calls) == 11


def test_lease_is_held_until_the_body_has_come(limiter: Limiter, upstream: Upstream, library: str) -> None:
    Client(library, limiter, "places").get_all([f"{upstream.url}/{n}" for n in range(30)])
    assert (len(upstream.calls), upstream.most) == (30, 1)
    assert left(limiter, "places") == 1


def test_lease_of_a_failed_call_is_returned(limiter: Limiter, library: str) -> None:
    client = Client(library, limiter, "places")
    with pytest.raises((httpx.ConnectError, requests.ConnectionError)):
        client.get(f"http://127.0.0.1:{free_port()}/")
    assert left(limiter, "places") == 1


def test_call_is_not_sent_without_a_store(upstream: Upstream, library: str) -> None:
    lost = Limiter.from_url(f"redis://127.0.0.1:{free_port()}", quotas=QUOTAS)
    with pytest.raises(StoreUnavailable):
        Client(library, lost, "api").get(f"{upstream.url}/a")
    assert upstream.calls == []


def test_httpx_stream_holds_its_lease_until_it_is_closed(limiter: Limiter, upstream: Upstream) -> None:
    with httpx.Client(transport=LimitedTransport(limiter, "places")) as client:
        with client.stream("GET", f"{upstream.url}/a") as response:
            assert response.status_code == 200
            assert left(limiter, "places") == 0
        assert left(limiter, "places") == 1


def test_requests_stream_holds_its_lease_until_its_head_has_come(limiter: Limiter, upstream: Upstream) -> None:
    with requests.Session() as session:
        session.mount("http://", LimitedAdapter(limiter, "places"))
        with session.get(f"{upstream.url}/a", stream=True) as response:
            assert left(limiter, "places") == 1
            assert response.content == b"xxxxx."


def test_complete_response_holds_no_lease(limiter: Limiter) -> None:
    mock = httpx.MockTransport(lambda _: httpx.Response(200, text="a"))
    transport = LimitedTransport(limiter, "places", transport=mock)
    with httpx.Client(transport=transport) as client:
        assert client.get("http://nowhere").text == "a"
        assert left(limiter, "places") == 1


# -- asyncio -----------------------------------------------------------------------------------------------------------


def test_async_stream_holds_its_lease_until_it_is_closed(
    server: EmbeddedServer, limiter: Limiter, upstream: Upstream
) -> None:
    async def main() -> None:
        async with AsyncLimiter.from_url(server.url + PATIENT, quotas=QUOTAS) as asynchronous:
            async with httpx.AsyncClient(transport=AsyncLimitedTransport(asynchronous, "places")) as client:
                async with client.stream("GET", f"{upstream.url}/a"):
                    assert left(limiter, "places") == 0
                assert left(limiter, "places") == 1
            mock = httpx.MockTransport(lambda _: httpx.Response(200, text="a"))
            transport = AsyncLimitedTransport(asynchronous, "places", transport=mock)
            async with httpx.AsyncClient(transport=transport) as client:
                assert (await client.get("http://nowhere")).text == "a"
            assert left(limiter, "places") == 1

    asyncio.run(main())


# -- Optional ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "library"),
    [("LimitedTransport", "httpx"), ("AsyncLimitedTransport", "httpx"), ("LimitedAdapter", "requests")],
)
def test_transport_without_its_library_says_what_to_install(name: str, library: str) -> None:
    said = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "import celery_ratelimit.limiter.async_limiter, celery_ratelimit.worker.bootstep, celery_ratelimit.transports\n"
        f"assert not {{'httpx', 'requests'}} & set(sys.modules) - {{{library!r}}}, 'loaded unasked'\n"
        f"from celery_ratelimit.transports import {name}"
    )
    ran = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True)
    assert f"ImportError: {name} needs {library}: pip install 'celery-ratelimit[{library}]'" in ran.stderr
