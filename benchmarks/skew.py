"""One of two workers whose wall clock is wrong: the share of a rate of 20/s that is used.

    python -m benchmarks.skew [--tasks 240] [--skew -3600 -10 -2 10 300 3600]

All tasks are sent beforehand, with ``throttle="retry"``; the share is of the time from the first start to the last.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.workers import Fleet

RATE = 20
#: What is on the PYTHONPATH of the worker whose clock is wrong.
SKEWED = Path(__file__).parents[1] / "tests" / "apps" / "skewed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=240)
    parser.add_argument("--skew", type=float, nargs="+", default=[-3600, -10, -2, 10, 300, 3600], help="seconds")
    options = parser.parse_args()
    for skew in options.skew:
        with Fleet("retry", rate=RATE, workers=1) as fleet:
            fleet.send(range(options.tasks))
            fleet.env = {"PYTHONPATH": str(SKEWED), "TEST_SKEW": str(skew)}
            fleet.start()
            fleet.env = {}
            fleet.start()
            fleet.wait_for_first()
            # By this machine's own clock: starts are noted with the clock of their worker.
            began, first = time.monotonic(), fleet.started()
            fleet.wait(lambda: fleet.started() >= options.tasks, 3 * options.tasks / RATE, every=0.01)
            last, seconds = fleet.started(), time.monotonic() - began
        share = (last - first) / seconds / RATE
        print(f"clock off by {skew:+g} s: {share:.3f} of {RATE}/s, {last} of {options.tasks} started", flush=True)


if __name__ == "__main__":
    main()
