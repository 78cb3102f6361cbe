"""Scenario ``upstream``: each task calls an HTTP server that enforces a quota by a limiter not ours."""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import fleet, processes
from celery_ratelimit.testing import free_port

BURST = 5  # calls that the upstream allows at once


def run(
    variants: Sequence[str], *, tasks: int, rate: int, repeat: int, say: Callable[[str], None]
) -> list[dict[str, object]]:
    """``tasks`` calls by each variant, counting those refused. A refused call is not repeated."""
    with _upstream(rate) as address:
        return fleet.run(
            variants,
            tasks=tasks,
            rate=rate,
            repeat=repeat,
            say=say,
            upstream=address,
            before=lambda: time.sleep(1.0),  # the upstream's bucket fills up between two runs
        )


@contextlib.contextmanager
def _upstream(rate: int) -> Iterator[str]:
    """The address of a running upstream, in a process of its own, gone at the end of the block."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="celery-ratelimit-bench-") as directory:
        log = Path(directory, "upstream.log")
        command = [sys.executable, "-m", "benchmarks.upstream_server", str(port), str(rate), str(BURST)]
        server = processes.spawn(command, log, {})
        try:
            deadline = time.monotonic() + 10
            while not _answers(port):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the upstream did not start:\n{log.read_text()}")
                time.sleep(0.05)
            yield f"127.0.0.1:{port}"
        finally:
            processes.stop([server])


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/health")
        return bool(json.loads(connection.getresponse().read())["ok"])
    except OSError:
        return False
    finally:
        connection.close()
