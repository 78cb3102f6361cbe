"""Limited tasks beside unlimited ones that saturate the pool: the share of the rate, and what is left to the others.

    python -m benchmarks.mixed [--throttle retry,wait] [--seconds 0.001,0.1,5] [--order behind,mixed,queues] [--pool …]

Two workers of two processes; limited tasks at 10/s, with so many unlimited ones behind them, or among them, or in
another queue, that no pool is ever free. Counted is from three seconds after the first limited task started.

``--one`` is something else: one limited task whose limit nobody uses, 20 unlimited ones ahead of it and 580 behind.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterable

from benchmarks import TASK
from benchmarks.workers import QUEUE, Fleet

RATE = 10
SETTLED = 3.0  # seconds after the first start from which on it is counted
PLAIN = f"{TASK}.plain"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--throttle", default="retry,wait")
    parser.add_argument("--seconds", default="0.001,0.1,5", help="that an unlimited task takes")
    parser.add_argument("--pool", default="prefork")
    parser.add_argument("--order", default="behind,mixed,queues", help="where the unlimited ones are")
    parser.add_argument("--prefetch", default="4")
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--late", action="store_true", help="acks_late")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--one", action="store_true", help="only the row with one limited task")
    options = parser.parse_args()
    for throttle in options.throttle.split(","):
        if options.one:
            _one(throttle, options)
            continue
        for order in options.order.split(","):
            for seconds in map(float, options.seconds.split(",")):
                _many(throttle, order, seconds, options)


def _fleet(throttle: str, options: argparse.Namespace) -> Fleet:
    fleet = Fleet("mixed", rate=RATE, processes=options.concurrency)
    fleet.options = ["-P", options.pool]
    fleet.env = {"BENCH_THROTTLE": throttle, "BENCH_PREFETCH": options.prefetch}
    if options.late:
        fleet.env["BENCH_LATE"] = "1"
    return fleet


def _many(throttle: str, order: str, seconds: float, options: argparse.Namespace) -> None:
    most = options.tasks / RATE + 5
    others = int(2 * options.concurrency * most / max(seconds, 0.005)) + 50
    limited = [(index, False) for index in range(options.tasks)]
    unlimited = [(10**6 + index, True) for index in range(others)]
    with _fleet(throttle, options) as fleet:
        if order == "queues":
            fleet.queues = (QUEUE, "others")
        tasks: Iterable[tuple[int, bool]] = limited + unlimited
        if order == "mixed":
            # Few enough others among them that the limited ones come in as quickly as they may start.
            among = limited + unlimited[: int(options.tasks * 2 * options.concurrency / (seconds * RATE) * 0.7)]
            random.Random(1).shuffle(among)
            tasks = among + unlimited[len(among) - len(limited) :]
        with fleet.sender.producer_or_acquire() as producer:
            for index, is_plain in tasks:
                fleet.sender.send_task(
                    PLAIN if is_plain else TASK,
                    args=[index, seconds] if is_plain else [index],
                    queue="others" if is_plain and order == "queues" else QUEUE,
                    producer=producer,
                )
        fleet.start()
        fleet.wait_for_first()
        fleet.wait(lambda: sum(start.index < 10**6 for start in fleet.starts()) >= options.tasks, most, every=0.2)
        until = time.time()
        starts = fleet.starts()
    first = min((start.at for start in starts if start.index < 10**6), default=until) + SETTLED
    ours = [start.at for start in starts if start.index < 10**6 and start.at >= first]
    last = max(ours) if len(ours) > 1 and sum(s.index < 10**6 for s in starts) >= options.tasks else until
    share = (len(ours) - 1) / max(0.1, last - first) / RATE
    plain = sum(start.index >= 10**6 and first <= start.at <= last for start in starts) / max(0.1, last - first)
    best = 2 * options.concurrency / seconds if seconds >= 0.05 else float("nan")
    print(
        f"{options.pool:8} {throttle:5} {order:7} plain of {seconds:g} s: {share:.3f} of {RATE}/s; "
        f"plain {plain:.1f}/s of {best:.1f}",
        flush=True,
    )


def _one(throttle: str, options: argparse.Namespace) -> None:
    with _fleet(throttle, options) as fleet:
        with fleet.sender.producer_or_acquire() as producer:
            for index in range(601):
                args = [index] if index == 20 else [index, 0.1]
                fleet.sender.send_task(TASK if index == 20 else PLAIN, args=args, producer=producer)
        fleet.start()
        fleet.wait(lambda: 20 in {start.index for start in fleet.starts()}, 60, every=0.05)
        order = [start.index for start in fleet.starts()]
    print(f"{options.pool:8} {throttle:5} one limited task, sent as number 20: started as number {order.index(20)}")


if __name__ == "__main__":
    main()
