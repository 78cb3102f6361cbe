"""The production app of the example project, with notes of what it does; as a program it sends the work.

The upstream is a function here: it notes each call, takes a while, and fails every seventh call of a limited task once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from celery import current_task

from example_project import production

app = production.app
app.conf.update(
    broker_url=os.environ["TEST_BROKER"],
    result_backend=os.environ["TEST_BACKEND"],
    ratelimit_url=os.environ["TEST_BACKEND"],
    broker_connection_retry_on_startup=True,
)
app.conf.update(json.loads(os.environ["TEST_CONF"]))
if app.conf.broker_url.startswith("redis:"):  # by this name the store tells the connections of one worker
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, "client_name": os.environ["TEST_WORKER"]}

#: Seconds that a call takes.
TAKES = {"reports": 0.5, "events": 0.0}


def note(**what: Any) -> None:
    """Append a line to this process's file by one write, which is there whole even if the process is killed."""
    path = Path(os.environ["TEST_RECORDS"], f"{os.getpid()}.notes")
    with path.open("ab", buffering=0) as file:
        file.write(json.dumps({**what, "at": time.time()}).encode() + b"\n")


def call(path: str) -> None:
    request = current_task.request
    permit = (request.properties or {}).get("ratelimit_permit") or {}
    common = {"path": path, "worker": os.environ["TEST_WORKER"], "run": f"{request.id} {time.monotonic_ns()}"}
    note(kind="began", granted_at=permit.get("granted_at", 0) / 1e6, **common)
    service = path.split("/")[1]
    time.sleep(TAKES.get(service, 0.01))
    number = int(path.rpartition("-")[2]) if "-" in path else -1
    if service in ("stripe", "mail") and number % 7 == 0 and not request.retries:
        raise OSError("the upstream has failed")
    note(kind="done", **common)


production.call = call

if __name__ == "__main__":
    urls = {"CELERY_BROKER_URL": app.conf.broker_url, "RESULT_BACKEND": app.conf.result_backend}
    subprocess.run([sys.executable, "-m", "example_project.production"], env={**os.environ, **urls}, check=True)
    for event in range(int(sys.argv[1])):  # throughout: 25 a second
        note(kind="sent", path=f"/events/{event}")
        production.track.delay(event)
        time.sleep(0.04)
