"""What pytest-celery's nodes ask of a container, of processes on this machine."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import celery

from benchmarks import processes
from tests.fleet_of import until

__all__ = ["LocalServer", "LocalWorker"]


class LocalServer:
    """A broker or a backend that runs already, and outlives the test."""

    status = "running"

    def __init__(self, name: str, url: str) -> None:
        self.name = self.id = name
        self.celeryconfig = {"url": url, "host_url": url}

    def ready(self) -> bool:
        return True

    def logs(self) -> str:
        return ""

    def teardown(self) -> None:
        pass


class LocalWorker:
    """A worker, started with the ordinary command.

    Args:
        number: of this worker among those of the test.
        directory: for its log.
        env: what it is told of its broker and backend.
    """

    def __init__(self, number: int, directory: Path, env: dict[str, str]) -> None:
        self.name, self.id = f"worker{number}", f"host{number}"
        self._log, self._env = directory / f"{self.name}.log", env
        self._earlier = ""
        self._start()

    # -- What CeleryTestWorker asks ----------------------------------------------------------------------------------

    def version(self) -> str:
        return str(celery.__version__)

    def log_level(self) -> str:
        return "INFO"

    def worker_name(self) -> str:
        return self.name

    def worker_queue(self) -> str:
        return "celery"

    @property
    def status(self) -> str:
        return "running" if self._process.poll() is None else "exited"

    def reload(self) -> None:
        pass

    def ready(self) -> bool:
        until(lambda: " ready." in self._written(), 40, f"{self.name} being ready")
        return True

    def logs(self) -> str:
        return self._earlier + self._written()

    def kill(self, signal: str) -> None:
        """To every process of the worker, or for it to stop in order."""
        number = _number(signal)
        if number == _number("SIGTERM"):
            self._process.send_signal(number)
        else:
            os.killpg(self._process.pid, number)
        self._process.wait(30)

    def restart(self, timeout: float) -> None:
        processes.stop([self._process], grace=timeout)
        self._earlier = self.logs()
        self._start()

    def teardown(self) -> None:
        processes.stop([self._process], grace=0)

    def _start(self) -> None:
        command = [sys.executable, "-m", "celery", "-A", "tests.smoke.app", "worker", "-c", "2", "--without-mingle"]
        self._process = processes.spawn(
            [*command, "-l", self.log_level(), "-n", f"{self.name}@{self.id}", "-Q", self.worker_queue()],
            self._log,
            self._env,
        )

    def _written(self) -> str:
        return self._log.read_text(errors="replace")


def _number(name: str) -> int:
    return int(getattr(signal, name))
