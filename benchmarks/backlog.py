"""A deep backlog: how long an unlimited task waits behind it, and what workers hold of it.

    python -m benchmarks.backlog [behind] [queues] [memory] [deep] [change]

behind   12,000 limited tasks at 300/s, then an unlimited one in the same queue
queues   12,000 tasks under ``throttle="wait"`` in a queue of their own, then an unlimited one in another
memory   20,000 tasks at 500/s, to the last
deep     100,000 tasks at 100/s, for a minute from when all are parked
change   10,000 parked at 50/s: the rate is doubled, then the limit is paused

Two workers of two processes, logging as by default. The growth of a worker's memory is counted from its first tasks
on, in its main process, where tasks wait.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from benchmarks import TASK, processes
from benchmarks.workers import QUEUE, Fleet
from celery_ratelimit import Limiter

SCENARIOS = ("behind", "queues", "memory", "deep", "change")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", choices=[*SCENARIOS, []], metavar="SCENARIO")
    for scenario in parser.parse_args().scenarios or SCENARIOS:
        {"behind": behind, "queues": queues, "memory": memory, "deep": deep, "change": change}[scenario]()


def behind() -> None:
    with Fleet("backlog", rate=300) as fleet:
        fleet.send(range(12_000))
        seconds, held = _unlimited(fleet, QUEUE)
    print(
        f"behind 12,000 at 300/s: the unlimited task waited {seconds:.1f} s; at most {held:,} unacknowledged",
        flush=True,
    )


def queues() -> None:
    with Fleet("backlog", rate=300) as fleet:
        fleet.queues = ("slow", QUEUE)
        _send(fleet, f"{TASK}.wait", 12_000, "slow")
        waits = sorted(_unlimited(fleet, QUEUE)[0] for _ in range(5))
    print(
        f"beside 12,000 that wait in a queue of their own: {waits[2]:.2f} s (median of 5; {waits[-1]:.2f} at most)",
        flush=True,
    )


def memory() -> None:
    with Fleet("backlog", rate=500) as fleet:
        fleet.send(range(20_000))
        grown, held = _watch(fleet, lambda: fleet.started() >= 20_000, 120)
        print(
            f"20,000 at 500/s: {grown:+.1f} MB; at most {held:,} unacknowledged; {fleet.started():,} started",
            flush=True,
        )


def deep() -> None:
    with Fleet("backlog", rate=100) as fleet:
        fleet.send(range(100_000))
        _watch(fleet, lambda: not fleet.redis.llen(QUEUE), 300)
        before = _memory(fleet)
        grown, held = _watch(fleet, lambda: False, 60)
        parked = _parked(fleet)
        print(
            f"100,000 at 100/s: {before:.1f} MB when all were parked, {grown:+.1f} MB in a minute; at most {held:,} "
            f"unacknowledged; {parked:,} parked",
            flush=True,
        )


def change() -> None:
    with Fleet("backlog", rate=50) as fleet:
        fleet.send(range(10_600))
        _watch(fleet, lambda: not fleet.redis.llen(QUEUE), 60)
        parked = _parked(fleet)
        limiter = Limiter(fleet.redis)
        limiter.set_rate(TASK, "100/s", force=True)
        changed = time.time()
        time.sleep(3)
        limiter.pause(TASK, 60, force=True)
        paused = time.time()
        time.sleep(3)
        starts = [start.at for start in fleet.starts()]
    seconds = [sum(changed + second <= at < changed + second + 1 for at in starts) for second in range(2)]
    print(
        f"{parked:,} parked at 50/s: {seconds[0]} starts in the first second at 100/s, {seconds[1]} in the next; the "
        f"last one {max(starts) - paused:+.2f} s from the pause",
        flush=True,
    )


def _send(fleet: Fleet, task: str, number: int, queue: str) -> None:
    with fleet.sender.producer_or_acquire() as producer:
        for index in range(number):
            fleet.sender.send_task(task, args=[index], queue=queue, producer=producer)


def _unlimited(fleet: Fleet, queue: str) -> tuple[float, int]:
    """Seconds until a task starts that is sent when the fleet is at work, and the most that was unacknowledged."""
    if not fleet.workers:
        fleet.start()
        fleet.wait_for_first(20)
    mark = fleet.directory / "unlimited"
    mark.unlink(missing_ok=True)
    held, sent = 0, time.monotonic()
    fleet.sender.send_task(f"{TASK}.unlimited", queue=queue)
    while not mark.exists() and time.monotonic() - sent < 120:
        held = max(held, fleet.unacked())
        time.sleep(0.02)
    return time.monotonic() - sent, held


def _watch(fleet: Fleet, done: Callable[[], bool], seconds: float) -> tuple[float, int]:
    """The growth of the larger worker in MB, and the most that was unacknowledged, until it is done or time is up."""
    if not fleet.workers:
        fleet.start()
        fleet.wait_for_first(20)
    before, held = _memory(fleet), 0
    for _ in fleet.ticks(seconds, 0.5):
        held = max(held, fleet.unacked())
        if done():
            break
    return _memory(fleet) - before, held


def _parked(fleet: Fleet) -> int:
    return sum(fleet.redis.zcard(key) for key in fleet.redis.keys("ratelimit:*:parked@*"))


def _memory(fleet: Fleet) -> float:
    return max(processes.rss_mb(worker.pid) for worker in fleet.workers)


if __name__ == "__main__":
    main()
