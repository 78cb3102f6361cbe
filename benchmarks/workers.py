"""A broker of its own, a backlog and a fleet of ordinary workers, for the length of one run."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import redis
from celery import Celery

from benchmarks import TASK, processes, records
from celery_ratelimit.testing import embedded_server

QUEUE = "celery"  # Celery's default queue: the workers get no -Q
STARTUP = 60.0  # seconds within which a worker must have begun, or its log is shown
SCRIPT_COMMANDS = ("eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro")


class Fleet:
    """One variant's run: an embedded server as broker, and workers on it, all gone at the end of the block.

    Args:
        variant: the module in ``benchmarks/apps``.
        rate: tasks a second for the whole fleet.
        workers, processes: how many workers, and how many pool processes each has.
        upstream: ``host:port`` that the task body calls, or nothing.
    """

    def __init__(self, variant: str, *, rate: int, workers: int = 2, processes: int = 2, upstream: str = "") -> None:
        self.variant, self.rate, self.size, self.processes = variant, rate, workers, processes
        self.upstream = upstream
        self.queues: Sequence[str] = ()  # by default the workers get no -Q
        self.options: Sequence[str] = ()  # nor anything else
        self.env: dict[str, str] = {}  # for the app's module
        self.workers: list[subprocess.Popen[bytes]] = []
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> Fleet:
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(embedded_server())
            self.url, self.port = server.url, server.port
            self.redis: Any = stack.enter_context(contextlib.closing(redis.Redis.from_url(server.url)))
            self.directory = Path(tempfile.mkdtemp(prefix="celery-ratelimit-bench-"))
            stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
            self.sender = Celery("sender", broker=server.url, set_as_current=False)
            stack.callback(self.sender.close)
            stack.callback(lambda: processes.stop(self.workers))
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.__exit__(kind, error, trace)

    def send(self, indices: Iterable[int], producer: Any = None) -> None:
        """Send one task per index, in that order, over one connection."""
        with self.sender.producer_or_acquire(producer) as kept:
            for index in indices:
                self.sender.send_task(TASK, args=[index], producer=kept)

    def start(self) -> None:
        """Start the workers with the ordinary command: no option but the pool's size, a name and what was set."""
        env = {
            "BENCH_BROKER": self.url,
            "BENCH_RECORDS": str(self.directory),
            "BENCH_RATE": str(self.rate),
            "BENCH_WORKERS": str(self.size),
            "BENCH_UPSTREAM": self.upstream,
            **self.env,
        }
        for number in range(self.size):
            command = [sys.executable, "-m", "celery", "-A", f"benchmarks.apps.{self.variant}", "worker"]
            command += ["-c", str(self.processes), "-n", f"bench{number}@%h"]
            if self.queues:
                command += ["-Q", ",".join(self.queues)]
            command += self.options
            self.workers.append(processes.spawn(command, self.log(number), env))

    def log(self, number: int) -> Path:
        return self.directory / f"worker{number}.log"

    def started(self) -> int:
        """How many task bodies have started."""
        return sum(self.started_by_process().values())

    def started_by_process(self) -> dict[int, int]:
        return records.count(self.directory)

    def starts(self) -> list[records.Start]:
        return records.read(self.directory)

    def wait(self, done: Callable[[], bool], timeout: float, *, every: float = 0.005) -> bool:
        """Wait until ``done()``; False if that takes over ``timeout`` seconds. A dead worker is an error."""
        for _ in self.ticks(timeout, every):
            if done():
                return True
        return done()

    def ticks(self, timeout: float, every: float) -> Iterator[float]:
        """Yield the time left, every so often, until there is none. A dead worker is an error."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            self._check_alive()
            yield left
            time.sleep(every)

    def wait_for_first(self, count: int = 1) -> None:
        """Wait until ``count`` bodies have started, for as long as a worker may take to come up."""
        if not self.wait(lambda: self.started() >= count, STARTUP):
            raise RuntimeError(f"{self.variant}: no task started within {STARTUP:g} s\n{self._logs()}")

    def drained(self) -> bool:
        """Nothing is queued and nothing is unacknowledged."""
        queued, unacked = self.redis.pipeline(transaction=False).llen(QUEUE).zcard("unacked_index").execute()
        return not queued and not unacked

    def unacked(self) -> int:
        return int(self.redis.zcard("unacked_index"))

    def cpu(self) -> float:
        """Seconds of CPU used so far by every process of every worker."""
        return sum(processes.cpu_seconds(worker.pid) for worker in self.workers)

    def calls(self) -> dict[str, int]:
        """How often each command has been called, inside of scripts too, as the server counts."""
        stats = self.redis.info("commandstats")
        return {name.removeprefix("cmdstat_"): int(value["calls"]) for name, value in stats.items()}

    def _check_alive(self) -> None:
        for worker in self.workers:
            if worker.poll() is not None:
                raise RuntimeError(f"{self.variant}: a worker exited with {worker.returncode}\n{self._logs()}")

    def _logs(self) -> str:
        logs = [self.log(number).read_text(errors="replace") for number in range(len(self.workers))]
        return "\n".join(log[-3000:] for log in logs)


def scripts(calls: dict[str, int]) -> int:
    """How many scripts were run, whatever the command."""
    return sum(calls.get(name, 0) for name in SCRIPT_COMMANDS)


def pushes(calls: dict[str, int]) -> int:
    """How many messages were put into a queue: kombu publishes to the left, and restores to the right.

    Less what each worker pushes when it starts, to see whether it may: ``lua/check_permissions.lua``, which alone trims
    a list.
    """
    return calls.get("lpush", 0) + calls.get("rpush", 0) - 2 * calls.get("ltrim", 0)
