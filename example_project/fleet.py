"""What the demo runs: a store, an upstream, and the workers of one app after another."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from celery_ratelimit.testing import embedded_server, free_port

from . import measure
from .client import request
from .processes import Child, ChildError, Interrupts, stop
from .results import Call

ROOT = Path(__file__).resolve().parents[1]
START_TIMEOUT = 20.0  # seconds
WORKERS, PROCESSES = 2, 2


class Fleet:
    """An embedded server and the upstream, which stay, and workers, which come and go.

    Whatever it has started, ``stack`` stops: workers first, then the upstream, then the server.
    """

    def __init__(self, interrupts: Interrupts, stack: contextlib.ExitStack, directory: Path) -> None:
        self._interrupts = interrupts
        self._stack = stack
        self._directory = directory
        self._workers: list[Child] = []
        with interrupts.held():
            try:
                server = stack.enter_context(embedded_server())
            except RuntimeError as error:
                raise ChildError("the embedded server did not start", str(error)) from error
        self._broker_url = server.url
        self._measure_url = server.url.removesuffix("/0") + "/1"  # apart from the limiter's own keys
        port = free_port()
        self._upstream_url = f"http://127.0.0.1:{port}"
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CELERY_")},
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "CELERY_BROKER_URL": self._broker_url,
            "RATELIMIT_URL": self._broker_url,
            "MEASURE_URL": self._measure_url,
            "UPSTREAM_URL": self._upstream_url,
        }
        self._start_upstream(port)
        stack.callback(self.stop_workers)

    def _start_upstream(self, port: int) -> None:
        with self._interrupts.held():
            self._upstream = self._child("upstream", "-m", "example_project.upstream", "--port", str(port))
            self._stack.callback(stop, [self._upstream])
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            self.check()
            with contextlib.suppress(ChildError):
                self._ask("GET", "/stats")
                return
            time.sleep(0.05)
        raise ChildError("the upstream does not start", self._upstream.tail())

    def reset(self) -> None:
        """Empty the store and the upstream's record."""
        with redis.Redis.from_url(self._broker_url) as client:
            client.flushall()
        self._ask("POST", "/reset")

    def send(self, task: str, calls: Iterable[Sequence[Any]]) -> None:
        """Send the task with each of these arguments."""
        app = Celery(set_as_current=False)
        # The URL is given here and not to Celery(), where the user's own CELERY_BROKER_URL would win.
        with app.connection_for_write(self._broker_url) as connection:
            producer = app.amqp.Producer(connection)
            for args in calls:
                app.send_task(task, args=args, producer=producer, ignore_result=True)

    def start_workers(self, app: str) -> None:
        """Two ordinary workers of two processes each."""
        for number in range(1, WORKERS + 1):
            name = f"{app.rpartition('.')[2]}-worker-{number}"
            options = ["--concurrency", str(PROCESSES), "--hostname", f"{name}@%h", "--loglevel", "WARNING"]
            with self._interrupts.held():
                worker = ["-m", "celery", "-A", app, "worker", *options, "-I", measure.__name__]
                self._workers.append(self._child(name, *worker))

    def check(self) -> None:
        """Raises :class:`ChildError` if the upstream or a worker has ended."""
        for child in (self._upstream, *self._workers):
            child.check()

    def log(self) -> str:
        """The end of the first worker's log."""
        return self._workers[0].tail() if self._workers else ""

    def stop_workers(self) -> None:
        with self._interrupts.held():
            stop(self._workers)
            self._workers.clear()

    def counts(self) -> tuple[int, int]:
        """Calls accepted and calls refused so far."""
        services = self._ask("GET", "/stats").values()
        return sum(each["accepted"] for each in services), sum(each["refused"] for each in services)

    def calls(self) -> tuple[Call, ...]:
        """Every call so far, in order of arrival."""
        return tuple(Call(*record) for record in self._ask("GET", "/calls"))

    def deliveries(self) -> int:
        """Messages that the workers have received so far."""
        return measure.deliveries(self._measure_url)

    def _ask(self, method: str, path: str) -> Any:
        try:
            _, body = request(method, path, self._upstream_url)
        except OSError as error:
            raise ChildError(f"the upstream does not answer ({error})", self._upstream.tail()) from error
        return json.loads(body)

    def _child(self, name: str, *arguments: str) -> Child:
        return Child(name, arguments, self._env, self._directory)
