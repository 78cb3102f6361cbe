"""What a worker of two processes grows by from its 5,000th task to its 80,000th, for each shape of limits.

    python -m benchmarks.memory [--tasks 80000] [--shapes none one key two places log]

``none``: no limit. ``one``: a limit without a key. ``key``: one with 4,000 keys. ``two``: both. ``places``:
``Concurrency``. ``log``: a sliding log. No task waits, and the worker logs nothing. The figure is the resident memory
(``statm``) of the worker's main process.
"""

from __future__ import annotations

import argparse

from benchmarks import TASK, processes
from benchmarks.workers import Fleet

SHAPES = ("none", "one", "key", "two", "places", "log")
FIRST, KEYS = 5_000, 4_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=80_000)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, choices=SHAPES)
    options = parser.parse_args()
    for shape in options.shapes:
        before, after = memory(shape, options.tasks)
        grown = f"{after - before:+.1f} MB from {before:.1f} MB"
        print(f"{shape}: {grown}, from task {FIRST:,} to task {options.tasks:,}", flush=True)


def memory(shape: str, tasks: int) -> tuple[float, float]:
    """MB of a worker when it has run its first tasks, and all."""
    with Fleet("memory", rate=1, workers=1) as fleet:
        fleet.env = {"BENCH_SHAPE": shape}
        fleet.start()
        found = []
        for first, end in ((0, FIRST), (FIRST, tasks)):
            with fleet.sender.producer_or_acquire() as producer:
                for index in range(first, end):
                    fleet.sender.send_task(TASK, args=[index, index % KEYS], producer=producer)
            fleet.wait(lambda end=end: fleet.started() >= end and fleet.drained(), 60 + end / 100, every=0.5)
            found.append(processes.rss_mb(fleet.workers[0].pid))
        if fleet.started() < tasks:
            raise RuntimeError(f"{shape}: {fleet.started()} of {tasks} tasks have started")
    return found[0], found[1]


if __name__ == "__main__":
    main()
