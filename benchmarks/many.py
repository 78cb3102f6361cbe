"""Many slow limits at once: scripts a task, and the share of their rates.

    python -m benchmarks.many [--limits 40] [--rate 5] [--seconds 20] [--throttle retry wait]

Two workers of two processes; each limit has a backlog for all of the time.
"""

from __future__ import annotations

import argparse

from benchmarks import TASK
from benchmarks.workers import QUEUE, Fleet, scripts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", type=int, default=40)
    parser.add_argument("--rate", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--throttle", nargs="+", default=["retry"])
    options = parser.parse_args()
    for throttle in options.throttle:
        run(throttle, options.limits, options.rate, options.seconds)


def run(throttle: str, limits: int, rate: int, seconds: float) -> None:
    each = int(rate * seconds)
    with Fleet("idle", rate=rate, workers=2) as fleet:
        fleet.env = {"BENCH_LIMITS": str(limits), "BENCH_THROTTLE": throttle}
        with fleet.sender.producer_or_acquire() as producer:
            for number in range(each):
                for limit in range(limits):
                    name = f"{TASK}.{limit}" if limit else TASK
                    fleet.sender.send_task(name, args=[number * limits + limit], queue=QUEUE, producer=producer)
        fleet.redis.config_resetstat()
        fleet.start()
        fleet.wait_for_first(20)
        fleet.wait(lambda: fleet.started() >= each * limits, 60 + 3 * seconds, every=0.1)
        calls, starts = scripts(fleet.calls()), sorted(start.at for start in fleet.starts())
    took = starts[-1] - starts[0]
    print(
        f"{throttle}, {limits} limits of {rate}/s: {calls / len(starts):.2f} scripts a task; "
        f"{(len(starts) - limits) / took / (limits * rate):.3f} of the rates",
        flush=True,
    )


if __name__ == "__main__":
    main()
