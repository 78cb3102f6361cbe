"""How values are shown: tables, times, and names that may hold anything; or all of it as JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..words import clock, end_of, length, number_of, plain, seconds_of, unnamed

__all__ = [
    "NO_LIMITS",
    "Duration",
    "clock",
    "end_of",
    "length",
    "number_of",
    "plain",
    "show_json",
    "table_of",
    "tell",
    "unnamed",
]

NO_LIMITS = "No limits are declared or stored."

if TYPE_CHECKING:
    _ParamType = click.ParamType[float]
else:  # before click 8.4 it has no type arguments
    _ParamType = click.ParamType

#: Cells between two columns of a table; up to which its first column, and the others, are not folded.
GAP, WHOLE, FOLDED = 2, 40, 20


class Duration(_ParamType):
    """A length of time: ``90``, ``10m``, ``1h30m``; in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return seconds_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def show_json(value: Any) -> None:
    """Print a value as JSON: frozen data by its fields, limits as people write them, times in seconds since 1970."""
    click.echo(json.dumps(_plain_data(value), indent=2))


def _plain_data(value: Any) -> Any:
    from ..limits.any_limit import AnyLimit

    if isinstance(value, AnyLimit):
        return str(value).removeprefix(f"{value.name}: ")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain_data(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return _plain_data(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): _plain_data(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain_data(each) for each in value]
    return value


def table_of(heads: Sequence[str], rows: Sequence[Sequence[str]], gives_way: Sequence[str] = ()) -> Any:
    """A table of rich's on a terminal, where that is installed; else its text, aligned.

    ``gives_way``: columns that are left out where a terminal is too narrow for all, the first of them first.
    """
    if sys.stdout.isatty():
        try:
            import rich.table  # noqa: F401
        except ImportError:
            pass
        else:
            return _rich_table(heads, rows, gives_way)
    columns = list(zip(heads, *rows, strict=True))
    widths = [max(map(_width, column)) for column in columns]
    lines = [
        "  ".join(each + " " * (width - _width(each)) for each, width in zip(row, widths, strict=True)).rstrip()
        for row in (heads, *rows)
    ]
    return "\n".join(lines)


def _rich_table(heads: Sequence[str], rows: Sequence[Sequence[str]], gives_way: Sequence[str]) -> Any:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns = {head: column for head, *column in zip(heads, *rows, strict=True)}
    # What a row is about, and what is short, is not folded.
    least = {head: min(FOLDED, max(map(_width, (head, *column)))) for head, column in columns.items()}
    least[heads[0]] = min(WHOLE, max(map(_width, (heads[0], *columns[heads[0]]))))
    left_out = []
    for head in gives_way:
        if sum(least.values()) + GAP * (len(least) - 1) <= Console().width:
            break
        del least[head]
        left_out.append(head)
    table = Table(box=None, pad_edge=False, header_style="bold", caption_justify="left", caption_style="dim")
    for head, width in least.items():
        table.add_column(head, overflow="fold", min_width=width)
    for row in zip(*[columns[head] for head in least], strict=True):
        table.add_row(*map(Text, row))
    if left_out:
        table.caption = f"hidden, the terminal is narrow: {', '.join(left_out)}"
    return table


def _width(text: str) -> int:
    """Cells of a terminal."""
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )


def tell(shown: Any) -> None:
    """Print a table."""
    if isinstance(shown, str):
        click.echo(shown)
    else:
        from rich.console import Console

        Console().print(shown)
