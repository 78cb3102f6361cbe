"""Concurrency limits: at most N tasks at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from ..errors import ConfigurationError, ImpossibleRequest, shown
from .any_limit import (
    AnyLimit,
    check_cost,
    check_max_parked,
    check_missing_key,
    check_name_and_keys,
    check_shadow,
    is_number,
)
from .share_weights import Weights

__all__ = ["NO_SHADOW", "Concurrency"]

#: Why a Concurrency cannot be in shadow.
NO_SHADOW = (
    "shadow is for rates: how long a permit is held is known when its task has ended, so it is not known for how long "
    "the next one would have waited. Leave shadow out; a large number of permits throttles no task either"
)


@dataclass(frozen=True)
class Concurrency(AnyLimit):
    """At most ``limit`` tasks at once, across the whole fleet; or tasks that hold ``limit`` permits together.

    A running task holds a *lease*. The worker renews it while the task runs and releases it at the end, also of a
    failed task. If the worker is killed, the lease expires. A lease belongs to one run: a copy of the task that is
    delivered while the first run goes on waits for its own lease, also if the first run's worker was killed.

    Args:
        limit: number of permits that are held at once.
        name: see :class:`Limit`.
        key, missing_key: see :class:`Limit`.
        cost: permits that one task holds, as of memory or of GPUs: a whole number, the name of an argument that holds
            it, or a callable that gets the task's arguments and returns it. A task waits until as many are free at the
            same time; permits that become free are kept for the task that waits for the longest.
        lease: seconds after which the lease of a killed holder expires. A lease is renewed every third of this time, so
            a task may run for much longer.
        per_worker: see :class:`Limit`.
        fair, weights, max_parked: see :class:`Limit`.
        shadow: an error: a :class:`Concurrency` cannot be in shadow.

    Raises:
        ConfigurationError: an impossible value.

    Warning:
        ``retry_after`` is an estimate, from how long earlier leases were held: a caller that waits that long may be
        refused once more. A worker that is cut off from the store for longer than ``lease`` loses its leases while its
        tasks still run. Outside of a task, renew and release a lease yourself
        (:meth:`~celery_ratelimit.Limiter.renew`, :meth:`~celery_ratelimit.Limiter.release`).
    """

    limit: int
    _: KW_ONLY
    name: str | None = None
    key: str | Callable[..., str] | None = None
    missing_key: str | None = None
    cost: int | str | Callable[..., int] = 1
    lease: float = 60.0
    per_worker: bool = False
    fair: str | Callable[..., str] | None = None
    weights: Mapping[str, float] = Weights("", {})
    shadow: bool = False
    max_parked: int | None = None

    method: ClassVar[str] = "concurrency"
    algorithm: ClassVar[str] = "concurrency"
    interval: ClassVar[float] = 0.0
    priority_reserve: ClassVar[None] = None

    def __post_init__(self) -> None:
        label = f"Concurrency({shown(self.limit)}{f', name={shown(self.name)}' if self.name else ''})"
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or not 1 <= self.limit < 10**9:
            raise ConfigurationError(f"{label}: the limit must be a whole number, 1 to 999999999")
        if not is_number(self.lease) or not 0.1 <= self.lease < 1e9:
            raise ConfigurationError(f"{label}: lease={shown(self.lease)} must be a number of seconds, 0.1 to 1e9")
        self._check_cost(label)
        check_missing_key(label, self.missing_key, self.key)
        check_shadow(label, self.shadow)
        check_max_parked(label, self.max_parked)
        if self.shadow:
            raise ConfigurationError(f"{label}: {NO_SHADOW}")
        weights = check_name_and_keys(label, self.name, self.key, self.fair, self.weights)
        object.__setattr__(self, "weights", weights)  # the dataclass is frozen

    def _check_cost(self, label: str) -> None:
        if isinstance(self.cost, str) or callable(self.cost):
            return
        try:
            object.__setattr__(self, "cost", check_cost(self.name or "limit", self.cost, self.limit))
        except ImpossibleRequest as error:
            raise ConfigurationError(f"{label}: {error}") from None

    @property
    def size(self) -> int:
        return self.limit

    most = size

    def wire(self, cost: int, leaves: int | None = None) -> tuple[str | int, ...]:
        """The arguments that ``lua/include/read_limits.lua`` reads."""
        return self.method, self.limit, math.ceil(self.lease * 1e6), self.limit, cost, 0

    def __str__(self) -> str:
        return f"{self.name or 'limit'}: {self.limit} at once"
