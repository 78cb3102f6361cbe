"""Who goes first when many wait: important tasks behind a backlog, and a small tenant behind a big one.

    python -m benchmarks.order [--rate 100] [--rounds 1]

A thousand tasks of low priority wait for the limit; then fifty of high priority are sent, on a Redis broker with
Celery's ``priority_steps``. Their waiting times are from being sent to the start of the body. Then the same with twenty
tasks of a small tenant behind two thousand of a big one, in the order in which they came, and with ``fair=``.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

from benchmarks import TASK, records
from benchmarks.workers import QUEUE, Fleet

BEHIND, IMPORTANT = 1000, 50
BIG, SMALL = 2000, 20
LOW, HIGH = 9, 0  # on Redis 0 is the highest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    for _ in range(options.rounds):
        waited = important(options.rate)
        print(f"{IMPORTANT} of high priority behind {BEHIND} of low: median {median(waited):.2f} s, ", end="")
        print(f"the last after {max(waited):.2f} s", flush=True)
        for fair in (False, True):
            waited = of_a_small_tenant(options.rate, fair=fair)
            print(
                f"{SMALL} of a small tenant behind {BIG} of a big one, {'fair' if fair else 'as they came'}: ", end=""
            )
            print(f"median {median(waited):.2f} s, the last after {max(waited):.2f} s", flush=True)


def important(rate: int) -> list[float]:
    """Seconds that each of the important tasks waits."""
    with Fleet("mixed", rate=rate) as fleet:
        _send(fleet, range(BEHIND), LOW)
        fleet.start()
        fleet.wait_for_first(50)
        sent = time.time()
        _send(fleet, range(BEHIND, BEHIND + IMPORTANT), HIGH)
        fleet.wait(lambda: fleet.started() >= BEHIND + IMPORTANT, 60 + 2 * BEHIND / rate, every=0.1)
        return [start.at - sent for start in _of(fleet.starts(), BEHIND)]


def of_a_small_tenant(rate: int, *, fair: bool) -> list[float]:
    """Seconds that each of its tasks waits."""
    with Fleet("shared", rate=rate) as fleet:
        fleet.env["BENCH_FAIR"] = "1" if fair else ""
        for first, number, tenant in ((0, BIG, "big"), (BIG, SMALL, "small")):
            with fleet.sender.producer_or_acquire() as producer:
                sent = time.time()
                for index in range(first, first + number):
                    fleet.sender.send_task(TASK, args=[index, tenant], queue=QUEUE, producer=producer)
            if not first:
                fleet.start()
                fleet.wait_for_first(50)
        fleet.wait(lambda: len(_of(fleet.starts(), BIG)) >= SMALL, 60 + 2 * BIG / rate, every=0.1)
        return [start.at - sent for start in _of(fleet.starts(), BIG)]


def _send(fleet: Fleet, indices: range, priority: int) -> None:
    with fleet.sender.producer_or_acquire() as producer:
        for index in indices:
            fleet.sender.send_task(TASK, args=[index], queue=QUEUE, priority=priority, producer=producer)


def _of(starts: list[records.Start], first: int) -> list[records.Start]:
    return [start for start in starts if start.index >= first]


if __name__ == "__main__":
    main()
