"""What pytest-celery's nodes ask of a container, of processes on this machine."""

from __future__ import annotations

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
    """A worker, started with the ordinary command, which has its log in ``directory``."""

    def __init__(self, number: int, directory: Path, env: dict[str, str]) -> None:
        self.name, self.id = f"worker{number}", f"host{number}"
        self._log = directory / f"{self.name}.log"
        command = [sys.executable, "-m", "celery", "-A", "tests.smoke.app", "worker", "-c", "2", "--without-mingle"]
        command += ["-l", self.log_level(), "-n", f"{self.name}@{self.id}", "-Q", self.worker_queue()]
        self._process = processes.spawn(command, self._log, env)

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
        until(lambda: " ready." in self.logs(), 40, f"{self.name} being ready")
        return True

    def logs(self) -> str:
        return self._log.read_text(errors="replace")

    def teardown(self) -> None:
        processes.stop([self._process], grace=0)
