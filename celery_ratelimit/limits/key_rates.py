"""Rates by key: a limit whose keys have rates of their own, in the code."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ConfigurationError, shown
from .any_limit import AnyLimit, is_number

if TYPE_CHECKING:
    from .rate_limit import Limit

__all__ = ["EVERY_OTHER", "Rates", "has_other_answers", "limit_of_key", "rates_of", "whole_limit"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: The key that stands for all keys without a rate of their own.
EVERY_OTHER = "*"
#: Answers that are cached.
_MOST = 10_000

_L = TypeVar("_L", bound=AnyLimit)


class Rates:
    """The rates of a limit's keys: fixed, or given by a user's callable or mapping and cached for ``ttl`` seconds.

    Args:
        written: a ``dict`` of keys to rates, copied; or a callable that gets a key and returns its rate; or another
            mapping, read as a callable. A rate of ``None``: the limit's own rate.
    """

    def __init__(self, label: str, written: Any, ttl: float) -> None:
        self._who = label
        self.ttl = ttl
        self._cache: dict[str, tuple[float, str | None]] = {}
        self._warned = False
        self.fixed: dict[str, str] | None = None
        if type(written) is dict:
            if not written or not all(isinstance(each, str) for pair in written.items() for each in pair):
                raise ConfigurationError(f"{label}: rates={shown(written)} must be keys and their rates, both as text")
            self.fixed = dict(written)
        elif not callable(written) and not isinstance(written, Mapping):
            raise ConfigurationError(
                f"{label}: rates={shown(written)} must be a dict of keys to rates, such as {{'gpt-large': '10000/m'}}, "
                "or a callable that gets a key and returns its rate"
            )
        self.written: Any = written if self.fixed is None else self.fixed
        self._is_mapping = isinstance(written, Mapping)

    def of(self, key: str) -> str | None:
        """The rate of a key; ``None``: the limit's own. An error of the user's code is logged, and is no rate."""
        if self.fixed is not None:
            return self.fixed.get(key, self.fixed.get(EVERY_OTHER))
        now = time.monotonic()
        known = self._cache.get(key)
        if known is not None and now < known[0]:
            return known[1]
        rate: str | None = self._asked(key)
        if len(self._cache) >= _MOST:
            self._cache.clear()
        self._cache[key] = now + self.ttl, rate
        return rate

    def _asked(self, key: str) -> Any:
        try:
            if self._is_mapping:
                found = self.written.get(key)
                return self.written.get(EVERY_OTHER) if found is None else found
            return self.written(key)
        except (Exception, SystemExit) as error:
            self.warn(key, error)
            return None

    def warn(self, key: str, error: BaseException) -> None:
        """Log, once in this process, that the rate of a key cannot be had."""
        if not self._warned:
            self._warned = True
            logger.warning("%s: no rate for key %r: the limit's own rate is in force: %r", self._who, key, error)

    @property
    def by(self) -> str:
        """How displays name what gives the rates."""
        if self.fixed is not None:
            return "by key"
        written = self.written if hasattr(self.written, "__name__") else type(self.written)
        return f"by {written.__name__}"

    def _same(self) -> tuple[Any, ...]:
        if self.fixed is not None:
            return tuple(sorted(self.fixed.items()))
        return (id(self.written) if self._is_mapping else self.written), self.ttl

    def __hash__(self) -> int:
        return hash(self._same())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rates) and self._same() == other._same()

    def __repr__(self) -> str:
        return repr(self.written)

    def __reduce__(self) -> Any:
        return Rates, (self._who, self.written, self.ttl)


def rates_of(label: str, limit: Limit) -> Rates | None:
    """Check the options ``rates`` and ``rates_ttl`` of a limit, with each fixed rate."""
    written, ttl = limit.rates, limit.rates_ttl
    if not is_number(ttl) or ttl <= 0:
        raise ConfigurationError(f"{label}: rates_ttl={shown(ttl)} must be a number of seconds above 0")
    if written is None or isinstance(written, Rates):
        return written
    if limit.key is None or limit.per_worker:
        mend = "leave per_worker out" if limit.per_worker else "give it key=, such as key='{model}'"
        raise ConfigurationError(f"{label}: rates= are of the keys of a limit: {mend}")
    rates = Rates(label, written, ttl)
    for rate in (rates.fixed or {}).values():
        replace(limit, rate=rate, rates=None)
    return rates


def limit_of_key(limit: _L, key: str | None, *, ask: bool = True) -> _L:
    """The limit with the rate that its code gives to ``key``; without keys of its own rate, the limit as it is.

    Never raises: a rate that cannot be had, or that the limit cannot have, is the limit's own, and is logged once.

    Args:
        ask: whether a user's callable may be called: in the processes that decide, not in those that display.
    """
    rates: Rates | None = getattr(limit, "rates", None)
    if rates is None or not key or not isinstance(key, str) or not (ask or rates.fixed is not None):
        return limit
    rate = rates.of(key)
    try:
        if rate is None or rate == limit.rate:  # type: ignore[attr-defined]
            return limit
        changed: _L = _with_rate(limit, rate)
        return changed
    except Exception as error:  # a user's object may raise anything, even when it is compared
        rates.warn(key, error)
        return limit


def whole_limit(limit: _L) -> _L:
    """The limit of which :func:`limit_of_key` has given the limit of a key; itself, if it is none of a key."""
    whole: _L = getattr(limit, "whole", limit)
    return whole


def has_other_answers(limit: AnyLimit) -> bool:
    """Whether the rate of a key may change while the process runs."""
    rates: Rates | None = getattr(whole_limit(limit), "rates", None)
    return rates is not None and rates.fixed is None


@lru_cache(maxsize=1024)
def _with_rate(limit: Any, rate: str) -> Any:
    changed = replace(limit, rate=rate, rates=None)
    object.__setattr__(changed, "whole", limit)
    return changed
