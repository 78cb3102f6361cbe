"""What a request asks for: how far ahead its permit may be, and for how long it keeps a slot."""

from __future__ import annotations

from .held import HeldRequest
from .verdict import RETURN_HOLD

__all__ = ["claim", "horizon"]


def horizon(held: HeldRequest, ahead: float, *, together: bool = False) -> float:
    """Seconds ahead that a permit may be taken for it; ``ahead``: for any task that is held; ``together``: it asks with
    others, as the store is far away.
    """
    policy = held.plan.policy
    seconds = policy.inline_wait
    if policy.throttle == "wait" or held.has_slot or together:
        seconds = max(seconds, ahead)
    return seconds if policy.max_wait is None else min(seconds, policy.max_wait)


def claim(held: HeldRequest, *, parks: bool) -> float:
    """Seconds within which it keeps a slot if it is refused. A task that is parked gets one when it is let out."""
    policy = held.plan.policy
    if not parks:
        return policy.claim
    return min(policy.claim, RETURN_HOLD if held.has_slot else policy.inline_wait)
