"""Tables of what was measured, and of what it was meant to reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.algorithms import MIXED, SLIDING_LOG, THREE, TOKEN_BUCKET
from benchmarks.cluster import ONE_TAG, THREE_TAGS

#: Where a run leaves its figures.
RESULT = Path(__file__).parent / "results" / "latest.json"

Row = Mapping[str, Any]
Results = Mapping[str, Sequence[Row]]


def _whole(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.0f}"


def _fixed(digits: int, suffix: str = "") -> Callable[[float], str]:
    return lambda value: "–" if math.isnan(value) else f"{value:.{digits}f}{suffix}"


#: For each scenario, or each part of one: heading, field and how it is printed.
_FLEET = (
    ("started", "started", _whole),
    ("seconds", "seconds", _fixed(1)),
    ("of rate", "share", _fixed(3)),
    ("worst s", "worst_second", _whole),
    ("sent again", "sent_again", _fixed(2)),
    ("moved", "displacement", _whole),
    ("p99", "displacement_p99", _whole),
    ("scripts", "scripts", _fixed(3)),
    ("CPU ms", "cpu_ms", _fixed(2)),
    ("unacked", "unacked", _whole),
    ("+MB", "rss_growth_mb", _fixed(1)),
)
COLUMNS: Mapping[str, Sequence[tuple[str, str, Callable[[float], str]]]] = {
    "fleet": _FLEET,
    "upstream": (("refused", "refused", _whole), *_FLEET),
    "cpu": (
        ("CPU ms a task", "raw_ms", _fixed(3)),
        ("× plain", "ratio", _fixed(2)),
        ("less idle, ms", "corrected_ms", _fixed(3)),
        ("× plain", "ratio_corrected", _fixed(2)),
        ("idle ms/s", "idle_ms_per_s", _fixed(1)),
        ("seconds", "seconds", _fixed(1)),
    ),
    "acquire": (
        ("µs a call", "us", _fixed(1)),
        ("× INCR", "ratio", _fixed(2)),
        ("server µs", "server_us", _fixed(2)),
        ("refused", "refused", _whole),
    ),
    "several": (
        ("µs a decision", "us", _fixed(1)),
        ("× INCR", "ratio", _fixed(2)),
        ("server µs", "server_us", _fixed(2)),
        ("refused", "refused", _whole),
    ),
    "cluster": (
        ("µs a decision", "us", _fixed(1)),
        ("× INCR", "ratio", _fixed(2)),
        ("server µs", "server_us", _fixed(2)),
        ("refused", "refused", _whole),
    ),
    "contended": (
        ("of rate", "share", _fixed(3)),
        ("beyond it", "beyond", _fixed(1)),
        ("scripts", "scripts", _fixed(2)),
        ("refused", "refused", _whole),
    ),
    "server": (
        ("server µs", "server_us", _fixed(2)),
        ("× bare script", "against_bare", _fixed(2)),
        ("× token bucket", "against_token_bucket", _fixed(2)),
        ("refused", "refused", _whole),
    ),
    "memory": (
        ("1 call", "bytes_1", _whole),
        ("100", "bytes_100", _whole),
        ("1,000", "bytes_1000", _whole),
        ("10,000", "bytes_10000", _whole),
        ("a call, of 100", "bytes_a_call_100", _fixed(1)),
        ("of 1,000", "bytes_a_call_1000", _fixed(1)),
        ("of 10,000", "bytes_a_call_10000", _fixed(1)),
    ),
}
TITLES = {
    "fleet": "fleet: {tasks:,} tasks at {rate}/s, two workers of two processes, sent beforehand",
    "upstream": "upstream: {upstream_tasks:,} calls to a server that allows {rate}/s, five at once",
    "cpu": "cpu: one worker of two processes, medians of {cpu_rounds} rounds",
    "acquire": "acquire: one permit from Python, medians of {acquire_rounds} rounds of {acquire_calls:,}",
    "several": "algorithms: three limits, medians of {algorithms_rounds} rounds of {algorithms_calls:,}",
    "server": "algorithms: the server's own time for a decision, in the same rounds",
    "cluster": "cluster: three masters, medians of {cluster_rounds} rounds of {cluster_calls:,}",
    "contended": "cluster: six callers of limits in several slots, which is several scripts a decision",
    "memory": "algorithms: bytes in the store for one bucket, after so many calls",
}


def parts_of(scenario: str, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each table of a scenario: of one table, with the scenario's name, if it has no parts."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(str(row.get("part", scenario)), []).append(row)
    return parts


def label_of(row: Row) -> str:
    """What a row is called; it says whether the run was cut off."""
    return str(row.get("label") or row["name"]) + (" (cut off)" if row.get("complete") is False else "")


def cells_of(scenario: str, row: Row) -> list[str]:
    """A row's figures, in the order of the scenario's columns."""
    return [form(row.get(field, math.nan)) for _, field, form in COLUMNS[scenario]]


def show(console: Console, scenario: str, rows: Sequence[Row], settings: Mapping[str, Any]) -> None:
    """Print the table of one scenario, or those of its parts."""
    for part, rows_of_part in parts_of(scenario, rows).items():
        _show_part(console, part, rows_of_part, settings)


def _show_part(console: Console, scenario: str, rows: Sequence[Row], settings: Mapping[str, Any]) -> None:
    table = Table(title=TITLES[scenario].format(**settings), title_justify="left", title_style="bold", box=box.SIMPLE)
    table.add_column("", no_wrap=True)
    for heading, _, _ in COLUMNS[scenario]:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        name = label_of(row)
        style = "green" if "celery_ratelimit" in name else None
        if "note" in row:
            table.add_row(name, str(row["note"]), style="dim")
            continue
        table.add_row(name, *cells_of(scenario, row), style=style)
    console.print(table)


@dataclass(frozen=True, slots=True)
class Aim:
    """A figure that the package was meant to reach: which one, and its bounds."""

    what: str
    scenario: str
    row: str  # the row's variant, or its name
    field: str
    most: float
    least: float = -math.inf

    def judge(self, results: Results) -> dict[str, object] | None:
        """The figure beside its bounds; None if it was not measured in this run."""
        for row in results.get(self.scenario, ()):
            if self.row in (row.get("variant"), row.get("name")) and self.field in row:
                value = float(row[self.field])
                least = None if self.least == -math.inf else self.least
                reached = self.least <= value <= self.most
                return {
                    "what": self.what,
                    "value": value,
                    "least": least,
                    "most": self.most,
                    "reached": reached,
                }
        return None


def _of_each(what: str, field: str, most: float, least: float = -math.inf) -> Iterable[Aim]:
    for mode in ("retry", "wait"):
        yield Aim(f"{what}, {mode}", "fleet", mode, field, most, least)


AIMS: Sequence[Aim] = (
    *_of_each("share of the rate used", "share", 1.01, 0.99),
    *_of_each("worst second", "worst_second", 102),
    Aim("sent again per task, retry", "fleet", "retry", "sent_again", 1.05),
    Aim("sent again per task, wait", "fleet", "wait", "sent_again", 0),
    Aim("displacement, retry: median", "fleet", "retry", "displacement", 20),
    Aim("displacement, retry: 99th percentile", "fleet", "retry", "displacement_p99", 100),
    Aim("displacement, wait: median", "fleet", "wait", "displacement", 0),
    Aim("displacement, wait: 99th percentile", "fleet", "wait", "displacement_p99", 5),
    Aim("scripts per task, wait", "fleet", "wait", "scripts", 1.05),
    Aim("refused by the upstream, retry", "upstream", "retry", "refused", 0),
    Aim("refused by the upstream, wait", "upstream", "wait", "refused", 0),
    Aim("CPU, limited but not throttled, × plain", "cpu", "passing", "ratio", 1.12),
    Aim("CPU, throttled by wait, × plain", "cpu", "wait", "ratio", 1.4),
    Aim("one acquire, × INCR", "acquire", "celery_ratelimit, Limiter.acquire", "ratio", 1.25),
    Aim("three token buckets in one decision, × INCR", "algorithms", THREE, "ratio", 1.5),
    Aim("token bucket, log and Concurrency in one decision, × INCR", "algorithms", MIXED, "ratio", 1.5),
    Aim("three limits of one hash tag on a cluster, × INCR there", "cluster", ONE_TAG, "ratio", 1.5),
    Aim("three limits of three hash tags on a cluster, × INCR there", "cluster", THREE_TAGS, "ratio", 3.5),
    Aim("server CPU, token bucket, × a bare GCRA script", "algorithms", TOKEN_BUCKET, "against_bare", 1.25),
    Aim("bytes of a token bucket's key", "algorithms", TOKEN_BUCKET, "bytes_1", 160),
    *(
        Aim(f"bytes a logged call, of {calls:,}", "algorithms", SLIDING_LOG, f"bytes_a_call_{calls}", 30)
        for calls in (100, 1000, 10000)
    ),
)


def judge(results: Results) -> list[dict[str, object]]:
    """Every aim that this run measured."""
    return [verdict for aim in AIMS if (verdict := aim.judge(results)) is not None]


def show_aims(console: Console, verdicts: Sequence[Row]) -> None:
    """Print what was reached, and what was not."""
    if not verdicts:
        return
    table = Table(title="what it was meant to reach", title_justify="left", title_style="bold", box=box.SIMPLE)
    for heading in ("", "measured", "aim", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in verdicts:
        bounds = f"≤ {row['most']:g}" if row["least"] is None else f"{row['least']:g} … {row['most']:g}"
        mark = "[green]reached" if row["reached"] else "[red]missed"
        table.add_row(row["what"], f"{row['value']:.4g}", bounds, mark)
    console.print(table)
