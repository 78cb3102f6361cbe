"""Servers that speak TLS, each with a certificate of its own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from celery_ratelimit.testing import embedded_server, free_port

__all__ = ["TLS", "tls", "tls_server"]


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


@pytest.fixture(scope="module")
def tls_server(tls: TLS) -> tuple[int, Path]:
    """The port of a server that speaks TLS, and its certificate."""
    return tls.port, tls.directory / "server.pem"
