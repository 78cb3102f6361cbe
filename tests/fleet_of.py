"""Real workers for tests: ordinary ``celery worker`` processes on a real broker, all gone at the end of the block."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from celery import Celery
from celery.result import AsyncResult
from kombu import pools

from benchmarks import processes, records
from celery_ratelimit import Limiter, Throttled
from celery_ratelimit.lots import ParkingLots
from celery_ratelimit.testing import EmbeddedServer
from tests.worker_starter import StartedWorker, WorkerStarter, can_start

__all__ = [
    *("AGAIN", "Fleet", "NewFleet", "assert_never_over", "assert_over", "errors", "new_rates", "outcome", "pool_jobs"),
    *("run_celery", "until"),
]

#: How often the time that is plenty on a machine without other work a busy one has. Nothing is judged by a time-out but
#: that a test does not hang: what broken code would do later takes longer than this, or for ever.
PATIENCE = 4

Worker = subprocess.Popen[bytes] | StartedWorker
worker_starter = functools.cache(WorkerStarter)

#: How often a throttled task may come to a worker once more: once. A busy machine, that is late for a task's slot, may
#: send it back another time; in proportion to the backlog it never is (law 3).
AGAIN = 2


def new_rates(limiter: Limiter, name: str, rates: Sequence[int], pause: float) -> None:
    """Store one rate a second after the other, eight times, and 100/s in the end."""
    for _ in range(8):
        for rate in rates:
            limiter.set_rate(name, f"{rate}/s", force=True)
            time.sleep(pause)
    limiter.set_rate(name, "100/s", force=True)


def until(done: Callable[[], Any], timeout: float, what: str = "what was waited for") -> None:
    """Wait until ``done()``; AssertionError after ``PATIENCE`` times ``timeout`` seconds."""
    deadline = time.monotonic() + PATIENCE * timeout
    while not done():
        assert time.monotonic() < deadline, f"{what} did not happen within {PATIENCE * timeout:g} s"
        time.sleep(0.01)


def assert_never_over(permits: Sequence[records.Start], rate: float, burst: int = 1) -> None:
    """Law 1: in no interval of any length T more than burst + rate * T, to the microsecond.

    For permits (``Fleet.permits()``), whose time is the store's: a busy machine may start a body late, never early.
    """
    assert permits, "no permit was noted"
    first = min(permit.at for permit in permits)
    times = sorted(permit.at - first for permit in permits)
    # The worst interval that ends with a permit is the one whose first permit is the furthest ahead of the rate.
    ahead = -float("inf")
    for number, at in enumerate(times):
        ahead = max(ahead, at * rate - number)
        most = burst + rate * 2e-6
        assert 1 + ahead - (at * rate - number) <= most, (
            f"permit {number} after {at:.3f} s: more than {burst} + {rate:g}/s"
        )


def assert_over(permits: Sequence[records.Start], rate: float, burst: int = 1) -> None:
    """Under a limit of ``rate`` these permits could not have been: in some interval there are more than that allows.

    What a busy machine cannot spoil about law 2: a fleet that wastes the half of every interval, or pays twice, never
    uses more than half of its rate. How much of it is used in all is for ``make bench`` to say.
    """
    try:
        assert_never_over(permits, rate, burst)
    except AssertionError:
        return
    raise AssertionError(f"{len(permits)} permits, and never more than {burst} + {rate:g}/s")


def errors(log: str) -> list[str]:
    """The lines of a worker's log that are errors. A broker's own INTERNAL_ERROR, which Celery connects anew for, is a
    warning.
    """
    return re.findall(r"^\[[^\]]*: (?:ERROR|CRITICAL)/.*", log, re.MULTILINE)


def outcome(result: AsyncResult) -> str:
    """What became of a task: ``done``, or ``throttled`` if it was given up."""
    try:
        result.get(timeout=20)
    except Throttled:
        return "throttled"
    return "done"


def run_celery(directory: Path, env: Mapping[str, str], *arguments: str) -> tuple[int, str]:
    """``celery arguments`` in a process of its own: its exit code, and what it has printed, with errors between."""
    log = directory / "command.log"
    code = worker_starter().start(arguments, log, env).wait(240)
    return code, log.read_text()


def pool_jobs(app: Celery, workers: int) -> int | None:
    """Tasks that the pools of so many workers have (``tests.apps.pool_jobs``); None if not all have answered."""
    replies = app.control.broadcast("pool_jobs", reply=True, timeout=2, limit=workers) if workers else []
    return sum(jobs for reply in replies for jobs in reply.values()) if len(replies) == workers else None


class Fleet:
    """Workers of ``tests.apps.fleet`` on one broker, and what they did.

    Args:
        server: broker, result backend, and limiter's store unless ``conf`` names another.
        directory: for logs and records.
        rate: the limit of the app's tasks.
        prefix: of the names of the tasks that are sent.
        broker: the address of another broker than ``server``.
        conf: settings of the app, and of who sends to it.
        install: whether the app calls ``install(app)``.
    """

    def __init__(
        self,
        server: EmbeddedServer,
        directory: Path,
        *,
        rate: str = "100/s",
        install: bool = False,
        app: str = "tests.apps.fleet",
        prefix: str = "tests.apps.fleet.",
        broker: str | None = None,
        **conf: Any,
    ) -> None:
        self.server, self.directory, self.app = server, directory, app
        self.env = {
            "TEST_BROKER": broker or server.url,
            "TEST_BACKEND": server.url,
            "TEST_RECORDS": str(directory),
            "TEST_RATE": rate,
            "TEST_CONF": json.dumps(conf),
            "TEST_INSTALL": "1" if install else "",
        }
        #: Options of every worker. Mingle waits a second for what the others know, which nothing here depends on.
        self.options: tuple[str, ...] = ("--without-mingle",)
        self.prefix = prefix
        #: Whose code the next workers run.
        self.root = processes.ROOT
        self.workers: list[Worker] = []
        pools.reset()  # an earlier test may have broken the connections that are kept for the same address
        self.sender = Celery("sender", broker=broker or server.url, backend=server.url, set_as_current=False)
        self.sender.conf.update(conf)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        processes.stop(self.workers, grace=0)  # what it was about has been judged; a warm shutdown takes seconds
        self.sender.close()

    def send(self, task: str, *args: Any, **options: Any) -> Any:
        """``task``: a name after ``prefix``, or a whole one, which has a dot."""
        name = task if "." in task or task == "whole" else self.prefix + task
        return self.sender.send_task(name, args=args, **options)

    def send_each(self, task: str, indexes: Iterable[int], *args: Any, **options: Any) -> list[Any]:
        """Send a task for each index, all with the same arguments after it."""
        return [self.send(task, index, *args, **options) for index in indexes]

    def start(self, *options: str, number: int = 1) -> None:
        """Start workers with the ordinary command and return when each is ready."""
        for _ in range(number):
            self.launch(*options)
        for index, worker in enumerate(self.workers):
            until(lambda i=index, w=worker: " ready." in self.log(i) or w.poll() is not None, 40, "its start")
            assert " ready." in self.log(index), f"worker {index} is not ready\n{self.log(index)}"

    def launch(self, *options: str) -> Worker:
        index = len(self.workers)
        command = ["-A", self.app, "worker", "-l", "INFO", "-n", f"w{index}@test"]
        defaults = [] if any(o.startswith("-c") for o in options) else ["-c", "2"]
        command += [*defaults, *self.options, *options]
        worker: Worker
        if self.root == processes.ROOT and can_start(self.app, command, self.env):
            worker = worker_starter().start(command, self._log(index), self.env)
        else:
            worker = processes.spawn([sys.executable, "-m", "celery", *command], self._log(index), self.env, self.root)
        self.workers.append(worker)
        return worker

    def kill(self, index: int) -> None:
        """SIGKILL to a worker and its pool processes at once."""
        os.killpg(self.workers[index].pid, signal.SIGKILL)
        self.workers[index].wait()

    def stop(self) -> None:
        """Stop the workers in order; AssertionError if one does not end.

        When no task is with a pool: Celery forgets one that is just being handed to a process. It runs, is delivered
        again as well, and the worker waits for it for half a minute (``AsynPool.flush``; docs/operations.md).
        """
        alive = sum(worker.poll() is None for worker in self.workers)
        until(lambda: pool_jobs(self.sender, alive) == 0, 20, "the pools being idle")
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for index, worker in enumerate(self.workers):
            until(lambda w=worker: w.poll() is not None, 20, f"the end of worker {index}\n{self.log(index)}")
        self.workers.clear()

    def asked(self, what: str) -> Any:
        """What one worker answers to ``inspect().<what>()``.

        It is asked until it answers: Celery says that it is ready before it has subscribed to what it can be asked.
        """
        answers: dict[str, Any] = {}

        def has_answered() -> bool:
            answers.update(getattr(self.sender.control.inspect(timeout=5, limit=1), what)() or {})
            return bool(answers)

        until(has_answered, 20, f"an answer to {what}")
        (answer,) = answers.values()
        return answer

    def wait_until_introduced(self) -> None:
        """Until each worker knows of the others; they have to log at level DEBUG."""
        others = len(self.workers) - 1
        for index in range(len(self.workers)):
            until(lambda i=index: self.log(i).count("joined the party") >= others, 20, "gossip")

    def log(self, index: int = 0) -> str:
        return self._log(index).read_text(errors="replace")

    def _log(self, index: int) -> Path:
        return self.directory / f"worker{index}.log"

    def starts(self) -> list[records.Start]:
        return records.read(self.directory)

    def permits(self) -> list[records.Start]:
        """When the permit of each body was good, by the store's clock. Every body must have started after its own."""
        starts, permits = self.starts(), records.read(self.directory / "permits")
        good: dict[int, list[float]] = {}
        for permit in permits:
            good.setdefault(permit.index, []).append(permit.at)
        for start in starts:
            if start.index in good:
                assert min(good[start.index]) <= start.at + 0.002, f"task {start.index} started before its permit"
        return permits

    def started(self) -> int:
        return sum(records.count(self.directory).values())

    def wait_for(self, count: int, timeout: float) -> list[records.Start]:
        """Wait until ``count`` bodies have started."""
        until(lambda: self.started() >= count, timeout, f"the start of {count} bodies")
        return self.starts()

    def send_in_turn(self, tasks: Sequence[str], number: int) -> list[Any]:
        """Send so many tasks, of one kind after the other; the index of each is its number."""
        return [self.send(tasks[index % len(tasks)], index) for index in range(number)]

    def wait_for_each(self, indexes: Iterable[int], timeout: float) -> None:
        """Wait until each of these tasks has started; AssertionError if one has started twice, or another one."""
        expected = sorted(indexes)
        assert sorted(start.index for start in self.wait_for(len(expected), timeout)) == expected

    def parking_lots(self) -> ParkingLots:
        """As somebody sees them who knows the names of the limits."""
        return ParkingLots(self.sender)

    def parked(self, name: str | None = None) -> int:
        """How many tasks are parked, of one limit or of all."""
        return sum(lot.parked for lot in self.parking_lots().lots(*([name] if name else [])))

    def assert_no_errors(self) -> None:
        for index in range(len(self.workers)):
            assert "Traceback" not in self.log(index)
            assert errors(self.log(index)) == []

    def signals(self) -> list[str]:
        path = self.directory / "signals"
        return path.read_text().splitlines() if path.exists() else []

    def sent_back(self) -> int:
        """How often a task came to a worker once more, by what the workers have logged."""
        logs = "".join(self.log(index) for index in range(len(self.workers)))
        received = re.findall(r"\[([0-9a-f-]{36})\] received", logs)
        return len(received) - len(set(received))


#: The fixture ``new_fleet``: a fleet on the store that tests share, with its records in the test's own directory.
NewFleet = Callable[..., Fleet]
