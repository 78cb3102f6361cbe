"""Starts workers quickly: a process that has imported Celery forks for each of them. An import takes a second of CPU.

The app is imported after the fork, in the worker's own environment; what runs then is the ordinary ``celery`` command.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import processes

#: What every worker of a limited app imports.
IMPORTED = [
    *("celery.app.control", "celery.apps.worker", "celery.backends.redis", "celery.concurrency.prefork"),
    *("celery.events.state", "celery.fixups.django", "celery.worker.autoscale", "celery.worker.components"),
    *("celery.worker.consumer", "celery.worker.strategy", "kombu.transport.pyamqp", "kombu.transport.redis"),
    *("billiard.popen_fork", "celery_ratelimit.task", "celery_ratelimit.worker.bootstep", "benchmarks.records"),
]

__all__ = ["StartedWorker", "WorkerStarter", "can_start"]


def can_start(app: str, options: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a worker may be forked: not if modules are patched before Celery is imported, or are to be absent."""
    is_patched = "PYTHONPATH" in env or any("gevent" in each or "eventlet" in each for each in options)
    return not is_patched and app != "tests.apps.uninstalled"


class StartedWorker:
    """A worker process, as far as it is used here like a :class:`subprocess.Popen`."""

    def __init__(self, starter: WorkerStarter, pid: int) -> None:
        self.pid, self._starter = pid, starter
        self._handle = os.pidfd_open(pid)
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            if not select.select([self._handle], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("celery", timeout or 0.0)
            os.close(self._handle)
            self._code = self._starter.ask(self.pid)
        return self._code

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class WorkerStarter:
    """The process that forks, of this test process. It ends with this one."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.worker_starter", str(theirs.fileno())]
        env = processes.environment()
        self._process = subprocess.Popen(command, cwd=processes.ROOT, env=env, pass_fds=[theirs.fileno()])
        theirs.close()
        atexit.register(self._close)

    def start(self, arguments: Sequence[str], log: Path, env: Mapping[str, str]) -> StartedWorker:
        """Start ``celery ARGUMENTS`` in a process group of its own, with its output in ``log``."""
        log.write_bytes(b"")
        return StartedWorker(self, self.ask([list(arguments), str(log), dict(env)]))

    def ask(self, request: object) -> int:
        """A new worker's process id, or the exit code of the process of that id."""
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        return int(self._socket.recv(20))

    def _close(self) -> None:
        self._socket.close()
        self._process.wait()


def _reap(codes: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])


def _serve(connection: socket.socket) -> None:
    """Fork for each request for a worker; return in the child, with what it has to do prepared."""
    codes: dict[int, int] = {}
    signal.signal(signal.SIGCHLD, lambda *_: _reap(codes))
    with connection.makefile("rb") as requests:
        for line in requests:
            request = json.loads(line)
            if isinstance(request, int):
                _reap(codes)
                connection.sendall(str(codes[request]).encode())
                continue
            arguments, log, env = request
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setsid()
                os.environ.update(env)
                output = os.open(log, os.O_WRONLY)
                nothing = os.open(os.devnull, os.O_RDONLY)
                for number, opened in enumerate([nothing, output, output]):
                    os.dup2(opened, number)
                sys.argv = ["celery", *arguments]
                return
            connection.sendall(str(pid).encode())
    os._exit(0)


if __name__ == "__main__":
    for module in IMPORTED:
        importlib.import_module(module)
    from celery.bin.celery import main

    from celery_ratelimit import Limiter

    Limiter.from_url("redis://127.0.0.1")  # has read the scripts
    gc.collect()
    gc.freeze()  # a worker collects garbage before it forks, and need not look at all of this

    with socket.socket(fileno=int(sys.argv[1])) as received:
        _serve(received)
    sys.exit(main())
