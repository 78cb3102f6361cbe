"""What tests ask in a script's own numbers, in microseconds, and about demands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_ratelimit import AsyncLimiter, Decision, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.script_calls import decision_of

__all__ = ["cancel_demands", "decide", "driven", "reply_to", "reserve_demands", "settle_demands"]


def reply_to(limiter: Limiter, verb: str, demands: Sequence[LimitRequest], *first: str | int) -> list[int]:
    """A script's reply."""
    core = limiter._asker.core
    return limiter._asker.drive(core.decide(getattr(core.scripts, verb), demands, *first))


def decide(limiter: Limiter, verb: str, demands: Sequence[LimitRequest], *first: str | int) -> Decision:
    return decision_of(demands, reply_to(limiter, verb, demands, *first))


def driven(limiter: Limiter | AsyncLimiter, verb: str, **how: Any) -> Any:
    """A verb about demands, as a limiter of either kind does it: one for asyncio has to be awaited."""
    asks: Any = getattr(limiter._asker.core, verb)(**how)
    return limiter._asker.drive(asks)


def reserve_demands(limiter: Limiter, demands: Sequence[LimitRequest], **how: Any) -> Decision:
    return limiter._asker.drive(limiter._asker.core.reserve(demands, **how))


def settle_demands(limiter: Limiter, demands: Sequence[LimitRequest], actual: Sequence[int], **how: Any) -> bool:
    return limiter._asker.drive(limiter._asker.core.settle(demands, actual, **how))


def cancel_demands(limiter: Limiter, demands: Sequence[LimitRequest], *, id: str) -> bool:
    return limiter._asker.drive(limiter._asker.core.cancel(demands, id=id))
