"""What those who share a limit cost the store when they are parked and let out, beside another version of the scripts.

    python -m benchmarks.shares --before CHECKOUT [--shares 10000]

Instructions that the server executes for a script, under valgrind, for each task: nearly the same at each run, whatever
else the machine does. CHECKOUT is as in ``benchmarks.decision``. Its row is "before"; "alike" is this version where
nobody shares the limit; "fair" is with so many shares, each of which has tasks parked.

parked      one by one; and by the dozen
let out     nineteen at a look, as at 100/s; and one, as at 1/s
published   as many, that are at the broker again
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PARTS = ("parked", "by the dozen", "let out", "one a look", "published")
TASKS = 240  # in each part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, metavar="CHECKOUT")
    parser.add_argument("--shares", type=int, default=10_000)
    options = parser.parse_args()
    here = Path(__file__).parent.parent
    rows = {
        "before": measured(options.before, 0, options.shares),
        "alike": measured(here, 0, options.shares),
        "fair": measured(here, options.shares, options.shares),
    }
    print(f"{'':10}" + "".join(f"{part:>22}" for part in (*PARTS, "a task in all")))
    for name, row in rows.items():
        both = [(row[part], row[part] / rows["before"][part]) for part in PARTS]
        sums = [sum(each[part] for part in ("parked", "let out", "published")) for each in (row, rows["before"])]
        both.append((sums[0], sums[0] / sums[1]))
        print(f"{name:10}" + "".join(f"{count:13.0f} {ratio:8.3f}" for count, ratio in both))


def measured(checkout: Path, shares: int, tasks: int) -> dict[str, float]:
    """Instructions for a task, of each part."""
    with tempfile.TemporaryDirectory() as directory:
        python = checkout.resolve() / ".venv" / "bin" / "python"
        command = [str(python), str(Path(__file__).resolve()), "--act", directory, str(shares), str(tasks)]
        env = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
        done = subprocess.run(command, cwd=checkout, env=env, stdout=subprocess.PIPE, text=True, check=True)
        counts: dict[str, float] = json.loads(done.stdout)
        return counts


# -- In a process of its own, by either version: nothing but what both have -------------------------------------------


def act(directory: Path, shares: int, tasks: int) -> None:
    from celery_ratelimit import Limit, Limiter
    from celery_ratelimit.backlog.backlog import Backlog, ToPark
    from celery_ratelimit.limiter.limit_request import LimitRequest

    counts: dict[str, float] = {}
    with counting(directory) as (url, counted):
        limiter = Limiter.from_url(f"{url}?socket_timeout=60")
        parking, bucket = Backlog(limiter, "bench", 3600), ("bench", "")
        options: dict[str, Any] = {"fair": "{tenant}", "weights": {"t1": 2, "t2": 3}} if shares else {}
        made = 0

        def some(number: int) -> list[ToPark]:
            nonlocal made
            messages = []
            for each in range(made, made := made + number):
                parcel = {"id": f"{each}", "to": "q", "body": "x" * 300, "headers": {"id": f"{each}"}, "properties": {}}
                share = f"t{each * 7919 % shares}" if shares else None
                one = ToPark(f"{each}@q", 1, json.dumps(parcel), 1, "t", task=f"{each}", queue="q", share=share)
                messages.append(one)
            return messages

        def park(number: int) -> None:
            parking.park({bucket: some(number)})

        def demand(rate: str) -> LimitRequest:
            return LimitRequest(Limit(rate, name="bench", **options), "bench")

        def look(asked: LimitRequest) -> Any:
            limiter.client.delete("ratelimit:v1:{bench}::state", "ratelimit:v1:{bench}::slots")
            (looked,) = parking.take_due([asked])
            return looked.leaving

        for _ in range(tasks // 100):
            park(100)
        by_twenties, by_ones = demand("25/s" if shares else "19/s"), demand("1/2s")  # within 0.75 s, and within one
        for asked in (by_twenties, by_ones):
            parking.published({bucket: look(asked)})
        park(12)
        park(1)
        with counted() as result:
            for _ in range(TASKS):
                park(1)
        counts["parked"] = result() / TASKS
        with counted() as result:
            for _ in range(TASKS // 12):
                park(12)
        counts["by the dozen"] = result() / TASKS
        left = []
        with counted() as result:
            for _ in range(TASKS // 20):
                left.append(look(by_twenties))
        assert {len(each) for each in left} == {19}
        counts["let out"] = result() / sum(map(len, left))
        with counted() as result:
            for leaving in left:
                parking.published({bucket: leaving})
        counts["published"] = result() / sum(map(len, left))
        with counted() as result:
            ones = [look(by_ones) for _ in range(TASKS)]
        counts["one a look"] = result() / sum(map(len, ones))
    print(json.dumps(counts))


@contextmanager
def counting(directory: Path) -> Iterator[Any]:
    """A server under valgrind: its address, and what counts the instructions of scripts in a block."""
    import redis

    from celery_ratelimit.testing import EmbeddedServer

    server, wrapped = EmbeddedServer(), directory / "server"
    options = f"--callgrind-out-file={directory}/%p --collect-atstart=no --toggle-collect=evalShaCommand"
    wrapped.write_text(f'#!/bin/sh\nexec valgrind --tool=callgrind {options} {server.binary} "$@" 2>/dev/null\n')
    wrapped.chmod(0o700)
    server.binary = str(wrapped)
    try:
        server.start(timeout=60.0)
        with redis.Redis.from_url(f"{server.url}?socket_timeout=60") as client:
            pid = client.info("server")["process_id"]  # type: ignore[index]

        def control(what: str) -> None:
            subprocess.run(["callgrind_control", what, str(pid)], check=True, capture_output=True)

        @contextmanager
        def counted() -> Iterator[Any]:
            total = 0
            control("--zero")
            yield lambda: total
            control("--dump")
            newest = max(directory.glob(f"{pid}.*"), key=lambda path: int(path.suffix[1:]))
            for line in newest.read_text().splitlines():
                if line.startswith(("totals:", "summary:")):
                    total = int(line.split()[1])

        yield server.url, counted
    finally:
        server.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--act"]:
        sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
        act(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
