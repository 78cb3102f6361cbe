"""What a request asks for: how far ahead its permit may be, and for how long it keeps a slot."""

from __future__ import annotations

from .request import PendingRequest
from .rules import RETURN_HOLD

__all__ = ["claim", "max_lookahead"]


def max_lookahead(pending: PendingRequest, ahead: float, *, together: bool = False) -> float:
    """Seconds ahead that a permit may be taken for it; ``ahead``: for any task that is held; ``together``: it asks with
    others, as the store is far away.
    """
    policy = pending.plan.policy
    seconds = policy.inline_wait
    if policy.throttle == "wait" or pending.has_reservation or together:
        seconds = max(seconds, ahead)
    return seconds if policy.max_wait is None else min(seconds, policy.max_wait)


def claim(pending: PendingRequest, *, parks: bool) -> float:
    """Seconds within which it keeps a slot if it is refused. A task that is parked gets one when it is let out."""
    policy = pending.plan.policy
    if not parks:
        return policy.claim
    return min(policy.claim, RETURN_HOLD if pending.has_reservation else policy.inline_wait)
