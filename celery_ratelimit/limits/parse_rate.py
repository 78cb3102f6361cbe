"""Reads rates such as ``"100/s"`` into exact fractions."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from ..errors import ConfigurationError, shown

__all__ = ["Rate", "parse_rate", "parse_window", "period_of"]

_UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
}


_RATE = re.compile(
    # Not \d: digits of other scripts may look like ASCII digits, or like nothing, in the settings.
    r"\s*(?P<count>[0-9]+(?:\.[0-9]+)?)\s*(?:/|per\b)\s*(?P<span>[0-9]+(?:\.[0-9]+)?)?\s*(?P<unit>[a-z]+)\s*",
    re.IGNORECASE,
)


#: More digits than any valid rate needs.
_MOST_DIGITS = 40


_RATE_HELP = 'write a count per period, such as "100/s", "5/10s", "1000/h", "0.5/s" or "10 per 2 minutes"'


@dataclass(frozen=True, slots=True)
class Rate:
    """``count`` permits in every ``period`` microseconds, both whole: the emission interval is their quotient.

    Kept as a fraction because most intervals are not whole microseconds: 3/s is one permit in 333,333⅓.
    """

    count: int
    period_us: int

    @property
    def per_second(self) -> float:
        return self.count * 1_000_000 / self.period_us

    @property
    def interval(self) -> float:
        """The emission interval in seconds: the time in which one permit comes back."""
        return self.period_us / self.count / 1_000_000


def parse_rate(text: str, headroom: float = 0.0) -> Rate:
    """Read a rate such as ``"100/s"``, less the headroom. Raises :class:`ConfigurationError` that names the text."""
    if not isinstance(text, str):
        raise ConfigurationError(f"cannot read the rate {shown(text)}: {_RATE_HELP}")
    return _parse_rate(text, Fraction(str(headroom)))


def parse_window(text: str, headroom: float, *, keep_period: bool) -> Rate:
    """Read a rate that :func:`parse_rate` has read as a count in a window: ``"1000/h"`` is 1,000 in an hour.

    The headroom makes the window longer; with ``keep_period`` it makes the count smaller.
    """
    count, period = _read_rate(text)
    if count.denominator != 1 or period.denominator != 1:
        raise ConfigurationError(
            f"the rate {shown(text)} is not a whole number in a whole window: write it as such, '1/2s' rather than "
            "'0.5/s'"
        )
    if keep_period:
        count = Fraction(math.floor(count * (1 - Fraction(str(headroom)))))
    else:
        period = Fraction(math.ceil(period / (1 - Fraction(str(headroom)))))
    if count < 1:
        raise ConfigurationError(
            f"the rate {shown(text)} with headroom={shown(headroom)} would never let anything through"
        )
    if count >= 10**9 or period >= 10**15:
        raise ConfigurationError(f"the rate {shown(text)} is more than can be counted exactly in one window")
    return Rate(int(count), int(period))


def period_of(text: str) -> float:
    """The period of a rate as written, in seconds: 3,600 for ``"1000/h"``."""
    return float(_read_rate(text)[1]) / 1e6


def _read_rate(text: str) -> tuple[Fraction, Fraction]:
    """The count, and the period in microseconds, as written."""
    match = _RATE.fullmatch(text)
    unit = _UNITS.get(match["unit"].lower()) if match else None
    if match is None or unit is None:
        raise ConfigurationError(f"cannot read the rate {shown(text)}: {_RATE_HELP}; units are s, m, h and d")
    if max(len(match["count"]), len(match["span"] or "")) > _MOST_DIGITS:
        raise ConfigurationError(
            f"the rate {shown(text)} has more digits than can be kept exactly: round it to nine digits"
        )
    period = Fraction(match["span"] or 1) * unit * 1_000_000
    if period <= 0:
        raise ConfigurationError(f"the rate {shown(text)} has a period of zero: {_RATE_HELP}")
    return Fraction(match["count"]), period


@lru_cache(maxsize=1024)
def _parse_rate(text: str, headroom: Fraction) -> Rate:
    count, period = _read_rate(text)
    per_us = count / period * (1 - headroom)
    if per_us == 0:
        raise ConfigurationError(
            f"the rate {shown(text)} would never let anything through. To stop everything, pause the limit"
        )
    if per_us > 1:
        raise ConfigurationError(f"the rate {shown(text)} is above one permit a microsecond, the finest step kept")
    # In lowest terms, then widened so that both are whole.
    rate = Rate(count=per_us.numerator, period_us=per_us.denominator)
    if rate.count >= 10**9 or rate.period_us >= 10**15:
        raise ConfigurationError(
            f"the rate {shown(text)} has more digits than can be kept exactly: round it to nine digits"
        )
    return rate
