"""How values are shown: tables, times, and names that may hold anything; or all of it as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

__all__ = ["Duration", "clock", "length", "number_of", "plain", "show_json", "table_of", "tell", "unnamed"]

#: Seconds until an end that nobody means: a pause that lasts until somebody ends it.
NO_END = 20 * 365 * 86_400.0

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A length of time: ``90``, ``10m``, ``1h30m``; in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value)
        if re.fullmatch(r"\d+(\.\d+)?", text):
            seconds = float(text)
        elif re.fullmatch(r"(\d+(\.\d+)?[smhd])+", text):
            seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)([smhd])", text))
        else:
            self.fail(f"{text!r} is no length of time: write 90, 10m or 1h30m", param, ctx)
        if not 0 < seconds < math.inf:
            self.fail(f"{text!r} must be more than no time", param, ctx)
        return seconds


def plain(text: Any) -> str:
    """A text on one line that changes nothing on a terminal, whatever is in it."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode() for each in str(text)
    )


def unnamed(limit: Any) -> str:
    """A limit without its name."""
    return plain(str(limit).removeprefix(f"{limit.name}: ")) if limit is not None else "?"


def length(seconds: float | None) -> str:
    """A length of time; ``?``: it is not known."""
    if seconds is None:
        return "?"
    if seconds < 60:
        return f"{seconds:.1f} s"
    days, rest = divmod(round(seconds), 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    parts = [
        f"{number} {unit}" for number, unit in ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")) if number
    ]
    return " ".join(parts[:2])


def number_of(tasks: int) -> str:
    """So many tasks."""
    return f"{tasks} task{'' if tasks == 1 else 's'}"


def clock(at: float | None, now: float | None = None) -> str:
    """A time of day; with its date if that is not today."""
    if at is None:
        return ""
    now = time.time() if now is None else now
    if at - now > NO_END:
        return "until it is resumed"
    form = "%H:%M:%S" if time.localtime(at)[:3] == time.localtime(now)[:3] else "%Y-%m-%d %H:%M:%S"
    return time.strftime(form, time.localtime(at))


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
