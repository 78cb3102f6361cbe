"""Rates of single keys of a limit, in code: a mapping, or a function with a cache."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ConfigurationError, shown
from .rate import parse_rate

__all__ = ["KeyRates", "key_rates_of"]

logger = logging.getLogger("celery_ratelimit")

#: Most keys of which a function's rates are remembered.
_MOST = 10_000


class KeyRates:
    """Frozen, so that limits are hashable.

    Attributes:
        changes: whether a key's rate may change: it comes from a function.
    """

    def __init__(self, who: str, written: Mapping[str, str] | Callable[[str], str | None], ttl: float) -> None:
        self._who, self._ttl, self.changes = who, ttl, callable(written)
        self._ask = written if callable(written) else None
        self._rates: dict[str, str] = {} if callable(written) else dict(written)
        self._asked: dict[str, tuple[float, str | None]] = {}
        self._has_failed = False
        self._identity = (ttl, written if callable(written) else tuple(sorted(written.items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyRates) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        return repr(self._identity[1] if self.changes else self._rates)

    def __iter__(self) -> Any:
        """The rates that are known, ``"*"`` among them."""
        return iter(self._rates.values())

    def rate(self, key: str) -> str | None:
        """The rate of a key; ``None``: the limit's own. Raises nothing: if a function fails, the last rate stays."""
        if self._ask is None:
            return self._rates.get(key, self._rates.get("*"))
        until, rate = self._asked.get(key, (0.0, None))
        if time.monotonic() < until:
            return rate
        try:
            rate = self._ask(key)
            if rate is not None:
                parse_rate(rate)
        except Exception as error:
            rate = self._asked.get(key, (0.0, None))[1]
            if not self._has_failed:
                self._has_failed = True
                said = "the limit's own rate" if rate is None else f"{rate!r}, as before,"
                logger.warning("%s: rates= gives no rate for key %r, so %s holds: %r", self._who, key, said, error)
        if len(self._asked) >= _MOST:
            self._asked.clear()
        self._asked[key] = time.monotonic() + self._ttl, rate
        return rate


def key_rates_of(who: str, written: Any, ttl: Any, *, key: Any, per_worker: bool) -> KeyRates | None:
    """Read the options ``rates=`` and ``rates_ttl=`` of a limit.

    Raises:
        ConfigurationError: neither a mapping of keys to rates nor a function; or the limit has no keys.
    """
    if written is None or isinstance(written, KeyRates):
        return written
    if not callable(written):
        if not isinstance(written, Mapping) or not all(isinstance(each, str) for each in written):
            raise ConfigurationError(f"{who}: rates={shown(written)} must be a mapping of keys to rates, or a function")
        for rate in written.values():
            parse_rate(rate)
    if key is None or per_worker:
        raise ConfigurationError(
            f"{who}: rates={shown(written)} are of a limit's keys: "
            + ("it has none, give it key='…'" if key is None else "per_worker=True has its own, leave it out")
        )
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not 0 < ttl <= 86_400:
        raise ConfigurationError(f"{who}: rates_ttl={shown(ttl)} must be seconds, above 0 and at most 86400")
    return KeyRates(who, written, ttl)
