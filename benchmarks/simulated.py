"""A thousand workers, 10,000 a second, a million tasks: what none of our machines can run, simulated.

    python -m benchmarks.simulated [--workers 1000] [--processes 4] [--rate 10000] [--tasks 1000000] [--seconds 0.2]
                                   [--sent 1.1]

Real gates and real scripts on a clock that is moved; Celery and the broker are modelled
(:mod:`benchmarks.simulation`). Tasks are sent ``--sent`` times as fast as the limit allows, so that most of them are
throttled. Printed are what the store is asked for each permit, the share of the limit that is used while there is
enough to do, and whether the laws hold: never over (1), all tasks run, once (5), in about their order (4).
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence

from benchmarks.simulation import EPOCH, Fleet, Started, simulated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=0.2, help="that a task takes (default: %(default)s)")
    parser.add_argument("--sent", type=float, default=1.1, help="0: all at once (default: %(default)s)")
    options = parser.parse_args()
    began = time.perf_counter()
    with simulated(
        workers=options.workers, processes=options.processes, rate=options.rate, seconds=options.seconds
    ) as fleet:
        _send(fleet, options.tasks, options.rate * options.sent)
        patience = EPOCH + 60 + 3 * options.tasks / options.rate
        fleet.world.run(lambda: len(fleet.started) >= options.tasks, patience)
        _show(fleet, options.tasks, options.rate)
    print(f"took {time.perf_counter() - began:.0f} s")


def _send(fleet: Fleet, tasks: int, rate: float) -> None:
    """From a second after the workers are there."""
    step = 0.01
    world, index = fleet.world, 0
    began = world.now + 2.0

    def send() -> None:
        nonlocal index
        most = tasks if rate <= 0 else min(tasks, 1 + int(rate * (world.now - began)))
        while index < most:
            fleet.send(index)
            index += 1
        if index < tasks:
            world.at(world.now + step, send)

    world.at(began, send)


def _show(fleet: Fleet, tasks: int, rate: int) -> None:
    asked, started = fleet.asked(), fleet.started
    print(f"{asked.total() / max(1, len(started)):.2f} store operations a permit:")
    for name, count in asked.most_common(12):
        print(f"    {name:14} {count / max(1, len(started)):.3f}")
    permits = sorted(start.permit_at for start in started)
    print(f"share of the limit {share(permits, rate):.3f}; sent back once more: {fleet.sent_back}")
    print(f"law 1: at the most {excess(permits, rate):.3f} permits over the limit in any interval")
    times = Counter(Counter(start.index for start in started).values())
    print(f"law 5: {len(started)} of {tasks} started; how often each: {dict(times)}")
    early = sum(start.at < start.permit_at - 1e-6 for start in started)
    print(f"started before their permits were good: {early}; law 4: {late(started, rate):.2f} s behind its place")


def share(permits: Sequence[float], rate: int) -> float:
    """Of the limit, from the first second on, to where less than a second is left."""
    if len(permits) < 3 * rate:
        return (len(permits) - 1) / rate / max(1e-9, permits[-1] - permits[0])
    some = permits[rate:-rate]
    return (len(some) - 1) / rate / (some[-1] - some[0])


def excess(permits: Sequence[float], rate: int) -> float:
    """The most permits in any interval, less one and what the limit allows in it; at the most 0."""
    least, most = float("inf"), float("-inf")
    for number, at in enumerate(permits):
        least = min(least, number - rate * (at - permits[0]))
        most = max(most, number - rate * (at - permits[0]) - least)
    return most


def late(started: Sequence[Started], rate: int) -> float:
    """Seconds by which the last of 99 % of all tasks started behind the place in which it was sent."""
    behind = sorted((place - start.index) / rate for place, start in enumerate(started))
    return behind[int(0.99 * (len(behind) - 1))] if behind else 0.0


if __name__ == "__main__":
    main()
