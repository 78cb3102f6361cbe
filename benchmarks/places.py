"""How much of a number of places is used: ``Concurrency(5)``, tasks of 0.2 s, two workers of four processes.

    python -m benchmarks.places [--tasks 500] [--places 5] [--throttle retry wait none] [--rounds 1]

The share is that of the places from the first start to the last, what a task takes counted as 0.2 s; and the same
without the first and the last twenty starts, when one worker is not there yet, or has nobody any more. Scripts are the
store's, by task, from the first starts on. ``none``: no limit, and one worker with as many processes as there are
places, which always have a task: what Celery itself can make of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median

from benchmarks.workers import Fleet, scripts

SECONDS = 0.2
#: Starts at each end that the second share leaves out.
EDGE = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--places", type=int, default=5)
    parser.add_argument("--throttle", nargs="+", default=["retry", "wait"])
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    for throttle in options.throttle:
        found = [run(options.tasks, options.places, throttle) for _ in range(options.rounds)]
        share, between, calls, most = (median(each[place] for each in found) for place in range(4))
        shares = f"{share:.3f} of {options.places} places, {between:.3f} without both ends"
        print(f"{throttle}: {shares}; {calls:.2f} scripts a task; at most {most:.0f} at once", flush=True)


def run(tasks: int, places: int, throttle: str) -> tuple[float, float, float, float]:
    """The share of the places, and without both ends; scripts a task; and how many bodies ran at once, at most."""
    workers, processes = (1, places) if throttle == "none" else (2, 4)
    with Fleet("places", rate=places, workers=workers, processes=processes) as fleet:
        fleet.env = {"BENCH_THROTTLE": throttle}
        fleet.send(range(tasks))
        fleet.start()
        fleet.wait_for_first(20)
        fleet.redis.config_resetstat()
        before = fleet.started()
        fleet.wait(lambda: fleet.started() >= tasks, 60 + 2 * tasks * SECONDS / places, every=0.05)
        calls, starts = scripts(fleet.calls()) / (fleet.started() - before), sorted(s.at for s in fleet.starts())
    # A body that starts is beside those that started less than 0.2 s before.
    most = max(
        sum(at - SECONDS < other <= at for other in starts[max(0, i - 50) : i + 1]) for i, at in enumerate(starts)
    )
    return used(starts, places, 0), used(starts, places, EDGE), calls, most


def used(starts: Sequence[float], places: int, edge: int) -> float:
    """The share of the places, but for so many starts at each end."""
    begin, end = starts[edge], starts[-1 - edge]
    return sum(max(0.0, min(at + SECONDS, end) - max(at, begin)) for at in starts) / places / (end - begin)


if __name__ == "__main__":
    main()
