"""Lengths of time: what users say in seconds goes over the wire in microseconds."""

from __future__ import annotations

import math
from typing import Any

from ..errors import ConfigurationError, shown

__all__ = ["length_of", "longest_wait", "microseconds", "seconds_of"]

#: Seconds; thirty years.
_FOREVER = 1e9


def microseconds(seconds: float) -> int:
    """Rounded up, and no further away than forever: 2^53 µs are as exact as a number in Lua can be."""
    return math.ceil(min(seconds, _FOREVER) * 1e6)


def seconds_of(what: str, seconds: Any, least: float = -math.inf) -> float:
    """How long somebody would wait, no longer than forever; ConfigurationError unless it is a number of seconds."""
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not seconds >= least:
        raise ConfigurationError(
            f"{what}={shown(seconds)} must be a number of seconds{', 0 or more' if least == 0 else ''}"
        )
    return float(max(-_FOREVER, min(seconds, _FOREVER)))


def longest_wait(max_wait: Any) -> float:
    """Seconds that a call may wait for its turn; ``None``: for ever."""
    if max_wait == 0:  # the usual call
        return 0.0
    return _FOREVER if max_wait is None else seconds_of("max_wait", max_wait)


def length_of(seconds: float, what: str) -> int:
    """A length of time in microseconds; ConfigurationError unless it is above 0."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ConfigurationError(f"{what}={shown(seconds)} must be a number of seconds above 0")
    return microseconds(seconds)
