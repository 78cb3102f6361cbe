"""Formats values as text: lengths of time, times of day, limits."""

from __future__ import annotations

import math
import re
import time
from typing import Any

from .name_suggestions import plain

__all__ = ["NO_END", "clock", "end_of", "few_digits", "length", "number_of", "plain", "seconds_of", "unnamed"]

#: An end this many seconds away counts as none: a pause that lasts until a command ends it.
NO_END = 20 * 365 * 86_400.0

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds_of(text: str) -> float:
    """Parse a length of time, ``90``, ``10m``, ``1h30m``, into seconds.

    Raises:
        ValueError: says what is wrong with the text.
    """
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        seconds = float(text)
    elif re.fullmatch(r"([0-9]+(\.[0-9]+)?[smhd])+", text):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)([smhd])", text))
    else:
        raise ValueError(f"{text!r} is no length of time: write 90, 10m or 1h30m")
    if not 0 < seconds < math.inf:
        raise ValueError(f"{text!r} must be more than no time")
    return seconds


def unnamed(limit: Any) -> str:
    """A limit without its name."""
    return plain(str(limit).removeprefix(f"{limit.name}: ")) if limit is not None else "?"


def length(seconds: float | None) -> str:
    """A length of time; ``?``: not known, or as long as a pause without an end."""
    if seconds is None or seconds > NO_END:
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


def number_of(tasks: int, what: str = "task") -> str:
    """A number of tasks, as text."""
    return f"{tasks} {what}{'' if tasks == 1 else 's'}"


def clock(at: float | None, now: float | None = None) -> str:
    """A time of day; with the date if it is not today."""
    if at is None:
        return ""
    now = time.time() if now is None else now
    if at - now > NO_END:
        return "never"
    form = "%H:%M:%S" if time.localtime(at)[:3] == time.localtime(now)[:3] else "%Y-%m-%d %H:%M:%S"
    return time.strftime(form, time.localtime(at))


def end_of(what: str, at: float, now: float | None = None) -> str:
    """The end of a setting as text; if it has no end, ``what`` names the act that ends it: ``resumed``, ``unset``."""
    has_none = at - (time.time() if now is None else now) > NO_END
    return f"until {what}" if has_none else f"until {clock(at, now)}"


def few_digits(number: float) -> str:
    """A number of permits, as in ``0.22`` or ``93``."""
    return f"{number:.2g}" if number < 9.95 else f"{number:.0f}"
