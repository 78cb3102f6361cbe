"""Scenario ``fleet``: a backlog, sent beforehand, through two workers under each throttle."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from statistics import median

from benchmarks import measures, processes
from benchmarks.workers import Fleet, pushes, scripts

LABELS = {
    "plain": "no throttle",
    "recipe": "usual recipe (INCR, retry)",
    "native": "Celery rate_limit",
    "heimdall": "celery-heimdall, one key",
    "heimdall_docs": "celery-heimdall, no key",
    "retry": "celery_ratelimit, retry",
    "wait": "celery_ratelimit, wait",
}
#: What a variant needs beside the package; without it the row says so.
NEEDS = {"heimdall": "celery_heimdall", "heimdall_docs": "celery_heimdall"}
TICK = 0.05  # seconds between samples of memory and of what is unacknowledged
HOLD = 2.0  # seconds that the baseline idles on, so that it counts what workers say to each other at start-up


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of one variant came to. README.md says what each figure means."""

    complete: bool
    started: int
    twice: int
    refused: int
    seconds: float
    share: float
    worst_second: int
    sent_again: float
    displacement: float
    displacement_p99: float
    scripts: float
    cpu_ms: float
    unacked: int
    rss_growth_mb: float


#: Medians over repeated runs hide the bad one: of these the worst is reported, of all else the median.
WORST_OF = ("twice", "refused", "worst_second", "unacked", "rss_growth_mb")


def run(
    variants: Sequence[str],
    *,
    tasks: int,
    rate: int,
    repeat: int,
    say: Callable[[str], None],
    upstream: str = "",
    before: Callable[[], None] = lambda: None,
) -> list[dict[str, object]]:
    """Run each variant ``repeat`` times in turn, after a baseline without throttle.

    Args:
        upstream: ``host:port`` that each body calls; the baseline calls nothing.
        before: called before each run, to start it from a clean state.
    """
    say("fleet: baseline without throttle")
    base = _run_once("plain", tasks=tasks, rate=rate, hold=HOLD)
    missing = [variant for variant in variants if variant in NEEDS and find_spec(NEEDS[variant]) is None]
    runs: dict[str, list[Run]] = {name: [] for name in variants if name != "plain" and name not in missing}
    for number in range(repeat):
        for variant, done in runs.items():
            say(f"{LABELS[variant]}" + (f", {number + 1} of {repeat}" if repeat > 1 else ""))
            before()
            done.append(_run_once(variant, tasks=tasks, rate=rate, base=base, upstream=upstream))
    rows = {"plain": [base], **runs} if not upstream else runs
    return [{"variant": name, "label": LABELS[name], **_summary(done)} for name, done in rows.items()] + [
        {"variant": name, "label": LABELS[name], "note": "not installed"} for name in missing
    ]


def _run_once(
    variant: str, *, tasks: int, rate: int, base: Run | None = None, upstream: str = "", hold: float = 0.0
) -> Run:
    cap = max(15.0, 1.5 * tasks / rate)  # a throttle that has stalled is cut off and reported as it stands
    with Fleet(variant, rate=rate, upstream=upstream) as fleet:
        fleet.send(range(tasks))
        fleet.redis.config_resetstat()  # the sends that we did are not the ones that we count
        fleet.start()
        fleet.wait_for_first()
        watch = _Watch(fleet)
        for _ in fleet.ticks(cap, TICK):
            watch.sample()
            if fleet.started() >= tasks and fleet.drained():
                break
        cut = time.time()
        cpu_ms = watch.cpu_ms_per_task()
        if hold:
            time.sleep(hold)
        calls = fleet.calls()
        starts = fleet.starts()
    times = Counter(start.index for start in starts)
    complete = len(times) >= tasks
    middle, p99 = measures.displacement(starts)
    # What is left after these is the throttle's own: workers greet each other through queues and scripts too.
    greeted, scripted = (base.sent_again * tasks, base.scripts * base.started) if base else (0.0, 0.0)
    return Run(
        complete=complete,
        started=len(times),
        twice=sum(count > 1 for count in times.values()),
        refused=sum(start.status == 429 for start in starts),
        seconds=starts[-1].at - starts[0].at if complete else cut - starts[0].at,
        share=measures.share_of_rate(starts, rate, None if complete else cut),
        worst_second=measures.worst_second(starts),
        sent_again=max(0.0, pushes(calls) - greeted) / tasks,
        displacement=middle,
        displacement_p99=p99,
        scripts=max(0.0, scripts(calls) - scripted) / len(times),
        cpu_ms=cpu_ms,
        unacked=watch.unacked,
        rss_growth_mb=watch.rss_growth_mb(),
    )


class _Watch:
    """Samples a running fleet. A worker's own start-up is left out: it counts from its first task on."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.unacked = 0
        self._begun: dict[int, tuple[float, int]] = {}  # worker -> CPU and tasks when its first task was seen
        self._rss: dict[int, tuple[float, float]] = {}  # worker -> MB then, and the most since

    def sample(self) -> None:
        self.unacked = max(self.unacked, self.fleet.unacked())
        if len(self._begun) < len(self.fleet.workers):
            for leader, tasks in self._tasks().items():
                self._begun.setdefault(leader, (processes.cpu_seconds(leader), tasks))
        for leader in self._begun:
            now = processes.rss_mb(leader)
            first, most = self._rss.get(leader, (now, now))
            self._rss[leader] = first, max(most, now)

    def cpu_ms_per_task(self) -> float:
        """CPU of main and pool processes since their worker's first task, by the tasks started since then."""
        tasks = self._tasks()
        done = sum(tasks[leader] - first for leader, (_, first) in self._begun.items())
        used = sum(processes.cpu_seconds(leader) - first for leader, (first, _) in self._begun.items())
        return 1000 * used / done if done else math.nan

    def rss_growth_mb(self) -> float:
        return max((most - first for first, most in self._rss.values()), default=0.0)

    def _tasks(self) -> Counter[int]:
        """Tasks started so far, by worker: a pool process is in the process group of its worker."""
        tasks: Counter[int] = Counter()
        for pid, count in self.fleet.started_by_process().items():
            try:
                tasks[os.getpgid(pid)] += count
            except ProcessLookupError:  # a pool process that has been replaced
                continue
        return tasks


def _summary(runs: Sequence[Run]) -> dict[str, object]:
    """The median of each figure over the runs (of :data:`WORST_OF`, the worst), and the runs themselves."""
    rows = [asdict(run) for run in runs]
    figures: dict[str, object] = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name == "complete":
            figures[name] = all(values)
        else:
            figures[name] = max(values) if name in WORST_OF else median(values)
    return {**figures, "runs": rows}
