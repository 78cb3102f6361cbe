"""Checks the options of a :class:`~celery_ratelimit.Limit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ConfigurationError, shown
from .any_limit import is_number

if TYPE_CHECKING:
    from .rate_limit import Limit

__all__ = ["check_options", "switch_of"]

_T = TypeVar("_T")

#: Most sub-windows of a sliding window: each costs the store some time at every decision.
_MOST_SUB_WINDOWS = 1000

#: Options of a single algorithm: name, algorithm, default.
_OPTIONS = (
    ("burst", "token_bucket", 1),
    ("refill", "token_bucket", "continuous"),
    ("debt", "token_bucket", 0),
    ("warmup", "token_bucket", 0.0),
    ("resume_over", "token_bucket", 0.0),
    ("priority_reserve", "token_bucket", None),
    ("adaptive", "token_bucket", None),
    ("capacity", "leaky_bucket", None),
    ("align", "fixed_window", "clock"),
    ("sub_windows", "sliding_window", 10),
)


def check_options(limit: Limit, label: str) -> None:
    """Raise ConfigurationError for an impossible value, or an option of another algorithm; ``label``: the limit."""
    for option, algorithm, default in _OPTIONS:
        if getattr(limit, option) != default and limit.algorithm != algorithm:
            own = ", ".join(name for name, owner, _ in _OPTIONS if owner == limit.algorithm)
            raise ConfigurationError(
                f"{label}: {option}={shown(getattr(limit, option))} is for algorithm={algorithm!r}, not "
                f"{limit.algorithm!r}, {f'whose own options are {own}' if own else 'which has no option of its own'}"
            )
    for option, choices in (("refill", ("continuous", "interval")), ("align", ("clock", "first"))):
        if getattr(limit, option) not in choices:
            raise ConfigurationError(
                f"{label}: {option}={shown(getattr(limit, option))} is not one of {', '.join(choices)}"
            )
    for option, least in (("burst", 1), ("debt", 0), ("sub_windows", 1), ("capacity", 0)):
        value = getattr(limit, option)
        if value is None and option == "capacity":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigurationError(f"{label}: {option}={shown(value)} must be a whole number of at least {least}")
    if limit.capacity is not None and limit.max_parked is not None:
        raise ConfigurationError(
            f"{label}: max_parked={limit.max_parked} is about parked tasks, and a leaky bucket with a capacity parks "
            "none: leave one of the two out"
        )
    if limit.sub_windows > _MOST_SUB_WINDOWS:
        raise ConfigurationError(
            f"{label}: sub_windows={shown(limit.sub_windows)} is more than {_MOST_SUB_WINDOWS}, and every sub-window "
            "costs the store time at each decision; for a window that is exact take algorithm='sliding_log'"
        )
    for option in ("warmup", "resume_over"):
        seconds = getattr(limit, option)
        if not is_number(seconds) or not 0 <= seconds < 1e9:
            raise ConfigurationError(f"{label}: {option}={shown(seconds)} must be a number of seconds, 0 to 1e9")
    kinds = (limit.refill == "interval", limit.debt > 0, limit.warmup > 0, limit.priority_reserve is not None)
    if limit.resume_over and any(kinds):
        raise ConfigurationError(
            f"{label}: resume_over={limit.resume_over:g} does not go together with refill='interval', debt, warmup or "
            "priority_reserve: leave one of the two out"
        )
    if sum(kinds) > 1:
        raise ConfigurationError(f"{label}: refill='interval', debt, warmup and priority_reserve exclude one another")
    if limit.adaptive is not None and (limit.refill == "interval" or limit.warmup):
        other = "warmup" if limit.warmup else "refill"
        raise ConfigurationError(
            f"{label}: adaptive changes the rate of a bucket that refills evenly: leave {other} out"
        )


def switch_of(label: str, option: str, written: Any, kind: type[_T], example: str) -> _T | None:
    """Read an option that is True, False, ``None`` or a ``kind`` with values of its own, as in ``example``.

    Raises:
        ConfigurationError: none of these.
    """
    if isinstance(written, kind):
        return written
    if written is None or isinstance(written, bool):
        return kind() if written else None
    raise ConfigurationError(f"{label}: {option}={shown(written)} must be True, False or {example}")
