"""Requests of several limits among others: how much of what they have in common is used.

    python -m benchmarks.joint [callers] [fleet] [held] [--seconds 20] [--throttle retry] [--case rate,places]

callers  calls of one process that always wait (`AsyncLimiter.permit`): ten tenants under a common limit; two groups
         under one, without a burst and with one of 2; a few that need two limits among many that need one of them
fleet    two workers of two processes, tasks with `[web, stripe]` and `[tasks, stripe]`, both throttles
held     three workers of four processes, tasks of 0.1 s with a rate of 50/s and a log of 400/10s, places for 8, or
         both: from the first start to the last, for 400 tasks; and for 1,200 tasks with all three limits, where the log
         makes them wait: the least is 28.0 s
"""

from __future__ import annotations

import argparse
import asyncio
import time
from bisect import bisect_left
from collections.abc import Sequence

from benchmarks import TASK
from benchmarks.workers import QUEUE, Fleet
from celery_ratelimit import AsyncLimiter, Limit
from celery_ratelimit.testing import embedded_server

RATE = 100
#: Limits of tasks that are held, and how many tasks.
HELD = {"rate": 400, "rate,places": 400, "rate,log": 400, "rate,window": 400, "rate,log,places": 1200}
Groups = Sequence[tuple[Sequence[Limit], int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", choices=["callers", "fleet", "held", []], metavar="SCENARIO")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each row (default: %(default)s)")
    parser.add_argument("--throttle", nargs="+", default=["retry", "wait"], help="of `held` (default: both)")
    parser.add_argument("--case", nargs="+", default=list(HELD), metavar="LIMITS", help="of `held` (default: all)")
    options = parser.parse_args()
    scenarios = options.scenarios or ["callers", "fleet", "held"]
    if "callers" in scenarios:
        asyncio.run(callers(options.seconds))
    for throttle in ("retry", "wait") if "fleet" in scenarios else ():
        fleet(throttle, options.seconds)
    for case in options.case if "held" in scenarios else ():
        for throttle in options.throttle:
            held(case, throttle)


async def callers(seconds: float) -> None:
    for burst in (1, 2):
        common = Limit(f"{RATE}/s", burst=burst, name="stripe")
        tenants: Groups = [((Limit("15/s", name=f"tenant{n}"), common), 20) for n in range(10)]
        await _row(f"10 × [tenant 15/s, stripe], burst {burst}", tenants, seconds)
        groups: Groups = [((Limit("20/s", name="web"), common), 20), ((Limit("80/s", name="tasks"), common), 20)]
        await _row(f"[web 20/s, stripe] + [tasks 80/s, stripe], burst {burst}", groups, seconds)
    a, b = Limit(f"{RATE}/s", name="a"), Limit(f"{RATE}/s", name="b")
    await _row("50 × a, 50 × b, 3 × [a, b]", [((a,), 50), ((b,), 50), ((a, b), 3)], seconds)


async def _row(title: str, groups: Groups, seconds: float) -> None:
    served = [[0] * number for _, number in groups]
    with embedded_server() as server:
        limiter = AsyncLimiter.from_url(server.url)
        began, end = time.monotonic() + 1.0, time.monotonic() + 1.0 + seconds

        async def call(limits: Sequence[Limit], group: int, number: int) -> None:
            while time.monotonic() < end:
                async with limiter.permit(list(limits)):
                    served[group][number] += began <= time.monotonic() < end

        await asyncio.gather(
            *[call(limits, group, each) for group, (limits, number) in enumerate(groups) for each in range(number)]
        )
        await limiter.aclose()
    names = dict.fromkeys(limit.name for limits, _ in groups for limit in limits)
    used = {
        name: sum(sum(calls) for (limits, _), calls in zip(groups, served, strict=True) if _asks(limits, name))
        / seconds
        for name in names
    }
    shared = {name: rate for name, rate in used.items() if sum(_asks(limits, name) for limits, _ in groups) > 1}
    least = min(min(calls) for calls in served) / seconds
    print(
        f"{title}: "
        + ", ".join(f"{name} {rate / RATE:.3f}" for name, rate in shared.items())
        + f"; whoever is served least: {least:.2f} a second",
        flush=True,
    )


def _asks(limits: Sequence[Limit], name: str | None) -> bool:
    return any(limit.name == name for limit in limits)


def fleet(throttle: str, seconds: float) -> None:
    number = round(RATE * (seconds + 10))
    with Fleet("joint", rate=RATE) as run:
        run.env = {"BENCH_THROTTLE": throttle}
        with run.sender.producer_or_acquire() as producer:
            for index in range(number):  # one in five is of the web
                kind = "web" if index % 5 == 0 else "tasks"
                run.sender.send_task(f"{TASK}.{kind}", args=[index], producer=producer, queue=QUEUE)
        run.start()
        run.wait_for_first(RATE * 3)  # until it runs evenly
        run.wait(lambda: run.started() >= number - RATE * 3, 3 * seconds, every=0.05)
        starts = sorted(start.at for start in run.starts())[RATE * 3 : number - RATE * 3]
        used = (len(starts) - 1) / (starts[-1] - starts[0]) / RATE
        worst = max(sum(at <= other < at + 1 for other in starts[i : i + 2 * RATE]) for i, at in enumerate(starts))
        print(f"fleet, {throttle}: {used:.3f} of {RATE}/s over {len(starts)} tasks, worst second {worst}", flush=True)


def held(case: str, throttle: str) -> None:
    number, rate = HELD[case], RATE // 2
    with Fleet("held", rate=rate, workers=3, processes=4) as run:
        run.env = {"BENCH_THROTTLE": throttle, "BENCH_LIMITS": case}
        run.send(range(number))
        run.start()
        run.wait_for_first()
        run.wait(lambda: run.started() >= number, 5 * number / rate, every=0.05)
        starts = sorted(start.at for start in run.starts())
    seconds, most = starts[-1] - starts[0], max(sum(at - 0.1 < other <= at for other in starts) for at in starts)
    early = (bisect_left(starts, starts[0] + 5.0) - 1) / 5.0
    print(
        f"held, {case}, {throttle}: {len(starts)} tasks in {seconds:.2f} s, {early:.1f}/s in the first five;"
        f" at most {most} in 0.1 s",
        flush=True,
    )


if __name__ == "__main__":
    main()
