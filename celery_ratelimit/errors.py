"""Exceptions, whose texts say what to change.

A refusal is a value (:class:`~celery_ratelimit.limits.decision.Decision`). Exceptions are for a wrong configuration,
a request that can never be granted, and a store that does not answer.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "STORE_TROUBLES",
    "ConfigurationError",
    "ImpossibleRequest",
    "RateLimitError",
    "StoreFull",
    "StoreMisconfigured",
    "StoreUnavailable",
    "Throttled",
    "shown",
]

#: Characters of a value that an error shows.
_LONGEST = 120


def shown(value: Any) -> str:
    """A value as errors show it: cut to a readable length; never raises."""
    if isinstance(value, int) and abs(value) >= 10**_LONGEST:  # Python may refuse to write it out
        return f"{'-' * (value < 0)}1e{int(abs(value).bit_length() * 0.30103)} or so"
    if isinstance(value, (str, bytes)) and len(value) > _LONGEST:
        return f"{value[: _LONGEST - 40]!r}… ({len(value)} characters)"
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 40]}…"


class RateLimitError(Exception):
    """The base of every exception that this package raises."""


class ConfigurationError(RateLimitError, ValueError):
    """An invalid limit, setting or key. The text names the value, and says what to change."""


class ImpossibleRequest(RateLimitError, ValueError):
    """A request for more permits than its limit ever holds at once: it can never be granted.

    Attributes:
        limit: the limit's name.
        cost: the requested permits.
        capacity: the most permits that the limit can grant at once: burst and debt, or the count of its window.
    """

    def __init__(self, limit: str, cost: int, capacity: int) -> None:
        super().__init__(limit, cost, capacity)
        self.limit = limit
        self.cost = cost
        self.capacity = capacity

    def __str__(self) -> str:
        cost = shown(self.cost)
        return (
            f"limit {self.limit!r} can never grant {cost} permits at once: it holds {self.capacity} at most. "
            f"Raise its burst (the count of its window, the number of a Concurrency) to at least {cost}, "
            "or lower the cost"
        )


class Throttled(RateLimitError):
    """Raised for a throttled task with ``throttle="fail"``, and for a ``with`` block, a decorated function or an HTTP
    call whose slot is further away than its ``max_wait``.

    Attributes:
        limit: the name of the limit that refused.
        retry_after: seconds until the task or call could have started.
        max_wait: seconds that it would have waited; ``None``: it does not wait, or the queue is full.
        key: of the limit's bucket; ``""``: the limit has a single bucket.
        max_parked: of the limit, as many tasks are parked; ``None``: another reason.
    """

    def __init__(
        self,
        limit: str,
        retry_after: float,
        max_wait: float | None = None,
        key: str = "",
        max_parked: int | None = None,
    ) -> None:
        # A result backend makes it anew from these, perhaps in a process of an older version.
        more = () if max_wait is None and not key else (max_wait, key)
        super().__init__(limit, retry_after, *more if max_parked is None else (max_wait, key, max_parked))
        self.limit = limit
        self.retry_after = retry_after
        self.max_wait = max_wait
        self.key = key
        self.max_parked = max_parked

    def __str__(self) -> str:
        key = f", key {self.key!r}" if self.key else ""
        beyond = ""
        if self.max_wait is not None:
            # The task has waited for the rest already: this error does not know how long.
            used_up = "" if self.retry_after > self.max_wait else " with what it has waited before"
            beyond = f"{used_up}, beyond max_wait={self.max_wait:g} s"
        if self.max_parked is not None:
            beyond = f", and {self.max_parked} tasks wait already (max_parked)"
        return f"throttled by limit {self.limit!r}{key}: a permit is free in {self.retry_after:.3f} s{beyond}"


class StoreUnavailable(RateLimitError):
    """The limiter's store did not answer, or answered that it cannot serve; the cause is chained."""


class StoreFull(StoreUnavailable):
    """The store has reached its ``maxmemory``, and has refused a script; nothing was written."""


class StoreMisconfigured(ConfigurationError):
    """The store refuses to serve because of its set-up: a password, a permission, a cluster used as a single server.
    The text says what to do; the cause is chained. A running worker handles it as an outage, and loses nothing.
    """


#: Errors of calls to the store. A worker handles both as an outage, because of the tasks that it holds.
STORE_TROUBLES = (StoreUnavailable, StoreMisconfigured)
