"""The page as people start it: ``celery -A … ratelimit web`` on a free port; and parked tasks for it to show."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from celery import Celery

from celery_ratelimit.backlog.backlog import ToPark, backlog_of

__all__ = ["Served", "park", "served"]


@dataclass
class Served:
    """A page that is being served.

    Attributes:
        port: on 127.0.0.1.
        process: that serves it.
        said: what it has written so far.
    """

    port: int
    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def served(app: str, *options: str, **env: str) -> Iterator[Served]:
    """Serve an app's limits; at the end the process has to go by itself."""
    command = [sys.executable, "-m", "celery", "-A", app, "ratelimit", "web", "--port", "0", *options]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **env}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert process.stdout
    said: list[str] = []
    try:
        for line in process.stdout:
            said.append(line)
            if found := re.match(r"http://\S+:(\d+)/", line):
                reader = threading.Thread(target=lambda: said.extend(process.stdout or ()), daemon=True)
                reader.start()
                yield Served(int(found[1]), process, said)
                process.send_signal(signal.SIGTERM)
                process.wait(60)
                reader.join(60)
                return
        raise AssertionError("".join(said))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def park(app: Celery, name: str, task: str, number: int) -> None:
    """So many tasks are parked for a limit, as a worker parks them, and some worker has it."""
    messages = []
    for n in range(number):
        id = f"{n:08x}-5c1e-4f4a-9a51-0d3d5fbc{n:04x}"
        marker = {"queue": "celery", "eta": None, "exchange": "", "routing_key": "celery", "id": f"{id}~0@celery"}
        headers: dict[str, Any] = {"id": id, "task": task, "argsrepr": f"({n},)", "kwargsrepr": "{'tenant_id': 'acme'}"}
        headers["celery-ratelimit-return"] = marker
        parcel = {
            "id": id,
            "to": "celery",
            "headers": headers,
            "body": "",
            "priority": 0,
            "expires": None,
            "properties": {},
        }
        since = int(time.time() * 1e6) - 5_000_000 - 40_000 * (number - n)
        messages.append(ToPark(f"{id}~0@celery", 1, json.dumps(parcel), 1, "t", since, task=id, queue="celery"))
    parking = backlog_of(app)
    parking.register.seen([name], [])
    parking.park({(name, ""): messages})
