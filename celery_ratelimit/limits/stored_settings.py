"""What is stored for a limit, beside what its code says: rate, pause, shadow, weights, and their changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..errors import ConfigurationError, shown
from .any_limit import AnyLimit
from .concurrency import Concurrency
from .rate_limit import Limit

__all__ = [
    "Change",
    "LimitConfig",
    "Stored",
    "StoredShadow",
    "WeightConfig",
    "is_in_force",
    "limit_stored",
    "limit_to_store",
]


#: How the author of a pause begins if an upstream has caused it: before the name of the refused task.
REFUSED = "429 of task"


@dataclass(frozen=True, slots=True)
class StoredShadow:
    """A stored setting that puts a limit into shadow or into force, and overrides the code.

    Attributes:
        on: whether the limit is in shadow.
        since: when it was stored, in seconds since 1970.
        by: author.
        reason: reason, if given.
    """

    on: bool
    since: float
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class WeightConfig:
    """The weight of a key under a fair limit: in force, in the code and in the store.

    Attributes:
        weight: the weight in force.
        code: the weight in the code.
        stored: the weight in the store; ``None``: none.
        since: when it was stored, in seconds since 1970; 0.0: none is.
        by: author of the stored weight.
    """

    weight: float
    code: float
    stored: float | None
    since: float
    by: str


@dataclass(frozen=True, slots=True)
class LimitConfig:
    """The settings of a limit: in force, in the code and in the store.

    Attributes:
        name: the limit's name.
        key: the bucket's key; ``""``: the whole limit.
        code: the limit in this process's quotas; ``None``: not there.
        stored: the stored limit: for the key, else for the whole limit; ``None``: none. One that is not in force, as it
            is a rate and the code's limit a :class:`Concurrency` or the reverse, is left out if the other one is.
        in_force: the limit that decides: the stored one, else the code's; ``None``: neither is known here.
        since: when the stored limit was set, in seconds since 1970; 0.0: none is.
        until: when the stored limit ends, in seconds since 1970; ``None``: no end.
        by: author of the stored limit.
        reason: reason, if given.
        version: the highest version that was ever set; 0: none had one.
        paused: seconds until the pause ends.
        share: of the rate that is in force now; below 1.0: the limit is adaptive, and its upstream has refused calls.
        changed: when a stored rate or a pause last began or ended, in seconds since 1970; 0.0: not known.
        paused_by: author of the pause that ends last; ``429 of task …`` if an upstream has caused it.
        pause_reason: reason of that pause, if given; the refused task's id if an upstream has caused it.
        stored_shadow: the stored shadow setting; ``None``: none, and the code's setting holds.
    """

    name: str
    key: str
    code: AnyLimit | None
    stored: AnyLimit | None
    in_force: AnyLimit | None
    since: float
    until: float | None
    by: str
    version: int
    paused: float
    reason: str = ""
    share: float = 1.0
    stored_shadow: StoredShadow | None = None
    changed: float = 0.0
    paused_by: str = ""
    pause_reason: str = ""

    @property
    def override(self) -> AnyLimit | None:
        """The stored limit, if it is in force; ``None``: the code's limit is."""
        return self.stored if self.stored == self.in_force else None

    @property
    def shadow(self) -> bool:
        """Whether the limit is in shadow."""
        if self.stored_shadow is not None:
            return self.stored_shadow.on
        return self.code is not None and self.code.shadow


class Stored(NamedTuple):
    """The settings stored for a limit, or for one of its keys.

    Attributes:
        limit: the stored limit; ``None``: none, so the code's held.
        until: its end, in seconds since 1970; ``None``: none.
        paused_until: end of the pause, in seconds since 1970; ``None``: not paused.
        shown: the limit as text, a weight, or whether the limit was in shadow; ``""``: none.
    """

    limit: AnyLimit | None
    until: float | None
    paused_until: float | None
    shown: str


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a limit.

    Attributes:
        name: of the limit.
        key: of the bucket or the weight; ``""``: the whole limit.
        at: time of the change, in seconds since 1970, by the store's clock.
        verb: ``"set"``, ``"expire"`` (the rate got an end), ``"unset"``, ``"pause"``, ``"resume"``, ``"reset"``,
            ``"throttled"`` (an upstream has refused a call), ``"reduce"`` (the same of an adaptive limit), ``"weight"``
            or ``"shadow"``.
        by: author.
        reason: reason, if given.
        before: settings before the change.
        after: settings after the change.
    """

    name: str
    key: str
    at: float
    verb: str
    by: str
    reason: str
    before: Stored
    after: Stored


def limit_to_store(name: str, rate: str | AnyLimit, code: AnyLimit | None) -> AnyLimit:
    """The limit to store for ``rate``: a text changes the rate of the code's limit and keeps its options.

    Raises:
        ConfigurationError: unreadable, or a :class:`Concurrency` would become a rate or the other way round.
    """
    if code is not None and code.name is None:
        code = replace(code, name=name)
    if isinstance(rate, str):
        limit: AnyLimit = replace(code, rate=rate, rates=None) if isinstance(code, Limit) else Limit(rate, name=name)
    elif isinstance(rate, (Limit, Concurrency)):
        limit = replace(rate, name=name)
    else:
        raise ConfigurationError(f"limit {name!r}: {shown(rate)} is neither a rate, such as '100/s', nor a Limit")
    if code is not None and isinstance(code, Concurrency) != isinstance(limit, Concurrency):
        raise ConfigurationError(
            f"limit {name!r} is {code} in the code: a stored limit cannot turn a rate into a Concurrency, or the "
            "reverse. Give the new limit another name"
        )
    return limit


def is_in_force(said: Mapping[str, Any], code: AnyLimit | None) -> bool:
    """Whether a limit that is stored as ``said`` is in force: it is a rate or a Concurrency, as the code's limit is."""
    return code is None or isinstance(code, Concurrency) != ("rate" in said)


def limit_stored(name: str, said: Mapping[str, Any], code: AnyLimit | None) -> AnyLimit:
    """The limit that is stored as ``said``; options that are not stored are those of the code's limit."""
    if not is_in_force(said, code):
        code = None  # the code's limit has become one of the other kind, whose options are others
    ours: dict[str, Any] = {}
    if code is not None:
        kept = ("key", "missing_key", "per_worker", "fair", "weights", "max_parked")
        ours = {each: getattr(code, each) for each in kept}
    if isinstance(code, Limit):
        ours |= {
            "shadow": code.shadow,
            "adaptive": code.adaptive if _may_adapt(said) else None,
            "breaker": code.breaker,
        }
    if isinstance(code, Concurrency):
        ours["lease"] = code.lease
    try:
        if "rate" not in said:
            leases = Concurrency(**said, **ours, name=name)
            object.__setattr__(leases, "cost", 1 if code is None else code.cost)  # as below
            return leases
        limit = Limit(**said, **ours, name=name)
    except TypeError as error:  # an option that this version does not have
        raise ConfigurationError(
            f"limit {name!r} is stored as {dict(said)}, which this version of celery_ratelimit cannot read: {error}"
        ) from None
    # Not checked against the cost: a stored limit below a call's cost is in force all the same.
    if isinstance(code, Limit):
        object.__setattr__(limit, "cost", code.cost)
        if limit.method == "token_bucket" and not limit.debt:
            object.__setattr__(limit, "priority_reserve", code.priority_reserve)
    return limit


def _may_adapt(said: Mapping[str, Any]) -> bool:
    """Whether a stored limit is one that ``adaptive`` is for."""
    evenly = said.get("refill", "continuous") == "continuous" and not said.get("warmup")
    return evenly and said.get("algorithm", "token_bucket") == "token_bucket"
