"""A fleet near its limit: 12,000 tasks at some of what two workers of two processes can do.

    python -m benchmarks.near [--tasks 12000] [--rate 300 | --of-plain 0.6] [--throttle retry] [--rounds 1]
                              [--inline-wait SECONDS]

One after the other: the tasks without a limit; at the rate, or at that share of what the first run has reached; and at
all of it, which then binds. In each, an unlimited task is sent behind them when the fleet is at work, and waits for its
process.

CPU is that of all processes of the workers, from the first starts until the broker has nothing more, by task. Scripts
are the store's, by task, from before the workers start.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks import TASK, measures
from benchmarks.workers import QUEUE, Fleet, scripts

BEHIND = 10**6  # the index of the unlimited task


@dataclass(frozen=True)
class Run:
    """Starts a second; seconds that the unlimited task waited; milliseconds of CPU, and scripts, a task."""

    rate: float
    behind: float
    cpu_ms: float
    scripts: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=12_000)
    parser.add_argument("--rate", type=int, default=300)
    parser.add_argument("--of-plain", type=float, help="the rate is this share of what plain tasks reach")
    parser.add_argument("--throttle", default="retry")
    parser.add_argument("--inline-wait", type=float, help="the task's (default: the package's)")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    found: list[tuple[Run, Run, Run]] = []
    for number in range(options.rounds):
        plain = run(options.tasks, None, options)
        if options.of_plain and number == 0:
            options.rate = round(options.of_plain * plain.rate)
        limited = run(options.tasks, options.rate, options)
        found.append((plain, limited, run(options.tasks, round(plain.rate), options)))
        show([found[-1]], options)
    if options.rounds > 1:
        print(f"medians of {options.rounds}:")
        show(found, options)


def show(found: Sequence[tuple[Run, Run, Run]], options: argparse.Namespace) -> None:
    plain, limited, binding = ([each[place] for each in found] for place in range(3))
    share = median(each.rate / options.rate for each in limited)
    print(f"plain: {median(p.rate for p in plain):.0f}/s, {median(p.cpu_ms for p in plain):.2f} ms of CPU a task")
    print(
        f"{options.throttle} at {options.rate}/s: {share:.3f} of the rate; "
        f"CPU {median(each.cpu_ms / p.cpu_ms for p, each in zip(plain, limited, strict=True)):.2f} x plain; "
        f"{median(each.scripts for each in limited):.2f} scripts a task; an unlimited task behind waits "
        f"{median(each.behind for each in limited):.1f} s, "
        f"{median(each.behind / p.behind for p, each in zip(plain, limited, strict=True)):.2f} x behind plain ones"
    )
    print(
        f"{options.throttle} where the limit is what plain ones reach: "
        f"{median(each.rate / p.rate for p, each in zip(plain, binding, strict=True)):.2f} x plain",
        flush=True,
    )


def run(tasks: int, rate: int | None, options: argparse.Namespace) -> Run:
    name = f"{TASK}.plain" if rate is None else TASK
    with Fleet("mixed", rate=rate or 1) as fleet:
        fleet.env = {"BENCH_THROTTLE": options.throttle}
        if options.inline_wait is not None:
            fleet.env["BENCH_INLINE"] = str(options.inline_wait)
        with fleet.sender.producer_or_acquire() as producer:
            for index in range(tasks):
                args = [index, 0.0] if rate is None else [index]
                fleet.sender.send_task(name, args=args, queue=QUEUE, producer=producer)
        fleet.redis.config_resetstat()
        fleet.start()
        fleet.wait_for_first(20)
        sent, cpu, before = time.time(), fleet.cpu(), fleet.started()
        fleet.sender.send_task(f"{TASK}.plain", args=[BEHIND, 0.0], queue=QUEUE)
        done = fleet.wait(
            lambda: fleet.started() > tasks and fleet.drained(), 60 + 2 * tasks / (rate or 300), every=0.1
        )
        used, calls, starts = fleet.cpu() - cpu, scripts(fleet.calls()), fleet.starts()
    behind = next((start.at for start in starts if start.index == BEHIND), time.time()) - sent
    ours = [start for start in starts if start.index != BEHIND]
    return Run(
        rate=measures.share_of_rate(ours, 1.0, None if done else time.time()),
        behind=behind,
        cpu_ms=1000 * used / max(1, len(ours) - before),
        scripts=calls / max(1, len(ours)),
    )


if __name__ == "__main__":
    main()
