"""Blocking calls: acquire, sleep until the slot, and return permits and slots if the call is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from ..errors import STORE_TROUBLES, RateLimitError, Throttled
from ..limits.concurrency import Concurrency
from ..limits.decision import Decision
from .argument_checks import microseconds
from .leases import UNKNOWN
from .limit_request import LimitRequest, leased
from .operation import Operation, Sleep, UninterruptedAcquire
from .script_operations import Operations

__all__ = ["acquire", "give_back", "is_beyond", "throttled"]

#: A blocking call takes its permit at most this many seconds ahead. Further ahead it keeps a slot, which lapses if the
#: caller dies; a permit would be lost.
TAKE_AHEAD = 1.0
#: The shortest and the longest pause, in seconds, between two tries for a lease, unless the decision says less. The
#: store holds a free lease for a waiting call for one second (``lua/include/concurrency_waiters.lua``).
_SHORTEST_NAP, _LONGEST_NAP = 0.25, 0.75
#: Seconds by which a call with several limits wakes up before its slot, and takes its permits for exactly the slot: a
#: call that wakes up late leaves a part of a limit unused.
_EARLY = 0.05


def acquire(
    core: Operations, demands: Sequence[LimitRequest], max_wait: float, now: Callable[[], float]
) -> Operation[Decision]:
    """Acquire the permits of one call, waiting for its slot; or refuse the call.

    Args:
        core: makes the operations.
        demands: the call's limit requests.
        max_wait: seconds that the call may sleep.
        now: the caller's clock, in seconds.
    """
    waits = max_wait > 0
    id = core.new_id() if waits or leased(demands) else ""
    deadline = now() + max_wait
    asked: UninterruptedAcquire | None = None
    has_slot = False
    try:
        while True:
            left = max(0.0, deadline - now())
            asked = UninterruptedAcquire(demands, id, min(left, TAKE_AHEAD), left)
            decision: Decision = yield asked
            if not decision.allowed and not waits:
                return decision
            if not decision.allowed and (decision.queue_full or is_beyond(decision, left)):
                if has_slot:  # of an earlier decision; no slot is kept beyond `left`
                    with suppress(*STORE_TROUBLES):  # the slot lapses
                        yield from core.forget(demands, id=id)
                return decision
            if decision.retry_after:
                yield Sleep(nap(decision))
            if decision.allowed:
                return _good_now(decision)
            has_slot = True
    except (RateLimitError, GeneratorExit):
        raise
    except BaseException:  # a soft time limit, Ctrl-C, a greenlet that is ended, a cancellation
        if asked is not None:
            yield from give_back(core, demands, id, asked.answer)
        raise


def give_back(core: Operations, demands: Sequence[LimitRequest], id: str, decision: Decision | None) -> Operation[None]:
    """Return the permits and slots of an interrupted call. ``decision``: its last one; ``None``: not known."""
    try:
        if decision is not None and decision.allowed:
            rates = [demand for demand in demands if not isinstance(demand.limit, Concurrency)]
            if rates:
                yield from core.settle(rates, [0] * len(rates), id=decision.id, granted_at=decision._granted_at)
            yield from core.release(demands, id=decision.id, granted_at=decision._granted_at)
        elif id:
            yield from core.forget(demands, id=id)
            if decision is None:
                yield from core.release(demands, id=id, granted_at=UNKNOWN)
    except STORE_TROUBLES:
        pass  # a slot and a lease lapse, and a permit is lost


def is_beyond(decision: Decision, left: float) -> bool:
    """Whether the slot is too far away to be kept: in whole microseconds, as the store compares them."""
    return round(decision.retry_after * 1e6) > microseconds(left)


def _good_now(decision: Decision) -> Decision:
    """The decision after the call has slept until its permit is good."""
    waited = decision.retry_after
    if not waited:
        return decision
    return replace(decision, retry_after=0.0, reset_after=max(0.0, decision.reset_after - waited))


def nap(decision: Decision) -> float:
    """Seconds until a waiting call wakes up.

    A lease's wait is an estimate, and no message announces a free lease: a call tries after a quarter of the wait.
    """
    wait = decision.retry_after
    if decision.allowed:
        return wait
    if leased(decision._demands):
        return min(wait, max(_SHORTEST_NAP, wait / 4), _LONGEST_NAP)
    return wait - _EARLY if len(decision.states) > 1 and wait > _EARLY else wait


def throttled(decision: Decision, max_wait: float | None) -> Throttled:
    """A refusal as an exception. It names ``max_wait``, the seconds that the caller would have waited, unless the
    queue is full.
    """
    refused = decision.limited_by, decision.remaining, decision.reset_after
    keys = [each.key for each in decision.states if (each.name, each.remaining, each.reset_after) == refused]
    beyond = None if decision.queue_full else max_wait
    return Throttled(decision.limited_by or "", decision.retry_after, beyond, keys[0] if keys else "")
