"""Brief tasks of 20/s beside long ones in the same queue: the share of their rate that the brief ones get.

    python -m benchmarks.long [--throttle retry wait] [--long concurrency rate none] [--workers 2] [--processes 2]

600 brief tasks, then 60 tasks of 2 s. Printed are the share of the brief ones in the first 25 s, how many long ones run
in a second, as a part of what they do alone on the same fleet, and scripts of the store for each task.
"""

from __future__ import annotations

import argparse
import time

from benchmarks import TASK
from benchmarks.workers import Fleet, scripts

RATE = 20
BRIEF, LONG = 600, 60
SECONDS = 2.0
#: The brief tasks are counted in the first seconds.
COUNTED = 25.0
#: Indices of long tasks.
FIRST_LONG = 10**6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--throttle", nargs="+", default=["retry", "wait"])
    parser.add_argument("--long", nargs="+", default=["concurrency", "rate", "none"], help="what limits the long tasks")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--brief-only", action="store_true", help="stop after the first 25 s")
    options = parser.parse_args()
    for throttle in options.throttle:
        for limited_by in options.long:
            _row(throttle, limited_by, options)


def _row(throttle: str, limited_by: str, options: argparse.Namespace) -> None:
    beside = _run(throttle, limited_by, BRIEF, options)
    share, long_rate, calls = beside
    text = f"brief {share:.3f} of {RATE}/s; {calls:.2f} scripts a task"
    if not options.brief_only:
        alone = _run(throttle, limited_by, 0, options)[1]
        text += f"; long {long_rate:.2f}/s, alone {alone:.2f}/s: {long_rate / alone:.2f}"
    fleet = f"{options.workers} x -c {options.processes}"
    print(f"{fleet}, {throttle}, long ones limited by {limited_by}: {text}", flush=True)


def _run(throttle: str, limited_by: str, brief: int, options: argparse.Namespace) -> tuple[float, float, float]:
    """The share of the brief tasks, long tasks a second from the first start to the last end, and scripts a task."""
    with Fleet("long", rate=RATE, workers=options.workers, processes=options.processes) as fleet:
        fleet.env = {"BENCH_THROTTLE": throttle, "BENCH_LONG": limited_by}
        with fleet.sender.producer_or_acquire() as producer:
            for index in range(brief):
                fleet.sender.send_task(TASK, args=[index], producer=producer)
            for index in range(LONG):
                fleet.sender.send_task(f"{TASK}.long", args=[FIRST_LONG + index, SECONDS], producer=producer)
        fleet.start()
        fleet.wait_for_first()
        fleet.redis.config_resetstat()
        before, began = fleet.started(), time.time()
        if options.brief_only:
            fleet.wait(lambda: time.time() - began > COUNTED, COUNTED + 5, every=0.5)
        else:
            fleet.wait(lambda: fleet.started() >= brief + LONG, 150, every=0.2)
        calls = scripts(fleet.calls()) / max(1, fleet.started() - before)
        starts = fleet.starts()
    first = starts[0].at
    counted = [start for start in starts if start.index < FIRST_LONG and start.at - first <= COUNTED]
    longs = [start.at for start in starts if start.index >= FIRST_LONG]
    lasted = max(longs, default=0.0) + SECONDS - min(longs, default=0.0)
    return len(counted) / (RATE * COUNTED), len(longs) / max(0.1, lasted), calls


if __name__ == "__main__":
    main()
