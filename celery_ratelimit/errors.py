"""What can go wrong, said so that the reader knows what to change. Being throttled is not among it.

A refusal is a value (:class:`~celery_ratelimit.limits.decision.Decision`). Exceptions are for a wrong configuration,
a request that no waiting could satisfy, and a store that does not answer.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "STORE_TROUBLES",
    "ConfigurationError",
    "ImpossibleRequest",
    "RateLimitError",
    "StoreMisconfigured",
    "StoreUnavailable",
    "Throttled",
    "shown",
]

#: Characters of a value that an error shows.
_LONGEST = 120


def shown(value: Any) -> str:
    """A value as errors show it: never so long that nobody reads them, and never an error of its own."""
    if isinstance(value, int) and abs(value) >= 10**_LONGEST:  # which Python may refuse to write out
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
    """A limit, a setting or a key that cannot be what its author meant. Names the value and the mend."""


class ImpossibleRequest(RateLimitError, ValueError):
    """A request for more permits than its limit ever holds at once: no waiting would ever grant it.

    Attributes:
        limit: the limit's name.
        cost: the permits asked for.
        capacity: the most that the limit can grant at once: its burst and debt, or the count of its window.
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
            f"Raise its burst (or the count of its window) to at least {cost}, or lower the cost"
        )


class Throttled(RateLimitError):
    """The outcome of a task with ``throttle="fail"`` whose limit was closed, or of a ``with`` block, a decorated
    function or an HTTP call whose turn is further away than its ``max_wait``.

    Attributes:
        limit: the name of the limit that said no.
        retry_after: seconds until it could have started.
        max_wait: seconds that it would have waited; ``None``: it was not to wait, or there is no room to wait.
        key: of the limit's bucket; ``""``: the limit has only one.
    """

    def __init__(self, limit: str, retry_after: float, max_wait: float | None = None, key: str = "") -> None:
        # A result backend makes it anew from these, perhaps in a process of an older version.
        more = () if max_wait is None and not key else (max_wait, key)
        super().__init__(limit, retry_after, *more)
        self.limit = limit
        self.retry_after = retry_after
        self.max_wait = max_wait
        self.key = key

    def __str__(self) -> str:
        key = f", key {self.key!r}" if self.key else ""
        beyond = ""
        if self.max_wait is not None:
            # It has waited for the rest of it already: this error does not know how long.
            used_up = "" if self.retry_after > self.max_wait else " with what it has waited before"
            beyond = f"{used_up}, beyond max_wait={self.max_wait:g} s"
        return f"throttled by limit {self.limit!r}{key}: a permit is free in {self.retry_after:.3f} s{beyond}"


class StoreUnavailable(RateLimitError):
    """The limiter's store did not answer, or answered that it cannot serve; the cause is chained."""


class StoreMisconfigured(ConfigurationError):
    """The limiter's store answered that it will not serve as it is set up: a password, a right, a cluster taken for one
    server. Says what to do; the cause is chained. A worker that is running handles it as an outage, and loses nothing.
    """


#: What asking the store may raise: handled alike by a worker, which has tasks to look after.
STORE_TROUBLES = (StoreUnavailable, StoreMisconfigured)
