"""Scenario ``upstream``: each task calls an HTTP server that enforces a quota by a limiter not ours.

``python -m benchmarks.upstream``: an upstream refuses calls, and the tasks raise ``UpstreamThrottled``.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import fleet, measures, processes
from benchmarks.workers import Fleet
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


# -- Refused calls -----------------------------------------------------------------------------------------------------


def pause(tasks: int = 1500, rate: int = 100, seconds: float = 5.0, *, late: bool = False) -> str:
    """One call is refused, with ``Retry-After``: what starts during the pause, and the share of the rate afterwards."""
    with Fleet("refused", rate=rate) as workers:
        workers.env = {"BENCH_REFUSES": "once", "BENCH_RETRY_AFTER": str(seconds), "BENCH_LATE": "1" if late else ""}
        workers.send(range(tasks))
        workers.start()
        workers.wait_for_first()
        workers.wait(lambda: workers.started() > tasks, 3 * tasks / rate + seconds)
        starts = sorted(workers.starts(), key=lambda start: start.at)
    refused = next(start.at for start in starts if start.status == 429)
    during = [start.at - refused for start in starts if 0 < start.at - refused < seconds - 0.1]
    after = [start for start in starts if start.at - refused >= seconds - 0.1]
    return (
        f"Retry-After {seconds:g}, {'late' if late else 'early'} acknowledgement: {len(during)} calls started after "
        f"the refusal, the last {max(during, default=0.0):.3f} s after it; the first afterwards after "
        f"{after[0].at - refused:.3f} s; share of the rate {measures.share_of_rate(after, rate):.4f}; order "
        f"{[start.index for start in after[:4]]}"
    )


def tenth(tasks: int = 1000, rate: int = 100, seconds: float = 0.05) -> str:
    """Each tenth call is refused by chance: whether each task is done once, and how far from its turn."""
    with Fleet("refused", rate=rate) as workers:
        workers.env = {"BENCH_REFUSES": "tenth", "BENCH_RETRY_AFTER": str(seconds)}
        workers.send(range(tasks))
        workers.start()
        workers.wait_for_first()
        workers.wait(lambda: sum(start.status != 429 for start in workers.starts()) >= tasks, 60, every=0.5)
        starts = sorted(workers.starts(), key=lambda start: start.at)
    done = [start for start in starts if start.status != 429]
    indices = sorted(start.index for start in done)
    return (
        f"each tenth refused for {seconds:g} s: {len(starts)} calls, each task done once: "
        f"{indices == list(range(tasks))}, retried: {sum(start.status for start in done)}, displacement (median, p99): "
        f"{measures.displacement(done)}"
    )


if __name__ == "__main__":
    print(pause(), pause(late=True), tenth(), sep="\n")
