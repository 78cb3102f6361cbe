"""The plots of ``docs/algorithms.md``: what each algorithm admits over time (``python -m benchmarks.plot_algorithms``).

The real scripts decide, on a clock that stands still between calls (:mod:`benchmarks.clock`), so that every run draws
the same pictures. Needs matplotlib (the ``demo`` extra).
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
logging.getLogger("matplotlib").setLevel(logging.ERROR)

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.layout_engine import ConstrainedLayoutEngine  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402

from benchmarks.clock import START, StandingClock, standing_clock, us  # noqa: E402
from celery_ratelimit import Concurrency, Limit  # noqa: E402
from celery_ratelimit.limiter.limit_request import LimitRequest  # noqa: E402
from celery_ratelimit.limiter.script_calls import LeasesToRelease  # noqa: E402

TO = Path(__file__).resolve().parent.parent / "docs" / "algorithms"
ADMITTED, AREA, OVER, LIMIT = "#1d4ed8", "#93c5fd", "#fca5a5", "#0f172a"
REFUSED, WAITING = "#ef4444", "#cbd5e1"
TEXT, FAINT, GRID = "#0f172a", "#64748b", "#e2e8f0"
DASHES = (0, (5, 3))
OFFSET: dict[str, Any] = {"textcoords": "offset points", "va": "center"}

#: The limit of every plot but two: so many in a second.
N = 10
END = us(8)
#: One call by itself; then somebody asks all the time; a rest; and again.
ALONE = us(0.1)
ASKED = ((us(0.59), us(3.6)), (us(5.2), END))

#: File, and in it the panels: title, limit.
GREEDY: dict[str, Sequence[tuple[str, Limit]]] = {
    "token_bucket": (
        ('Limit("10/s")', Limit("10/s")),
        ('Limit("10/s", burst=10)', Limit("10/s", burst=10)),
    ),
    "token_bucket_interval": (
        ('Limit("10/s", burst=10, refill="interval")', Limit("10/s", burst=10, refill="interval")),
    ),
    "token_bucket_warmup": (('Limit("10/s", warmup=2)', Limit("10/s", warmup=2)),),
    "fixed_window": (
        ('Limit("10/s", algorithm="fixed_window")', Limit("10/s", algorithm="fixed_window")),
        (
            'Limit("10/s", algorithm="fixed_window", align="first")',
            Limit("10/s", algorithm="fixed_window", align="first"),
        ),
    ),
    "sliding_window": (
        ('Limit("10/s", algorithm="sliding_window")', Limit("10/s", algorithm="sliding_window")),
        (
            'Limit("10/s", algorithm="sliding_window", sub_windows=1)',
            Limit("10/s", algorithm="sliding_window", sub_windows=1),
        ),
    ),
    "sliding_log": (('Limit("10/s", algorithm="sliding_log")', Limit("10/s", algorithm="sliding_log")),),
}


def main() -> None:
    TO.mkdir(parents=True, exist_ok=True)
    for name, panels in GREEDY.items():
        with standing_clock() as clock, _figure(name, len(panels), 1.75) as axes:
            worst = []
            for number, (title, limit) in enumerate(panels):
                permits = _greedy(clock, LimitRequest(limit, f"{name}{number}"))
                worst.append(_greedy_panel(axes[number], title, permits))
            _seconds(axes[-1])
            _greedy_legend(axes[0], any(each > N for each in worst))
    with standing_clock() as clock, _figure("leaky_bucket", 1, 2.7) as axes:
        _leaky(clock, axes[0])
    with standing_clock() as clock, _figure("concurrency", 1, 3.3) as axes:
        _concurrency(clock, axes[0])


# -- Somebody who always asks ------------------------------------------------------------------------------------------


def _greedy(clock: StandingClock, demand: LimitRequest) -> list[int]:
    """When permits were given: asked for again at once after a yes, and when told to after a no."""

    def ask(now: int) -> Any:
        clock.set(now)
        return clock.limiter._asker.ask((demand,))

    permits = [ALONE] if ask(ALONE).allowed else []
    for begin, end in ASKED:
        now = begin
        while now < end:
            decision = ask(now)
            if decision.allowed:
                permits.append(now)
            else:
                now += us(decision.retry_after)
    return permits


def _greedy_panel(axes: Axes, title: str, permits: Sequence[int]) -> int:
    """Draws it, and returns the most permits in a second."""
    steps = sorted({0, *permits, *(permit + us(1) for permit in permits if permit + us(1) < END)})
    within = [sum(1 for permit in permits if at - us(1) < permit <= at) for at in steps]
    edges = [at / us(1) for at in [*steps, END]]
    axes.stairs([min(each, N) for each in within], edges, fill=True, color=AREA, lw=0)
    axes.stairs([max(each, N) for each in within], edges, baseline=N, fill=True, color=OVER, lw=0)
    axes.axhline(N, color=LIMIT, lw=1.2, ls=DASHES)
    for permit, together in Counter(permits).items():
        axes.vlines(permit / us(1), 22.3, 26, color=ADMITTED, lw=0.9 if together == 1 else 2)
        if together > 1:
            where = (permit / us(1), 24.1)
            axes.annotate(f"{together}", where, (-4, 0), ha="right", **OFFSET, color=ADMITTED)
    for begin, end in ((ALONE - us(0.02), ALONE + us(0.02)), *ASKED):
        axes.hlines(-2.2, begin / us(1), end / us(1), color=FAINT, lw=3, capstyle="butt", clip_on=False)
    worst = max(within)
    axes.set_title(title, loc="left", fontsize=10, family="monospace", color=TEXT, pad=6)
    colour = REFUSED if worst > N else ADMITTED
    axes.set_title(
        f"{len(permits)} permits, at most {worst} in a second", loc="right", fontsize=10, color=colour, pad=6
    )
    axes.set_xlim(0, END / us(1))
    axes.set_ylim(-3.4, 26.5)
    axes.set_yticks([0, 10, 20])
    axes.grid(axis="y", color=GRID, lw=0.8)
    _bare(axes)
    return worst


def _greedy_legend(axes: Axes, over: bool) -> None:
    keys = [
        Line2D([], [], color=ADMITTED, lw=0, marker="|", ms=11, mew=1.2),
        Patch(color=AREA),
        Patch(color=OVER),
        Line2D([], [], color=LIMIT, ls=DASHES, lw=1.2),
        Line2D([], [], color=FAINT, lw=3),
    ]
    names = ["a permit, or so many", "permits in the last second", "of these, above 10", "10", "somebody asks"]
    if not over:
        del keys[2], names[2]
    _legend(axes, keys, names)


# -- A queue with an end -----------------------------------------------------------------------------------------------


def _leaky(clock: StandingClock, axes: Axes) -> None:
    limit = Limit("10/s", algorithm="leaky_bucket", capacity=5)
    arrivals = [us(0.5)] * 12
    arrivals += [us(2) + number * us(0.07) for number in range(43)]
    arrivals += [us(6.5) + number * us(0.02) for number in range(4)]
    demand = LimitRequest(limit, "leaky")
    started: list[int] = []
    refused: list[int] = []
    waits: list[tuple[int, int]] = []
    since = dict(enumerate(arrivals))
    events = [(at, number) for number, at in enumerate(arrivals)]
    heapq.heapify(events)
    while events:
        now, number = heapq.heappop(events)
        clock.set(now)
        decision = clock.limiter._asker.ask((demand,), id=f"call-{number}", claim=3600)
        if decision.allowed:
            started.append(now)
            waits.append((since[number], now))
        elif decision.queue_full:
            refused.append(now)
        else:
            heapq.heappush(events, (now + us(decision.retry_after), number))
    steps = sorted({0, END, *(at for wait in waits for at in wait)})
    waiting = [sum(1 for begin, end in waits if begin <= at < end) for at in steps]
    axes.fill_between([at / us(1) for at in steps], waiting, step="post", color=WAITING, lw=0)
    axes.axhline(5, color=LIMIT, lw=1.2, ls=DASHES)
    for times, low, colour in ((arrivals, 11.2, FAINT), (started, 8.8, ADMITTED), (refused, 6.4, REFUSED)):
        axes.vlines([at / us(1) for at in times], low, low + 1.7, color=colour, lw=0.9)
    for number, low in ((12, 11.2), (4, 11.2)):
        at = 0.5 if number == 12 else 6.56
        axes.annotate(f"{number}", (at, low + 0.85), (5, 0), **OFFSET, color=FAINT)
    axes.annotate(f"{refused.count(us(0.5))}", (0.5, 7.25), (5, 0), **OFFSET, color=REFUSED)
    title = 'Limit("10/s", algorithm="leaky_bucket", capacity=5)'
    axes.set_title(title, loc="left", fontsize=10, family="monospace", color=TEXT, pad=6)
    verdict = f"{len(arrivals)} calls, {len(started)} permits, {len(refused)} refused"
    axes.set_title(verdict, loc="right", fontsize=10, color=ADMITTED, pad=6)
    axes.set_xlim(0, END / us(1))
    axes.set_ylim(0, 13.4)
    axes.set_yticks([0, 5, 7.25, 9.65, 12.05], ["0", "5", "refused", "permits", "calls"])
    axes.hlines(0, 0, END / us(1), color=GRID, lw=0.8)
    _bare(axes)
    _seconds(axes)
    keys = [Patch(color=WAITING), Line2D([], [], color=LIMIT, ls=DASHES, lw=1.2)]
    _legend(axes, keys, ["calls that wait", "capacity"])


# -- So many at once ---------------------------------------------------------------------------------------------------


@dataclass
class Job:
    """A task under Concurrency."""

    arrives: float
    lasts: float
    killed: bool = False
    begins: int = -1
    ends: int = -1
    renewed: list[int] = field(default_factory=list)

    def free_at(self, lease: int) -> int:
        """When its place is another's."""
        return max([self.begins, *self.renewed]) + lease if self.killed else self.ends


def _concurrency(clock: StandingClock, axes: Axes) -> None:
    limit = Concurrency(3, lease=1.5)
    lease = us(limit.lease)
    jobs = [
        *(Job(0.2, 1.1), Job(0.35, 3.6), Job(0.5, 0.9, killed=True), Job(0.65, 1.3), Job(0.8, 0.8)),
        *(Job(1.2, 1.4), Job(2.6, 0.7), Job(4.6, 1.0), Job(5.0, 1.8)),
    ]
    demand = LimitRequest(limit, "places")
    turn = count()
    events: list[tuple[int, int, str, int]] = []

    def then(at: int, what: str, number: int) -> None:
        heapq.heappush(events, (at, next(turn), what, number))

    for number, job in enumerate(jobs):
        then(us(job.arrives), "ask", number)
    while events:
        now, _, what, number = heapq.heappop(events)
        clock.set(now)
        job, id = jobs[number], f"job-{number}"
        if what == "ask":
            decision = clock.limiter._asker.ask((demand,), id=id, claim=3600)
            if not decision.allowed:
                # A worker asks four times a second while tasks of its own wait for a place.
                then(now + min(us(0.25), us(decision.retry_after)), "ask", number)
                continue
            job.begins, job.ends = now, now + us(job.lasts)
            then(now + lease // 3, "renew", number)
            if not job.killed:
                then(job.ends, "end", number)
        elif what == "renew" and now < job.ends:
            assert clock.limiter._asker.renew([(demand, id)]) == [True]
            job.renewed.append(now)
            then(now + lease // 3, "renew", number)
        elif what == "end":
            assert clock.limiter._asker.release([LeasesToRelease(id, [demand], START + job.begins)])
    for number, job in enumerate(jobs):
        row = len(jobs) - number
        _bar(axes, row, us(job.arrives), job.begins, WAITING, 0.16)
        _bar(axes, row, job.begins, job.ends, ADMITTED, 0.62)
        axes.vlines([at / us(1) for at in job.renewed], row - 0.31, row + 0.31, color="white", lw=1.2)
        if job.killed:
            _bar(axes, row, job.ends, job.free_at(lease), "none", 0.62, edgecolor=REFUSED, hatch="////", lw=0.8)
            axes.plot(job.ends / us(1), row, marker="x", color=REFUSED, ms=8, mew=2)
            words = "killed at ×; free when the lease has expired"
            axes.annotate(words, (job.free_at(lease) / us(1), row), (6, 0), color=REFUSED, **OFFSET)
    axes.set_title("Concurrency(3, lease=1.5)", loc="left", fontsize=10, family="monospace", color=TEXT, pad=6)
    most = max(sum(1 for job in jobs if job.begins <= at < job.free_at(lease)) for at in [j.begins for j in jobs])
    axes.set_title(f"{len(jobs)} tasks, at most {most} at once", loc="right", fontsize=10, color=ADMITTED, pad=6)
    axes.set_xlim(0, END / us(1))
    axes.set_ylim(0.4, len(jobs) + 0.6)
    axes.set_yticks([])
    axes.set_ylabel("one row a task")
    axes.grid(axis="x", color=GRID, lw=0.8)
    _bare(axes)
    _seconds(axes)
    keys = [Patch(color=WAITING), Patch(color=ADMITTED), Line2D([], [], color=FAINT, lw=0, marker="|", ms=11, mew=1.2)]
    _legend(axes, keys, ["waits", "holds a place", "its lease is renewed"])


def _bar(axes: Axes, row: int, begin: int, end: int, colour: str, height: float, **more: Any) -> None:
    axes.barh(row, (end - begin) / us(1), height, begin / us(1), color=colour, **more)


# -- What they share ---------------------------------------------------------------------------------------------------


@contextmanager
def _figure(name: str, panels: int, height: float) -> Iterator[list[Axes]]:
    style: dict[Any, Any] = {"font.size": 9.5, "text.color": TEXT, "axes.edgecolor": FAINT, "hatch.linewidth": 0.7}
    style.update(dict.fromkeys(("xtick.color", "ytick.color", "axes.labelcolor"), FAINT))
    with plt.rc_context(style):
        layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08)
        shape: dict[str, Any] = {"sharex": True, "squeeze": False}
        figure, grid = plt.subplots(panels, 1, figsize=(9, 0.6 + height * panels), dpi=130, layout=layout, **shape)
        yield list(grid[:, 0])
        figure.savefig(TO / f"{name}.png", facecolor="white", metadata={"Software": None})
        plt.close(figure)


def _legend(axes: Axes, keys: Sequence[Any], names: Sequence[str]) -> None:
    figure: Any = axes.figure
    figure.legend(keys, names, loc="outside lower center", ncols=len(keys), frameon=False, handlelength=1.6)


def _seconds(axes: Axes) -> None:
    axes.set_xlabel("seconds")


def _bare(axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)


if __name__ == "__main__":
    main()
