"""``python -m example_project.demo``: the same calls by the usual recipe and by celery_ratelimit; then a small tenant
behind a big one, in the order in which they came and fairly.

Exits with 0 if every call of ours was made once and none was refused, with 1 if not or if something could
not be started, and with 128 + the signal's number if it was interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .fleet import START_TIMEOUT, Fleet
from .processes import ChildError, Interrupted, Interrupts
from .results import BIG, SMALL, Run, table, table_of_tenants
from .upstream import BURST, RATE

STALL_TIMEOUT = 8.0  # seconds without a call, after which the missing ones count as lost
POLL = 0.1  # seconds
SMALL_SHARE = 25  # one of so many calls is the small tenant's


@dataclass(frozen=True, slots=True)
class Plan:
    """A run to be: the app that the workers load, and the task that is sent."""

    title: str
    note: str
    app: str
    task: str

    def arguments(self, count: int) -> list[list[Any]]:
        """Of each call."""
        return [[number] for number in range(count)]


@dataclass(frozen=True, slots=True)
class Tenants(Plan):
    """The same, of two tenants: the small one has sent a few behind all of the big one's."""

    def arguments(self, count: int) -> list[list[Any]]:
        small = count // SMALL_SHARE
        return [[BIG, number] for number in range(count - small)] + [[SMALL, number] for number in range(small)]


PLANS = (
    Plan(
        title="usual recipe",
        note="counter per second, retry(countdown=1)",
        app="example_project.recipe",
        task="example_project.recipe.charge",
    ),
    Plan(
        title="celery_ratelimit",
        note='base=RateLimitedTask, limits="100/s"',
        app="example_project.app",
        task="example_project.tasks.charge",
    ),
)

TENANTS = (
    Tenants(
        title="as they came",
        note='limits="100/s"',
        app="example_project.app",
        task="example_project.tasks.export_as_it_comes",
    ),
    Tenants(
        title="fair",
        note='limits=Limit("100/s", fair="{tenant_id}")',
        app="example_project.app",
        task="example_project.tasks.export_fairly",
    ),
)


def main() -> int:
    options = _options()
    console = Console(highlight=False)
    interrupts = Interrupts()
    logs = Path(tempfile.mkdtemp(prefix="ratelimit-demo-"))
    try:
        with contextlib.ExitStack() as stack:
            try:
                fleet = Fleet(interrupts, stack, logs)
                runs = _run_both(options.calls, fleet, console)
                shared = _run_tenants(max(SMALL_SHARE, options.calls // 2), fleet, console)
            except Interrupted:
                console.print("[yellow]Stopping the workers and the servers…")
                raise
            finally:
                interrupts.ignore()
    except Interrupted as interrupted:
        shutil.rmtree(logs, ignore_errors=True)
        console.print(f"Stopped by {interrupted}; nothing is left running.")
        return 128 + interrupted.signum
    except ChildError as error:
        console.print(escape(error.log), soft_wrap=True)
        console.print(f"[bold red]FAILED[/]: {error}. Above is the end of the log; all logs: {logs}", soft_wrap=True)
        return 1
    return _report(runs, shared, options.output, logs, console)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m example_project.demo", description="See the README.")
    parser.add_argument("--calls", type=int, default=1500, help="calls in each run (default: 1500)")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), metavar="DIR", help="for the plots")
    options = parser.parse_args()
    if options.calls < 1:
        parser.error("--calls must be at least 1")
    return options


def _run_both(count: int, fleet: Fleet, console: Console) -> list[Run]:
    console.print(f"{count:,} calls, twice, to an upstream that allows {RATE} a second, {BURST} at once.")
    return [_run(plan, count, fleet, console) for plan in PLANS]


def _run_tenants(count: int, fleet: Fleet, console: Console) -> list[Run]:
    few = count // SMALL_SHARE
    console.print(f"A big tenant's {count - few:,} calls, and behind them a small one's {few:,}; twice.")
    return [_run(plan, count, fleet, console) for plan in TENANTS]


def _run(plan: Plan, count: int, fleet: Fleet, console: Console) -> Run:
    fleet.reset()
    with _progress(console) as progress:
        bar = progress.add_task(plan.title, total=count, state="sending…")
        fleet.send(plan.task, plan.arguments(count))
        progress.update(bar, state="workers start…")
        fleet.start_workers(plan.app)
        for done, per_second, refused in _watch(fleet, count):
            colour = "red" if refused else "green"
            state = f"{per_second:>3}/s  [{colour}]{refused:>5,} refused[/]"
            progress.update(bar, completed=done, state=state)
    run = Run(plan.title, plan.note, count, RATE, fleet.calls(), fleet.deliveries())
    fleet.stop_workers()
    return run


def _progress(console: Console) -> Progress:
    columns = BarColumn(bar_width=None), MofNCompleteColumn(), TextColumn("{task.fields[state]}")
    return Progress(TextColumn("{task.description:<16}"), *columns, TimeElapsedColumn(), console=console, expand=True)


def _watch(fleet: Fleet, count: int) -> Iterator[tuple[int, int, int]]:
    """Calls made, calls in the latest second and calls refused, until every task has called or no more do."""
    samples: deque[tuple[float, int]] = deque()
    done, deadline = 0, time.monotonic() + START_TIMEOUT
    while done < count and time.monotonic() < deadline:
        time.sleep(POLL)
        fleet.check()
        accepted, refused = fleet.counts()
        now = time.monotonic()
        samples.append((now, accepted + refused))
        while samples[0][0] < now - 1:
            samples.popleft()
        if accepted + refused > done:
            done, deadline = accepted + refused, now + STALL_TIMEOUT
        if done:
            yield done, done - samples[0][1], refused
    if not done:
        raise ChildError(f"no task has called within {START_TIMEOUT:.0f} s", fleet.log())
    time.sleep(0.5)  # a call made twice would come about now


def _report(runs: list[Run], shared: list[Run], directory: Path, logs: Path, console: Console) -> int:
    from .plot import draw, draw_tenants  # here, as matplotlib takes a second to load

    plots = directory / "demo.png", directory / "fair.png"
    draw(runs, plots[0])
    draw_tenants(shared, plots[1])
    console.print(table(runs))
    console.print(table_of_tenants(shared))
    for plot in plots:
        console.print(f"Plot: {plot.resolve()}", soft_wrap=True)
    ours = [runs[-1], *shared]
    sent = sum(run.sent for run in ours)
    if all(run.clean for run in ours):
        shutil.rmtree(logs, ignore_errors=True)
        console.print(f"[bold green]OK[/]: {sent:,} calls of ours, none refused, none lost, none made twice.")
        return 0
    console.print(f"Logs of the workers: {logs}", soft_wrap=True)
    refused, lost, repeated = [sum(getattr(run, each) for run in ours) for each in ("refused", "lost", "repeated")]
    console.print(
        f"[bold red]FAILED[/]: of {sent:,} calls of ours, {refused} refused, {lost} lost, {repeated} made twice."
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
