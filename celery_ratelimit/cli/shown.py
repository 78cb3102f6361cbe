"""How values are shown: tables, times, and names that may hold anything; or all of it as JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from ..words import clock, length, number_of, plain, seconds_of, unnamed

__all__ = ["Duration", "clock", "length", "number_of", "plain", "show_json", "table_of", "tell", "unnamed"]


class Duration(click.ParamType):  # type: ignore[type-arg]
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


def table_of(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """A table of rich's on a terminal, where that is installed; else its text, aligned."""
    if sys.stdout.isatty():
        try:
            from rich.table import Table
            from rich.text import Text
        except ImportError:
            pass
        else:
            table = Table(box=None, pad_edge=False, header_style="bold")
            for head, *column in zip(heads, *rows, strict=True):
                whole = min(40, max(map(len, column), default=0)) if head == heads[0] else None  # what the row is about
                table.add_column(head, overflow="fold", min_width=whole)
            for row in rows:
                table.add_row(*map(Text, row))
            return table
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [
        "  ".join(each.ljust(width) for each, width in zip(row, widths, strict=True)).rstrip() for row in (heads, *rows)
    ]
    return "\n".join(lines)


def tell(shown: Any) -> None:
    """Print a table."""
    if isinstance(shown, str):
        click.echo(shown)
    else:
        from rich.console import Console

        Console().print(shown)
