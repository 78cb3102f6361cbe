"""Stores that no waiting brings within reach: TLS and its certificates, and what is no Sentinel. Each with its mend."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_ratelimit import AsyncLimiter, Limit, Limiter, StoreUnavailable
from celery_ratelimit.errors import StoreMisconfigured
from celery_ratelimit.testing import EmbeddedServer, embedded_server, free_port
from tests.conftest import PATIENT

API = Limit("1/s", name="api")


def acquire(url: str) -> None:
    with Limiter.from_url(url) as limiter:
        limiter.acquire(API)


def acquire_awaited(url: str) -> None:
    async def main() -> None:
        async with AsyncLimiter.from_url(url) as limiter:
            await limiter.acquire(API)

    asyncio.run(main())


ASKS = pytest.mark.parametrize("ask", [acquire, acquire_awaited])


class TLS:
    """Servers that speak TLS: one that asks for no certificates, one that does, one with another host's certificate."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self._stack = stack
        for name, host in (("server", "IP:127.0.0.1"), ("other", "IP:127.0.0.1"), ("elsewhere", "DNS:elsewhere")):
            request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={name}"]
            files = ["-keyout", self.file(f"{name}.key"), "-out", self.file(f"{name}.pem")]
            subprocess.run([*request, *files, "-addext", f"subjectAltName={host}"], check=True, capture_output=True)
        self.plain, self.port = self._start("server", "no")
        _, self.asking = self._start("server", "yes")
        _, self.elsewhere = self._start("elsewhere", "no")

    def file(self, name: str) -> str:
        return str(self.directory / name)

    def _start(self, name: str, ask: str) -> tuple[int, int]:
        port = free_port()
        tls = ["--tls-port", str(port), "--tls-cert-file", self.file(f"{name}.pem")]
        tls += ["--tls-key-file", self.file(f"{name}.key"), "--tls-ca-cert-file", self.file(f"{name}.pem")]
        binary = shutil.which("redis-server") or shutil.which("valkey-server")
        server = self._stack.enter_context(embedded_server(binary, options=[*tls, "--tls-auth-clients", ask]))
        return server.port, port


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TLS]:
    if not (shutil.which("redis-server") or shutil.which("valkey-server")) or shutil.which("openssl") is None:
        pytest.skip("needs a redis-server and openssl on the path: the wheel's server has no TLS")
    with ExitStack() as stack:
        try:
            made = TLS(tmp_path_factory.mktemp("tls"), stack)
        except RuntimeError as error:
            if "tls" in str(error).lower():
                pytest.skip("the redis-server on the path is built without TLS")
            raise
        yield made


CASES: dict[str, tuple[Callable[[TLS], str], str]] = {
    "no CA": (lambda tls: f"rediss://127.0.0.1:{tls.port}", "name the CA's, .ssl_ca_certs=/path"),
    "another CA": (
        lambda tls: f"rediss://127.0.0.1:{tls.port}?ssl_ca_certs={tls.file('other.pem')}",
        "name the CA's, .ssl_ca_certs=/path",
    ),
    "no such file": (
        lambda tls: f"rediss://127.0.0.1:{tls.port}?ssl_ca_certs={tls.file('absent.pem')}",
        "a file that the URL names does not exist here",
    ),
    "no certificate": (
        lambda tls: f"rediss://127.0.0.1:{tls.port}?ssl_ca_certs={tls.file('server.key')}",
        "a file that the URL names is no certificate",
    ),
    "another host": (
        lambda tls: (
            f"rediss://127.0.0.1:{tls.elsewhere}?ssl_ca_certs={tls.file('elsewhere.pem')}&ssl_check_hostname=true"
        ),
        "its certificate is for another host",
    ),
    "asks for a certificate": (
        lambda tls: f"rediss://127.0.0.1:{tls.asking}?ssl_ca_certs={tls.file('server.pem')}",
        "it asks for a certificate of its clients",
    ),
    "asks for another certificate": (
        lambda tls: (
            f"rediss://127.0.0.1:{tls.asking}?ssl_ca_certs={tls.file('server.pem')}"
            f"&ssl_certfile={tls.file('other.pem')}&ssl_keyfile={tls.file('other.key')}"
        ),
        "signed by a CA that is known there|certificate of its clients",
    ),
    "TLS to plain": (
        lambda tls: f"rediss://127.0.0.1:{tls.plain}",
        "it does not speak TLS: begin the URL with redis://",
    ),
    "plain to TLS": (lambda tls: f"redis://127.0.0.1:{tls.port}", "it speaks TLS: begin the URL with rediss://"),
}


@ASKS
@pytest.mark.parametrize("cluster", [False, True], ids=["one server", "a cluster"])
@pytest.mark.parametrize("case", CASES)
def test_tls_that_cannot_be_says_what_to_do(tls: TLS, ask: Callable[[str], None], cluster: bool, case: str) -> None:
    url, mend = CASES[case]
    written = url(tls).replace("://", "+cluster://") if cluster else url(tls)
    written += f"{'&' if '?' in written else '?'}{PATIENT[1:]}"
    with pytest.raises(StoreMisconfigured, match=mend) as caught:
        ask(written)
    assert str(tls.directory) not in str(caught.value)


@ASKS
def test_a_server_that_speaks_tls_as_it_should_is_served(tls: TLS, ask: Callable[[str], None]) -> None:
    ask(f"rediss://127.0.0.1:{tls.port}{PATIENT}&ssl_ca_certs={tls.file('server.pem')}")
    own = f"&ssl_certfile={tls.file('server.pem')}&ssl_keyfile={tls.file('server.key')}"
    ask(f"rediss://127.0.0.1:{tls.asking}{PATIENT}&ssl_ca_certs={tls.file('server.pem')}{own}")


@ASKS
def test_a_sentinel_that_is_none_says_so(server: EmbeddedServer, ask: Callable[[str], None]) -> None:
    with pytest.raises(StoreMisconfigured, match="it is a server and no Sentinel: name the Sentinels"):
        ask(f"sentinel://127.0.0.1:{server.port}?service_name=limits")


# -- What waiting does mend --------------------------------------------------------------------------------------------


@ASKS
@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster", "rediss+cluster"])
def test_a_server_that_is_not_there_is_an_outage(ask: Callable[[str], None], scheme: str) -> None:
    with pytest.raises(StoreUnavailable):
        ask(f"{scheme}://127.0.0.1:{free_port()}")


@ASKS
def test_so_is_one_that_hangs(ask: Callable[[str], None]) -> None:
    with embedded_server() as hanging:
        hanging.freeze()
        for scheme in ("redis", "rediss"):
            with pytest.raises(StoreUnavailable):
                ask(f"{scheme}://127.0.0.1:{hanging.port}")


def test_a_store_that_has_served_is_not_asked_whether_it_speaks_another_protocol() -> None:
    with embedded_server() as own, Limiter.from_url(own.url) as limiter:
        limiter.acquire(API)
        with redis.Redis.from_url(own.url) as admin:
            before = admin.info("stats")["total_connections_received"]
            admin.execute_command("CLIENT", "NO-EVICT", "on")
            own.freeze()
            try:
                with pytest.raises(StoreUnavailable):
                    limiter.acquire(API)
            finally:
                own.thaw()
            assert admin.info("stats")["total_connections_received"] == before


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_a_socket_that_is_not_there_is_an_outage_and_its_path_is_not_shown(kind: Any, tmp_path: Path) -> None:
    ask = acquire if kind is Limiter else acquire_awaited
    with pytest.raises(StoreUnavailable) as caught:
        ask(f"unix://{tmp_path}/s3cr3t.sock")
    assert "s3cr3t" not in f"{caught.value} {caught.value.__cause__}"
