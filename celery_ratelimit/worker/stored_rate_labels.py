"""Labels of stored limits, for log lines about throttled tasks: the stored rate and its author."""

from __future__ import annotations

import logging
import time
from typing import Any, NamedTuple

from ..limiter.limit_request import LimitRequest
from ..limiter.sync_store import StoreRunner
from ..limits.any_limit import AnyLimit
from ..limits.rate_limit import Limit
from ..store_calls.outage import Outage

__all__ = ["StoredLimitLabels", "stored_in_place_of"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Buckets whose labels are kept.
_KNOWN = 1000
#: Seconds between two reads for rates that a decision shows and that are not known here.
_LOOK = 1.0


class _Known(NamedTuple):
    said: str
    interval: float


def stored_in_place_of(code: AnyLimit, config: Any) -> str:
    """The stored rate and its author, ``20/s set by anna``; empty: none is in force, or it is the code's."""
    stored = config.override
    if stored is None:
        return ""
    if isinstance(code, Limit) and isinstance(stored, Limit):
        said, same = stored.rate, (stored.rate, stored.size, stored.method) == (code.rate, code.size, code.method)
    else:
        said, same = f"{stored.size} at once", stored.size == code.size
    return "" if same else f"{said} set by {config.by}"


class StoredLimitLabels:
    """Reads and keeps labels: once for each limit until it changes, and for a key when a decision shows another rate.

    Args:
        asker: calls the store.
        outage: of the store; while it lasts, no label is read.
    """

    def __init__(self, asker: StoreRunner, outage: Outage) -> None:
        self._asker, self._outage = asker, outage
        self._known: dict[tuple[str, str], _Known] = {}
        self._looked = float("-inf")

    def forget(self, names: set[str]) -> None:
        """Forget the labels of these limits: their stored settings have changed."""
        self._known = {bucket: known for bucket, known in self._known.items() if bucket[0] not in names}

    def of(self, demand: LimitRequest, interval: float) -> str:
        """The label of the limit of this request.

        ``interval``: the emission interval in seconds that the decision showed; 0.0: none.
        """
        for key in dict.fromkeys(("", demand.key)):
            known = self._known.get((demand.name, key)) or self._read(demand, key)
            if known is None:
                return ""
            if _is_that(known.interval, interval):
                return known.said
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return ""
        self._looked = now  # the limit has changed since
        known = self._read(demand, demand.key)
        return known.said if known is not None and _is_that(known.interval, interval) else ""

    def _read(self, demand: LimitRequest, key: str) -> _Known | None:
        if self._outage:
            return None
        try:
            config = self._asker.drive(self._asker.core.settings.config(demand.name, key, demand.limit))
        except Exception as error:  # a label is for the log alone, and must not disturb a task
            logger.debug("what is stored for the limit %r cannot be read: %r", demand.name, error)
            return None
        in_force = config.override or demand.limit
        if len(self._known) >= _KNOWN:
            self._known.clear()
        known = _Known(stored_in_place_of(demand.limit, config), in_force.interval)
        self._known[demand.name, key] = known
        return known


def _is_that(interval: float, told: float) -> bool:
    return told <= 0 or abs(told - interval) <= 1e-6 * interval
