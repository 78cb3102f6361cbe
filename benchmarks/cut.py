"""All connections of the workers are killed again and again: how far the starts exceed the limit.

    python -m benchmarks.cut [--throttle retry wait] [--every 4.3] [--seconds 60] [--processes 8]

One server is the broker and the store. A rate of 2/s with tasks of 3 s that are acknowledged late: printed is the most
by which the starts in any interval of T seconds exceed ``burst + rate * T``. Then two leases (``Concurrency(2)``) with
tasks of 4 s on two workers: printed is the most that ran at once. A task that is delivered again starts again, and
counts again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.workers import Fleet

RATE, TASKS = 2, 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--throttle", nargs="+", default=["retry", "wait"])
    parser.add_argument("--every", type=float, default=4.3, help="seconds between two cuts (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="that a run lasts (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=8)
    options = parser.parse_args()
    for throttle in options.throttle:
        starts = _starts(throttle, 0, 3.0, 1, options)
        print(f"{throttle}, {RATE}/s: {len(starts)} starts, {exceeds(starts, RATE):+.2f} above burst + rate * T")
        starts = _starts(throttle, 2, 4.0, 2, options)
        print(f"{throttle}, Concurrency(2): {len(starts)} starts, {at_once(starts, 4.0)} at once", flush=True)


def _starts(throttle: str, leases: int, lasts: float, workers: int, options: argparse.Namespace) -> list[float]:
    with Fleet("cut", rate=RATE, workers=workers, processes=options.processes // workers) as fleet:
        fleet.env = {"BENCH_THROTTLE": throttle, "BENCH_LEASES": str(leases), "BENCH_SECONDS": str(lasts)}
        fleet.send(range(TASKS))
        fleet.start()
        fleet.wait_for_first()
        cut_at = options.seconds - options.every
        for left in fleet.ticks(options.seconds, 0.05):
            if left <= cut_at:
                fleet.redis.client_kill_filter(_type="normal", skipme=True)
                fleet.redis.client_kill_filter(_type="pubsub")
                cut_at -= options.every
        return [start.at for start in fleet.starts()]


def exceeds(starts: Sequence[float], rate: float, burst: int = 1) -> float:
    """The most by which the starts in any interval exceed what a token bucket allows in it."""
    most, lowest = float("-inf"), float("inf")
    for number, at in enumerate(starts):
        lowest = min(lowest, number - rate * at)
        most = max(most, number + 1 - rate * at - lowest)
    return most - burst


def at_once(starts: Sequence[float], lasts: float) -> int:
    """The most that ran at once, where each runs for ``lasts`` seconds."""
    return max((sum(at - lasts + 0.01 < other <= at for other in starts) for at in starts), default=0)


if __name__ == "__main__":
    main()
