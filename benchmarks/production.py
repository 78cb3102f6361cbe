"""The production app of the example project, three workers, on one store: how long unlimited tasks wait to start.

    python -m benchmarks.production [--events 400]

The work is that of ``example_project.production.send``; an unlimited task is sent 25 times a second meanwhile, from the
first moment on, in which the whole work is in the queues. It waits from its sending to the start of its body.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.workers import STARTUP, Fleet

APP = "benchmarks.apps.production"
#: The workers' options, as docs/production.md has them.
WORKERS = {
    "a": ("-c", "2", "-Q", "celery"),
    "b": ("-c", "3", "-Q", "celery,reports"),
    "c": ("-c", "3", "-Q", "emails,reports"),
}
#: Seconds that a run may take; and in which the workers read what is in their queues.
SECONDS, READ = 60.0, 2.0

Note = dict[str, Any]


def notes(directory: Path, kind: str) -> list[Note]:
    """What the app has noted, the earliest first. A process that is killed while it writes leaves half a line."""
    lines = [line for path in directory.glob("*.notes") for line in path.read_text().split("\n")[:-1]]
    found = [note for note in map(json.loads, lines) if note["kind"] == kind]
    return sorted(found, key=lambda note: float(note["at"]))


def count(directory: Path, kind: str) -> int:
    return sum(path.read_bytes().count(f'"kind": "{kind}"'.encode()) for path in directory.glob("*.notes"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=400)
    options = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.1f}")
    with Fleet("production", rate=0) as fleet:
        env = {"TEST_BROKER": fleet.url, "TEST_BACKEND": fleet.url, "TEST_RECORDS": str(fleet.directory)}
        env["TEST_CONF"] = "{}"
        for number, (name, given) in enumerate(WORKERS.items()):
            command = [sys.executable, "-m", "celery", "-A", APP, "worker", "-l", "INFO", "-n", f"{name}@%h", *given]
            fleet.workers.append(processes.spawn(command, fleet.log(number), {**env, "TEST_WORKER": name}))
        fleet.wait(lambda: all(" ready." in fleet.log(n).read_text() for n in range(len(WORKERS))), STARTUP, every=0.1)
        command = [sys.executable, "-m", APP, str(options.events)]
        sender = processes.spawn(command, fleet.directory / "sender.log", {**env, "TEST_WORKER": "sender"})
        fleet.wait(lambda: sender.poll() is not None and fleet.drained(), SECONDS, every=0.2)
        processes.stop([sender])
        began, sent = notes(fleet.directory, "began"), notes(fleet.directory, "sent")
    for line in _report(began, sent):
        print(line)


def _report(began: list[Note], sent: list[Note]) -> Iterator[str]:
    at = {note["path"]: note["at"] for note in reversed(began)}
    waits = [(note["at"] - sent[0]["at"], at[note["path"]] - note["at"]) for note in sent if note["path"] in at]
    for name, several in (
        (f"sent in the first {READ:g} s, behind all of the work", [wait for after, wait in waits if after < READ]),
        ("sent later", [wait for after, wait in waits if after >= READ]),
    ):
        several.sort()
        p50, p95, p99 = (1000 * several[int(share * len(several))] for share in (0.5, 0.95, 0.99))
        yield (
            f"{len(several)} unlimited tasks {name}: {p50:.0f} ms (median), {p95:.0f} ms (p95), {p99:.0f} ms (p99) "
            "from send to start"
        )
    if len(waits) < len(sent):
        yield f"{len(sent) - len(waits)} unlimited tasks have not started"


if __name__ == "__main__":
    main()
