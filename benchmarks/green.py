"""One worker of 50 greenlets, tasks of 0.2 s: the share of 100/s, beside what the pool does alone.

python -m benchmarks.green [--pool gevent,eventlet] [--throttle plain,retry,wait] [--tasks 2000]
"""

from __future__ import annotations

import argparse

from benchmarks import TASK, measures
from benchmarks.workers import Fleet

RATE = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", default="gevent")
    parser.add_argument("--throttle", default="plain,retry,wait")
    parser.add_argument("--tasks", type=int, default=1500)
    options = parser.parse_args()
    for pool in options.pool.split(","):
        for throttle in options.throttle.split(","):
            _run(pool, throttle, options.tasks)


def _run(pool: str, throttle: str, tasks: int) -> None:
    fleet = Fleet("green", rate=RATE, workers=1, processes=50)
    fleet.options = ["-P", pool]
    fleet.env = {"BENCH_THROTTLE": "retry" if throttle == "plain" else throttle}
    with fleet:
        with fleet.sender.producer_or_acquire() as producer:
            for index in range(tasks):
                fleet.sender.send_task(
                    f"{TASK}.plain" if throttle == "plain" else TASK, args=[index], producer=producer
                )
        fleet.start()
        fleet.wait_for_first()
        fleet.wait(lambda: fleet.started() >= tasks, 2 * tasks / RATE, every=0.1)
        starts = fleet.starts()
    seconds = starts[-1].at - starts[0].at
    share = measures.share_of_rate(starts, RATE, None)
    print(
        f"{pool:8} {throttle:5} {len(starts) / seconds:6.1f}/s ({share:.3f}); worst {measures.worst_second(starts)}/s"
    )


if __name__ == "__main__":
    main()
