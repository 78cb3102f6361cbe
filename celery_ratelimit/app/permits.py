"""The permit of a task that runs: what it has of its worker, and the limit requests that it was granted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..limiter.limit_request import LimitRequest, with_priority
from ..limits.key_rates import limit_of_key, whole_limit
from .plan import Plan

__all__ = ["demands_in", "permit_of"]


def permit_of(
    plan: Plan, queue: str, id: str, granted_at: int, demands: Sequence[LimitRequest], shadow: Sequence[LimitRequest]
) -> dict[str, Any]:
    """The fields of a permit, which :data:`celery_ratelimit._celery.PERMIT` lists; ``shadow``: of limits in shadow."""
    asked = [
        (_position(plan, demand), demand.name, demand.key, demand.cost, demand.share) for demand in (*demands, *shadow)
    ]
    permit: dict[str, Any] = {"queue": queue, "id": id, "granted_at": granted_at, "asked": asked}
    return {**permit, "shadow": [demand.name for demand in shadow]} if shadow else permit


def demands_in(permit: Mapping[str, Any], plan: Plan, priority: int = 0) -> tuple[LimitRequest, ...]:
    """The limit requests of the task that has this permit. Its body may have changed its arguments since."""
    limits = dict(enumerate(plan.limits))
    demands = tuple(
        [
            LimitRequest(limit_of_key(limits[position], key), name, key, cost, share=share)
            for position, name, key, cost, share in permit["asked"]
            if position in limits and limits[position].name == name
        ]
    )
    return with_priority(demands, priority, lowest_first=plan.lowest_first) if plan.reserves else demands


def _position(plan: Plan, demand: LimitRequest) -> int:
    """Which of the limits it is: two of one name may differ in their keys and costs.

    By equality: a limit of a key may come from an equal limit of another task.
    """
    whole = whole_limit(demand.limit)
    return next((position for position, limit in enumerate(plan.limits) if limit is whole or limit == whole), -1)
