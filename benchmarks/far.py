"""A store that is some way off: one worker of four processes, whose store answers later and whose broker is near.

    python -m benchmarks.far [--milliseconds 0 2 5 20] [--rate 100] [--seconds 8]

For both throttles: the share of the rate that a backlog uses, and when the last of twenty unlimited tasks has started
that were sent behind it, once the worker was at work. Then tasks of a limit that does not bind, beside plain ones.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from benchmarks import TASK, measures
from benchmarks.workers import QUEUE, Fleet, scripts
from tests.far_away import relay

UNLIMITED = 20
BEHIND = 10**6  # the index of the first unlimited task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=float, nargs="*", default=[0.0, 2.0, 5.0, 20.0])
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    for throttle in ("retry", "wait"):
        for milliseconds in options.milliseconds:
            backlog(throttle, milliseconds, options.rate, int(options.rate * options.seconds))
    for milliseconds in options.milliseconds[:2]:
        beside_plain(milliseconds)


def backlog(throttle: str, milliseconds: float, rate: int, tasks: int) -> None:
    with Fleet("mixed", rate=rate, workers=1, processes=4) as fleet, relay(fleet) as between:
        between.seconds = milliseconds / 1000
        fleet.env = {"BENCH_THROTTLE": throttle, "BENCH_STORE": between.url}
        fleet.send(range(tasks))
        fleet.redis.config_resetstat()
        fleet.start()
        fleet.wait_for_first(20)
        sent = time.time()
        for index in range(UNLIMITED):
            fleet.sender.send_task(f"{TASK}.plain", args=[BEHIND + index, 0.0], queue=QUEUE)
        done = fleet.wait(lambda: fleet.started() >= tasks + UNLIMITED, 30 + 3 * tasks / rate, every=0.1)
        starts, calls = fleet.starts(), scripts(fleet.calls())
    ours = [start for start in starts if start.index < BEHIND]
    late = [start.at - sent for start in starts if start.index >= BEHIND]
    share = measures.share_of_rate(ours, rate, None if done else time.time())
    print(
        f"{throttle}, {milliseconds:g} ms: {share:.3f} of {rate}/s; {calls / len(ours):.2f} scripts a task; "
        f"{len(late)} of {UNLIMITED} unlimited ones behind started, the last after {max(late, default=0.0):.1f} s",
        flush=True,
    )


def beside_plain(milliseconds: float, tasks: int = 4000) -> None:
    limited, plain = (started(tasks, milliseconds, name) for name in (TASK, f"{TASK}.plain"))
    print(
        f"no binding limit, {milliseconds:g} ms: {limited:.0f}/s, plain ones {plain:.0f}/s: {limited / plain:.2f}",
        flush=True,
    )


def started(tasks: int, milliseconds: float, name: str) -> float:
    """Starts a second."""
    args: Sequence[float] = () if name == TASK else (0.0,)
    with Fleet("mixed", rate=100_000, workers=1, processes=4) as fleet, relay(fleet) as between:
        between.seconds = milliseconds / 1000
        fleet.env = {"BENCH_STORE": between.url}
        with fleet.sender.producer_or_acquire() as producer:
            for index in range(tasks):
                fleet.sender.send_task(name, args=[index, *args], queue=QUEUE, producer=producer)
        fleet.start()
        fleet.wait_for_first(20)
        fleet.wait(lambda: fleet.started() >= tasks, 120, every=0.05)
        return measures.share_of_rate(fleet.starts(), 1.0, None)


if __name__ == "__main__":
    main()
