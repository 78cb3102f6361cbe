"""HTTP clients that take a permit for every call, on a real server on loopback."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
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
    "host": Limit("2/h", burst=2, name="host", key="{host}"),
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


class Plain:
    """httpx and requests behind one face."""

    def __init__(self, library: str, limiter: Limiter, limits: Any, **options: Any) -> None:
        self.client: Any
        if library == "httpx":
            self.client = httpx.Client(transport=LimitedTransport(limiter, limits, **options), follow_redirects=True)
        else:
            self.client = requests.Session()
            self.client.mount("http://", LimitedAdapter(limiter, limits, **options))

    def get(self, url: str) -> str:
        text: str = self.client.get(url).text
        return text

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()


@pytest.mark.parametrize("library", ["httpx", "requests"])
class TestEachLibrary:
    def test_every_call_takes_a_permit(self, limiter: Limiter, upstream: Upstream, library: str) -> None:
        with Plain(library, limiter, "hourly", max_wait=0) as client:
            assert client.get(f"{upstream.url}/a") == "xxxxx."
            assert client.get(f"{upstream.url}/redirect") == "xxxxx."
            with pytest.raises(Throttled, match="'hourly'"):
                client.get(f"{upstream.url}/b")
        assert upstream.calls == ["/a", "/redirect", "/end"], (
            "each that a redirect leads to counts; a refused one is not sent"
        )

    def test_calls_wait_for_their_turn(self, limiter: Limiter, upstream: Upstream, library: str) -> None:
        with Plain(library, limiter, "api") as client, ThreadPoolExecutor(5) as threads:
            began = time.monotonic()
            list(threads.map(client.get, [f"{upstream.url}/{n}" for n in range(11)]))
        assert time.monotonic() - began >= 0.499
        assert len(upstream.calls) == 11

    def test_key_may_depend_on_the_request(self, limiter: Limiter, upstream: Upstream, library: str) -> None:
        def host(request: Any) -> str:
            return str(httpx.URL(str(request.url)).host)

        with Plain(library, limiter, "host", key_template=host, max_wait=0) as client:
            for name in ("127.0.0.1", "localhost"):
                client.get(f"http://{name}:{upstream.port}/a")
            client.get(f"{upstream.url}/b")
            with pytest.raises(Throttled, match=r"'host', key '127\.0\.0\.1'") as caught:
                client.get(f"{upstream.url}/c")
            assert (caught.value.key, caught.value.max_wait) == ("127.0.0.1", 0)
            client.get(f"http://localhost:{upstream.port}/d")
        with Plain(library, limiter, "host", key="one", cost=2, max_wait=0) as client:
            client.get(f"{upstream.url}/e")
        assert left(limiter, "host", key="one") == 0

    def test_lease_is_held_until_the_body_has_come(self, limiter: Limiter, upstream: Upstream, library: str) -> None:
        with Plain(library, limiter, "places") as client, ThreadPoolExecutor(6) as threads:
            list(threads.map(client.get, [f"{upstream.url}/{n}" for n in range(30)]))
        assert upstream.most == 1
        assert left(limiter, "places") == 1

    def test_lease_of_a_failed_call_is_returned(self, limiter: Limiter, library: str) -> None:
        lost = pytest.raises((httpx.ConnectError, requests.ConnectionError))
        with Plain(library, limiter, "places") as client, lost:
            client.get(f"http://127.0.0.1:{free_port()}/")
        assert left(limiter, "places") == 1

    def test_call_is_not_sent_without_a_store(self, upstream: Upstream, library: str) -> None:
        dead = Limiter.from_url(f"redis://127.0.0.1:{free_port()}", quotas=QUOTAS)
        with Plain(library, dead, "api") as client, pytest.raises(StoreUnavailable):
            client.get(f"{upstream.url}/a")
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
    transport = LimitedTransport(
        limiter, "places", transport=httpx.MockTransport(lambda _: httpx.Response(200, text="a"))
    )
    with httpx.Client(transport=transport) as client:
        assert client.get("http://nowhere").text == "a"
        assert left(limiter, "places") == 1


# -- asyncio -----------------------------------------------------------------------------------------------------------


def test_async_every_call_takes_a_permit(server: EmbeddedServer, limiter: Limiter, upstream: Upstream) -> None:
    async def main() -> None:
        async with AsyncLimiter.from_url(server.url + PATIENT, quotas=QUOTAS) as asynchronous:
            transport = AsyncLimitedTransport(asynchronous, "hourly", max_wait=0)
            async with httpx.AsyncClient(transport=transport, follow_redirects=True) as client:
                assert (await client.get(f"{upstream.url}/a")).text == "xxxxx."
                assert (await client.get(f"{upstream.url}/redirect")).text == "xxxxx."
                with pytest.raises(Throttled, match="'hourly'"):
                    await client.get(f"{upstream.url}/b")
            assert upstream.calls == ["/a", "/redirect", "/end"]

            by_host = {"key_template": lambda request: request.url.host}
            transport = AsyncLimitedTransport(asynchronous, "host", max_wait=0, **by_host)
            async with httpx.AsyncClient(transport=transport) as client:
                await client.get(f"{upstream.url}/a")
            assert left(limiter, "host", key="127.0.0.1") == 1

    asyncio.run(main())


def test_async_lease_is_held_until_the_body_has_come(
    server: EmbeddedServer, limiter: Limiter, upstream: Upstream
) -> None:
    async def main() -> None:
        async with AsyncLimiter.from_url(server.url + PATIENT, quotas=QUOTAS) as asynchronous:
            async with httpx.AsyncClient(transport=AsyncLimitedTransport(asynchronous, "places")) as client:
                await asyncio.gather(*[client.get(f"{upstream.url}/{n}") for n in range(20)])
                assert len(upstream.calls) == 20
                assert upstream.most == 1
                async with client.stream("GET", f"{upstream.url}/a"):
                    assert left(limiter, "places") == 0
                assert left(limiter, "places") == 1
                with pytest.raises(httpx.ConnectError):
                    await client.get(f"http://127.0.0.1:{free_port()}/")
                assert left(limiter, "places") == 1
            mock = httpx.MockTransport(lambda _: httpx.Response(200, text="a"))
            async with httpx.AsyncClient(
                transport=AsyncLimitedTransport(asynchronous, "places", transport=mock)
            ) as client:
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
