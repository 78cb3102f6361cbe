"""The command line: ``python -m benchmarks [scenario …]``."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import acquire, algorithms, cluster, cpu, fleet, machine, report, upstream

FLEET = ("plain", "recipe", "native", "heimdall", "heimdall_docs", "retry", "wait")
UPSTREAM = ("recipe", "retry", "wait")


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    # A SIGTERM stops the children as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)  # a log wraps by itself; rich would take 80 for its width
    settings = {
        "tasks": options.tasks,
        "rate": options.rate,
        "repeat": options.repeat,
        "upstream_tasks": options.upstream_tasks,
        "cpu_tasks": options.cpu_tasks,
        "cpu_rate": options.cpu_rate,
        "cpu_rounds": options.rounds,
        "acquire_rounds": options.acquire_rounds,
        "acquire_calls": options.acquire_calls,
        "algorithms_rounds": options.algorithms_rounds,
        "algorithms_calls": options.algorithms_calls,
        "cluster_rounds": options.cluster_rounds,
        "cluster_calls": options.cluster_calls,
    }
    result: dict[str, Any] = {**machine.describe(), "settings": settings, "scenarios": {}, "aims": []}
    try:
        for scenario in options.scenarios:
            with console.status("starting") as status:
                rows = _run(scenario, options, status.update)
            result["scenarios"][scenario] = rows
            result["aims"] = report.judge(result["scenarios"])
            _write(options.json, result)  # after each, so that Ctrl-C keeps what was measured
            report.show(console, scenario, rows, settings)
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running")
        return 130
    report.show_aims(console, result["aims"])
    console.print(f"results: {options.json}")
    return 0


def _run(scenario: str, options: argparse.Namespace, say: Callable[[str], None]) -> Sequence[dict[str, object]]:
    chosen: set[str] = set(options.only or FLEET)
    if scenario == "fleet":
        variants = [name for name in FLEET if name in chosen]
        return fleet.run(variants, tasks=options.tasks, rate=options.rate, repeat=options.repeat, say=say)
    if scenario == "upstream":
        variants = [name for name in UPSTREAM if name in chosen]
        return upstream.run(variants, tasks=options.upstream_tasks, rate=options.rate, repeat=options.repeat, say=say)
    if scenario == "cpu":
        return cpu.run(tasks=options.cpu_tasks, rate=options.cpu_rate, rounds=options.rounds, say=say)
    if scenario == "algorithms":
        return algorithms.run(rounds=options.algorithms_rounds, calls=options.algorithms_calls, say=say)
    if scenario == "cluster":
        return cluster.run(rounds=options.cluster_rounds, calls=options.cluster_calls, say=say)
    return acquire.run(rounds=options.acquire_rounds, calls=options.acquire_calls, say=say)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    scenarios = ("fleet", "upstream", "cpu", "acquire", "algorithms", "cluster")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="celery_ratelimit beside its peers, in one run."
    )
    parser.add_argument(
        "scenarios", nargs="*", metavar="SCENARIO", help=f"{', '.join(scenarios)}; default: all of them"
    )
    parser.add_argument("--tasks", type=int, default=2000, help="tasks of the fleet (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=100, help="tasks a second (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each throttle, medians (default: %(default)s)")
    parser.add_argument("--only", type=_names, help=f"throttles, by comma: {','.join(FLEET)}")
    parser.add_argument("--upstream-tasks", type=int, default=1500, help="calls (default: %(default)s)")
    parser.add_argument("--cpu-tasks", type=int, default=3000, help="tasks a round (default: %(default)s)")
    parser.add_argument("--cpu-rate", type=int, default=300, help="of the throttled (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of cpu (default: %(default)s)")
    parser.add_argument("--acquire-rounds", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--acquire-calls", type=int, default=1000, help="a round (default: %(default)s)")
    parser.add_argument("--algorithms-rounds", type=int, default=12, help="default: %(default)s")
    parser.add_argument("--algorithms-calls", type=int, default=400, help="a round (default: %(default)s)")
    parser.add_argument("--cluster-rounds", type=int, default=12, help="default: %(default)s")
    parser.add_argument("--cluster-calls", type=int, default=400, help="a round (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=report.RESULT, help="where to (default: %(default)s)")
    options = parser.parse_args(argv)
    # Not by choices=: argparse holds an empty list of scenarios against them.
    if wrong := [name for name in options.scenarios if name not in scenarios]:
        parser.error(f"there is no scenario {wrong[0]!r}: choose from {', '.join(scenarios)}")
    options.scenarios = options.scenarios or scenarios
    return options


def _names(text: str) -> list[str]:
    names = text.split(",")
    if wrong := [name for name in names if name not in FLEET]:
        raise argparse.ArgumentTypeError(f"there is no throttle {wrong[0]!r}: choose from {', '.join(FLEET)}")
    return names


def _write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
