"""What a decision costs, beside what it cost in another version: each algorithm, three in one; granted, refused.

    python -m benchmarks.decision --before CHECKOUT [--pairs 100] [--calls 200] [ROW …]
    python -m benchmarks.decision --before CHECKOUT --instructions [ROW …]

granted   each call is
refused   each is, and keeps no slot
waits     each is, for it comes before its turn; it keeps a slot

CHECKOUT is a work tree of this repository in which `make .venv/.installed` was run, such as `git worktree add` makes. A
process of each version asks the same server, one at a time, in blocks of so many calls: before, after, after, before.
What is printed is the median of after / before over all pairs of blocks that lie beside each other: whatever else the
machine does falls on both. Behind it: how far it may be off (two standard errors of a median), and microseconds of a
call, before and after. There are four views: the client's time and its CPU time; the time that the server gives for the
script (`commandstats`); the CPU time of the server's main thread (Linux only).

With --instructions the server runs under valgrind. Printed is how many instructions it executes for a script, before
and after, and the ratio: nearly the same at each run, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

VIEWS = ("client", "client CPU", "server", "server CPU")
ALGORITHMS = ("token_bucket", "fixed_window", "sliding_window", "sliding_log", "leaky_bucket", "concurrency")
STATES = ("granted", "refused", "waits")
MIXED = "mixed"  # a token bucket, a sliding log and Concurrency in one decision
ROWS = tuple(f"{algorithm}/{state}" for algorithm in (*ALGORITHMS, MIXED) for state in STATES)


class Block(NamedTuple):
    """Seconds that so many calls took, in each view."""

    client: float
    client_cpu: float
    server: float
    server_cpu: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"a part of one of: {', '.join(ROWS)}; default: all")
    parser.add_argument("--before", type=Path, required=True, metavar="CHECKOUT")
    parser.add_argument("--after", type=Path, default=Path(__file__).parent.parent, metavar="CHECKOUT")
    parser.add_argument("--pairs", type=int, default=100, help="of blocks, a row (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=200, help="a block (default: %(default)s)")
    parser.add_argument("--instructions", action="store_true", help="count instructions, and take no times")
    options = parser.parse_args()
    rows = [row for row in ROWS if not options.rows or any(part in row for part in options.rows)]
    with tempfile.TemporaryDirectory() as directory:
        if options.instructions:
            _count(rows, options.before, options.after, Path(directory))
        else:
            _time(rows, options.before, options.after, options.pairs, options.calls)


def _time(rows: Sequence[str], before: Path, after: Path, pairs: int, calls: int) -> None:
    from celery_ratelimit.testing import embedded_server

    print(f"{'':24}" + "".join(f"{view:^26}" for view in VIEWS), flush=True)
    with embedded_server() as server, _asker(before, server.url, "a") as old, _asker(after, server.url, "b") as new:
        take = _taker(server.url)
        for row in rows:
            print(f"{row:24}" + _measured(row, old, new, take, pairs, calls), flush=True)


def _count(rows: Sequence[str], before: Path, after: Path, directory: Path) -> None:
    """By valgrind's callgrind, from where the server begins with a script to its reply."""
    import redis

    from celery_ratelimit.testing import EmbeddedServer

    wrapped = directory / "server"
    options = f"--callgrind-out-file={directory}/%p --collect-atstart=no --toggle-collect=evalShaCommand"
    server = EmbeddedServer()
    wrapped.write_text(f'#!/bin/sh\nexec valgrind --tool=callgrind {options} {server.binary} "$@"\n')
    wrapped.chmod(0o700)
    server.binary = str(wrapped)
    try:
        server.start(timeout=60.0)
        url = f"{server.url}?socket_timeout=60"
        with redis.Redis.from_url(url) as client:
            pid: Any = client.info("server")["process_id"]  # type: ignore[index]

        def control(what: str) -> None:
            subprocess.run(["callgrind_control", what, str(pid)], check=True, capture_output=True)

        def count(asker: Any, row: str, calls: int) -> float:
            asker.begin(row)
            asker.ask(100)  # connections, scripts and caches
            control("--zero")
            asker.ask(calls)
            control("--dump")
            newest = max(directory.glob(f"{pid}.*"), key=lambda path: int(path.suffix[1:]))
            found = re.search(r"^(?:totals|summary): (\d+)", newest.read_text(), re.MULTILINE)
            assert found is not None, f"{newest} has no total"
            return int(found[1]) / calls

        with _asker(before, url, "a") as old, _asker(after, url, "b") as new:
            for row in rows:
                was, now = count(old, row, 300), count(new, row, 300)
                print(f"{row:24}{was:10.0f}{now:10.0f}{now / was:8.3f}", flush=True)
    finally:
        server.close()


def _measured(row: str, before: _Asker, after: _Asker, take: _Take, pairs: int, calls: int) -> str:
    for asker in (before, after):
        take(asker, row, calls)  # connections, scripts and caches
    blocks: list[tuple[Block, Block]] = []
    for number in range(pairs):
        if number % 2:
            late = take(after, row, calls)
            blocks.append((take(before, row, calls), late))
        else:
            early = take(before, row, calls)
            blocks.append((early, take(after, row, calls)))
    text = ""
    for view in range(len(VIEWS)):
        ratios = sorted(after[view] / before[view] for before, after in blocks if before[view])
        if not ratios:
            text += f"{'':26}"
            continue
        # The interquartile range of a normal distribution is 1.35 of its deviation, a median's error 1.25 of a mean's.
        spread = (ratios[len(ratios) * 3 // 4] - ratios[len(ratios) // 4]) / 1.35
        error = 2 * 1.25 * spread / len(ratios) ** 0.5
        was, now = (median(pair[side][view] for pair in blocks) / calls * 1e6 for side in (0, 1))
        text += f"{median(ratios):7.3f} ±{error:.3f} {was:5.1f} {now:5.1f}"
    return text


def _taker(url: str) -> _Take:
    """Has a block asked, and tells what it took."""
    import redis

    stats: Any = redis.Redis.from_url(url)
    pid = stats.info("server")["process_id"]
    thread = Path(f"/proc/{pid}/task/{pid}/schedstat")

    def now() -> tuple[float, float]:
        said = stats.info("commandstats").get("cmdstat_evalsha", {"usec": 0})
        return said["usec"] / 1e6, int(thread.read_text().split()[0]) / 1e9 if thread.exists() else 0.0

    def take(asker: _Asker, row: str, calls: int) -> Block:
        asker.begin(row)
        began, began_cpu = now()
        client, client_cpu = asker.ask(calls)
        ended, ended_cpu = now()
        return Block(client, client_cpu, ended - began, ended_cpu - began_cpu)

    return take


class _Asker:
    """A process of one version that asks when it is told to, see `ask`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from = process.stdin, process.stdout

    def begin(self, row: str) -> None:
        self._to.write(f"begin {row}\n")
        self._from.readline()

    def ask(self, calls: int) -> tuple[float, float]:
        """Seconds and CPU seconds that so many calls took."""
        self._to.write(f"ask {calls}\n")
        seconds, cpu = map(float, self._from.readline().split())
        return seconds, cpu


_Take = Callable[[_Asker, str, int], Block]


@contextmanager
def _asker(checkout: Path, url: str, side: str) -> Iterator[_Asker]:
    python = checkout.resolve() / ".venv" / "bin" / "python"
    command = [str(python), str(Path(__file__).resolve()), "--ask", url, side]
    process = subprocess.Popen(
        command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        yield _Asker(process)
    finally:
        process.kill()
        process.wait()


# -- In a process of its own, by either version: nothing but what both have -------------------------------------------


def ask(url: str, side: str) -> None:
    """Reads what to do from stdin, a line each, and answers with the seconds and the CPU seconds that it took."""
    from celery_ratelimit import Limiter

    limiter = Limiter.from_url(url, prefix=f"{side}:bench")
    call: Callable[[], Any] = lambda: None  # noqa: E731
    gc.disable()
    for line in sys.stdin:
        verb, what = line.split()
        if verb == "begin":
            call = _call_of(limiter, what)
            gc.collect()
            print(flush=True)
        else:
            calls = range(int(what))
            began, began_cpu = time.perf_counter(), time.process_time()
            for _ in calls:
                call()
            print(time.perf_counter() - began, time.process_time() - began_cpu, flush=True)


def _call_of(limiter: Any, row: str) -> Callable[[], Any]:
    """A call with an outcome that is always the same, on a bucket in which nothing else has happened."""
    from celery_ratelimit import Concurrency, Limit

    try:
        from celery_ratelimit.limiter.limit_request import LimitRequest
    except ModuleNotFoundError:  # an earlier version
        from celery_ratelimit.limiter.demand import Demand as LimitRequest

    algorithm, state = row.split("/")
    for key in limiter.client.scan_iter(match=f"{limiter.prefix}:*", count=1000):
        limiter.client.delete(key)
    granted = state == "granted"

    def limit_of(method: str, name: str) -> Any:
        if method == "concurrency":
            return Concurrency(1_000_000 if granted else 1, name=name, lease=3600)
        if not granted:
            return Limit("1/h", algorithm=method, name=name)
        return Limit("1000000/s", algorithm=method, name=name, burst=1000 if method == "token_bucket" else 1)

    methods = ("token_bucket", "sliding_log", "concurrency") if algorithm == MIXED else (algorithm,)
    limits = [limit_of(method, f"bench{number or ''}") for number, method in enumerate(methods)]
    asked = limits if len(limits) > 1 else limits[0]
    acquire = limiter.acquire
    for _ in range(2):
        decision = acquire(asked)
    assert decision.allowed == granted, decision
    if state != "waits":
        return lambda: acquire(asked)
    # A call that keeps a slot, and asks again before its turn.
    demands = tuple(LimitRequest(limit, limit.name) for limit in limits)
    return lambda: limiter._asker.ask(demands, id="waits", claim=1e6)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
        ask(*sys.argv[2:])
    else:
        main()
