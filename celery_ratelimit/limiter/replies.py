"""What the store has replied: decisions, and errors that say what a request cannot have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ConfigurationError, ImpossibleRequest, RateLimitError, Throttled
from ..limits.decision import Decision, LimitState
from .limit_request import LimitRequest

__all__ = ["decision_of", "impossible", "pretended", "throttled", "whole_numbers"]


def decision_of(demands: Sequence[LimitRequest], reply: Sequence[int], id: str = "") -> Decision:
    """The reply about so many limits, see ``lua/include/reply.lua``; ``id``: under which it is known."""
    allowed, wait, binding, at = reply[:4]
    told = 4 + 2 * len(demands)
    each = []
    for demand, i in zip(demands, range(4, told, 2), strict=True):
        each.append(LimitState(demand.name, demand.key, demand.size, reply[i], reply[i + 1] / 1e6, demand.pace))
    states = tuple(each)
    if len(reply) > told:  # some are stored, and have other numbers than in the code
        numbers = [reply[told + i :: 4] for i in range(4)]
        states = tuple(
            [
                state._replace(limit=size, interval=period / count / 1e6 if count else 0.0, version=version)
                for state, size, count, period, version in zip(states, *numbers, strict=True)
            ]
        )
    if binding or len(states) == 1:
        tightest = states[binding - 1]
    else:
        tightest = states[0]
        least = tightest.remaining / tightest.limit
        for state in states:
            part = state.remaining / state.limit
            if part < least or (part == least and state.reset_after > tightest.reset_after):
                tightest, least = state, part
    return Decision(
        allowed == 1,
        tightest.limit,
        tightest.remaining,
        wait / 1e6,
        tightest.reset_after,
        tightest.name if binding else None,
        states,
        allowed < 0,
        id,
        at,
        tuple(demands) if at else (),
    )


def pretended(demands: Sequence[LimitRequest], wait: int, *, slot_only: bool) -> list[int]:
    """What a script would reply, if all buckets were full (``wait`` is 0), or closed for so many microseconds."""
    reply = [int(not wait and not slot_only), wait, int(wait > 0), 0]
    for demand in demands:
        reply += [0, wait] if wait else [demand.size, 0]
    return reply


def whole_numbers(reply: Any) -> list[int]:
    """A script's reply: one whole number, or several in a text."""
    return [reply] if isinstance(reply, int) else list(map(int, reply.split()))


def impossible(demands: Sequence[LimitRequest], error: RateLimitError) -> RateLimitError:
    """What the store's error means, if it says that the request cannot be: a stored limit is smaller than its cost, or
    its id is that of another reservation.
    """
    told = _told(demands, error)
    told.__cause__ = error.__cause__
    return told


def _told(demands: Sequence[LimitRequest], error: RateLimitError) -> RateLimitError:
    verb, _, rest = str(error.__cause__).partition(" ")
    if verb == "RESERVED":
        name = demands[int(rest) - 1].name
        return ConfigurationError(
            f"the id of this reservation is another's, of other limits than {name!r}: give each an id of its own"
        )
    if verb != "IMPOSSIBLE":
        return error
    which, size = map(int, rest.split())
    return ImpossibleRequest(demands[which - 1].name, demands[which - 1].cost, size)


def throttled(decision: Decision, max_wait: float | None) -> Throttled:
    """A refusal for a caller that cannot be told by a value, and would have waited for ``max_wait`` seconds: not where
    there is no room to wait.
    """
    refused = decision.binding, decision.remaining, decision.reset_after
    keys = [each.key for each in decision.states if (each.name, each.remaining, each.reset_after) == refused]
    beyond = None if decision.full else max_wait
    return Throttled(decision.binding or "", decision.retry_after, beyond, keys[0] if keys else "")
