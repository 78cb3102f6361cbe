"""Scenario ``cpu``: what a task costs the worker, with a limit and without, in processor time.

Each measurement has a fresh worker of two processes. A few tasks warm it up; then the backlog, sent
beforehand and put aside, appears in the queue at once (``RENAME``), so that neither start-up nor the
sending of tasks is in the figure. The figure is the time used by all processes of the worker from there
until the last task has been acknowledged, divided by the tasks. Variants alternate, in an order that turns
with each round; figures are medians over the rounds, ratios the medians of each round's own ratio to its
plain run.

Two figures for each: **raw**, which is the headline, and **idle-corrected**, from which the time that the
same worker uses in the same number of seconds without any task is taken off. A throttled backlog takes
longer to leave, so the raw figure charges it for the worker's idling meanwhile, which would be paid anyway:
it is the harsher one. ``paced`` is a plain task that arrives at the throttled rate instead of all at once:
what waking up for each task costs Celery itself, without any throttle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

from benchmarks.workers import QUEUE, Fleet

LABELS = {
    "plain": "plain task",
    "passing": "limited, not throttled",
    "wait": "throttled by wait",
    "retry": "throttled by retry",
    "paced": "plain task, arriving at the same rate",
}
PACED = ("wait", "retry", "paced")
ASIDE = "bench:aside"
WARM_UP = 200
IDLE = 1.5  # seconds over which an idle worker is watched


@dataclass(frozen=True, slots=True)
class Figure:
    raw_ms: float
    corrected_ms: float
    idle_ms_per_s: float
    seconds: float


def run(*, tasks: int, rate: int, rounds: int, say: Callable[[str], None]) -> list[dict[str, object]]:
    """``rounds`` fresh workers a variant: ``tasks`` at full speed, half as many at ``rate`` a second."""
    figures: dict[str, list[Figure]] = {name: [] for name in LABELS}
    names = list(LABELS)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            say(f"cpu: {LABELS[name]}, round {number + 1} of {rounds}")
            few = name in PACED
            figures[name].append(_measure(name, tasks=tasks // 2 if few else tasks, rate=rate))
    return [
        {
            "variant": name,
            "label": LABELS[name],
            "rate": rate if name in PACED else None,
            **{field: median(getattr(f, field) for f in done) for field in Figure.__slots__},
            "ratio": _ratio(done, figures["plain"], "raw_ms"),
            "ratio_corrected": _ratio(done, figures["plain"], "corrected_ms"),
            "runs": [asdict(figure) for figure in done],
        }
        for name, done in figures.items()
    ]


def _ratio(figures: list[Figure], plain: list[Figure], field: str) -> float:
    ratios = (getattr(f, field) / getattr(p, field) for f, p in zip(figures, plain, strict=True))
    return float(median(ratios))


def _measure(name: str, *, tasks: int, rate: int) -> Figure:
    variant = "plain" if name == "paced" else name
    with Fleet(variant, rate=rate, workers=1) as fleet:
        if name != "paced":
            fleet.send(range(tasks))
            fleet.redis.rename(QUEUE, ASIDE)
        fleet.start()
        fleet.send(range(-WARM_UP, 0))
        fleet.wait_for_first()
        _finish(fleet, WARM_UP, timeout=30)
        idle = _idle_rate(fleet)

        began, before = time.monotonic(), fleet.cpu()
        if name == "paced":
            _send_paced(fleet, tasks, rate)
        else:
            fleet.redis.rename(ASIDE, QUEUE)
        _finish(fleet, WARM_UP + tasks, timeout=60 + 2 * tasks / rate)
        used, seconds = fleet.cpu() - before, time.monotonic() - began
    return Figure(
        raw_ms=1000 * used / tasks,
        corrected_ms=1000 * (used - idle * seconds) / tasks,
        idle_ms_per_s=1000 * idle,
        seconds=seconds,
    )


def _finish(fleet: Fleet, count: int, timeout: float) -> None:
    if not fleet.wait(lambda: fleet.started() >= count and fleet.drained(), timeout):
        raise RuntimeError(f"{fleet.variant}: {fleet.started()} of {count} tasks within {timeout:g} s")


def _idle_rate(fleet: Fleet) -> float:
    """Seconds of CPU a second that a warm worker uses for nothing."""
    began, before = time.monotonic(), fleet.cpu()
    time.sleep(IDLE)
    return (fleet.cpu() - before) / (time.monotonic() - began)


def _send_paced(fleet: Fleet, tasks: int, rate: int) -> None:
    began = time.monotonic()
    with fleet.sender.producer_or_acquire() as producer:
        for index in range(tasks):
            time.sleep(max(0.0, began + index / rate - time.monotonic()))
            fleet.send([index], producer)
