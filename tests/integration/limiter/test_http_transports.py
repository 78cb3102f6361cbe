"""HTTP clients that take a permit for every call, on a real server on loopback."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import httpx
import pytest
import requests

from celery_ratelimit import AsyncLimiter, Concurrency, Limit, Limiter, StoreUnavailable, Throttled
from celery_ratelimit.testing import EmbeddedServer
from celery_ratelimit.transports import AsyncLimitedTransport, LimitedAdapter, LimitedTransport
from tests.conftest import PATIENT
from tests.integration.limiter.http_clients import BODY, Client, Upstream, client, running, upstream

__all__ = ["client", "running", "upstream"]

QUOTAS = {
    "api": Limit("20/s", name="api"),
    "hourly": Limit("3/h", burst=3, name="hourly"),
    "places": Concurrency(1, name="places", lease=600),
}


def left(limiter: Limiter) -> int:
    return limiter.peek("places").remaining


def test_every_call_takes_a_permit(client: Client, upstream: Upstream) -> None:
    assert client.get(f"{upstream.url}/a", "hourly", max_wait=0) == BODY
    assert client.get(f"{upstream.url}/redirect", "hourly", max_wait=0) == BODY
    with pytest.raises(Throttled, match="'hourly'"):
        client.get(f"{upstream.url}/b", "hourly", max_wait=0)
    assert upstream.calls == ["/a", "/redirect", "/end"], "a redirect is a call; a refused call is not sent"


def test_calls_wait_for_their_turn(client: Client, upstream: Upstream) -> None:
    began = time.monotonic()
    client.get_all([f"{upstream.url}/{n}" for n in range(11)], "api")
    assert time.monotonic() - began >= 0.499
    assert len(upstream.calls) == 11


def test_lease_is_held_until_the_body_has_come(limiter: Limiter, client: Client, upstream: Upstream) -> None:
    client.get_all([f"{upstream.url}/{n}" for n in range(30)], "places")
    assert (len(upstream.calls), upstream.most) == (30, 1)
    assert left(limiter) == 1


def test_lease_of_a_failed_call_is_returned(limiter: Limiter, client: Client) -> None:
    with pytest.raises((httpx.ConnectError, requests.ConnectionError)):
        client.get("http://127.0.0.1:1/", "places")
    assert left(limiter) == 1


def test_call_is_not_sent_without_a_store(client: Client, upstream: Upstream) -> None:
    client.store = "redis://127.0.0.1:1"
    with pytest.raises(StoreUnavailable):
        client.get(f"{upstream.url}/a")
    assert upstream.calls == []


COMPLETE = httpx.MockTransport(lambda _: httpx.Response(200, text="a"))


def test_httpx_stream_holds_its_lease_until_it_is_closed(limiter: Limiter, upstream: Upstream) -> None:
    with httpx.Client(transport=LimitedTransport(limiter, "places")) as client:
        with client.stream("GET", f"{upstream.url}/a"):
            assert left(limiter) == 0
        assert left(limiter) == 1
    with httpx.Client(transport=LimitedTransport(limiter, "places", transport=COMPLETE)) as client:
        assert client.get("http://nowhere").text == "a"
        assert left(limiter) == 1, "a complete response holds none"


def test_async_stream_holds_its_lease_until_it_is_closed(
    server: EmbeddedServer, limiter: Limiter, upstream: Upstream
) -> None:
    async def main() -> None:
        async with AsyncLimiter.from_url(server.url + PATIENT, quotas=QUOTAS) as asynchronous:
            async with httpx.AsyncClient(transport=AsyncLimitedTransport(asynchronous, "places")) as client:
                async with client.stream("GET", f"{upstream.url}/a"):
                    assert left(limiter) == 0
                assert left(limiter) == 1
            transport = AsyncLimitedTransport(asynchronous, "places", transport=COMPLETE)
            async with httpx.AsyncClient(transport=transport) as client:
                assert (await client.get("http://nowhere")).text == "a"
            assert left(limiter) == 1, "a complete response holds none"

    asyncio.run(main())


def test_requests_stream_holds_its_lease_until_its_head_has_come(limiter: Limiter, upstream: Upstream) -> None:
    with requests.Session() as session:
        session.mount("http://", LimitedAdapter(limiter, "places"))
        with session.get(f"{upstream.url}/a", stream=True) as response:
            assert left(limiter) == 1
            assert response.text == BODY


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
