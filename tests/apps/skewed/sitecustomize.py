"""The wall clock of this process is wrong by TEST_SKEW seconds, from before anything else is imported (PYTHONPATH)."""

from __future__ import annotations

import datetime
import os
import time
from typing import Any

SKEW = float(os.environ.get("TEST_SKEW", "0"))
_time, _datetime = time.time, datetime.datetime


def skewed_time() -> float:
    return _time() + SKEW


class SkewedDatetime(_datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return cls.fromtimestamp(skewed_time(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        return cls.fromtimestamp(skewed_time(), datetime.timezone.utc).replace(tzinfo=None)


if SKEW:
    time.time = skewed_time
    datetime.datetime = SkewedDatetime  # type: ignore[misc]
