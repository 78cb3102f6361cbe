"""The limiters' methods for callers: acquire, reserve and return permits. Each is an operation."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..errors import STORE_TROUBLES, ConfigurationError
from ..limits.decision import Decision
from .argument_checks import check_permits, check_reservable, longest_wait, seconds_of
from .blocking_acquire import acquire
from .limit_request import LimitRequest, Limits, leased, of_cost
from .limiter_base import LimiterBase
from .operation import Operation, limiter_method
from .script_calls import decision_of
from .setting_operations import note_of
from .shadow import ask_shadow_reports, passed

__all__ = ["PermitMethods"]


class PermitMethods(LimiterBase):
    """Acquire, reserve and return permits."""

    @limiter_method
    def acquire(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
        priority: int | None = None,
        max_wait: float | None = 0.0,
    ) -> Operation[Decision]:
        """Take the permits of one call from every limit in one atomic step, or from none.

        A refusal takes nothing and says how long to wait. With ``max_wait`` the call sleeps until its slot, behind
        earlier callers' slots. If the slot is further away than ``max_wait``, the call is refused at once.

        Args:
            limits: a quota's name, a :class:`Limit` that has a name, or a list of these.
            args: the call's arguments by name: each limit takes its key and cost from them, as from a task's arguments.
            key: the bucket's key, as shown everywhere, for limits with keys. Other limits have a single bucket.
            cost: permits to take from each limit, but of a :class:`Concurrency` only if no limit of the call is a rate.
                Default: each limit's own cost.
            priority: the call's priority in the broker's numbers, for limits with a ``priority_reserve``. Default: the
                priority of a message that is sent without one.
            max_wait: seconds that the call may sleep until its slot; ``None``: for ever. Default: not at all.

        Returns:
            The decision. If it allows the call, the permits are good now.

        Raises:
            ImpossibleRequest: the cost is above a limit's burst.
            ConfigurationError: an unknown quota, a limit that lacks its name or key, or a key although no limit has
                keys.
            StoreUnavailable: the store did not answer.

        *Warning*: under :class:`Concurrency` waits are estimates, and callers may overtake one another. A call without
        ``max_wait`` gets no slot: it is refused while tasks wait for this limit (``throttle="retry"``). A sleeping call
        does not notice a higher rate, the end of a pause or a reset: it sleeps until its slot. Where that matters, pass
        a shorter ``max_wait`` and call again.
        """
        return (yield from self._acquire(self._reader.demands(limits, key, cost, args, priority), max_wait))

    def _acquire(self, demands: tuple[LimitRequest, ...], max_wait: float | None) -> Operation[Decision]:
        shadows = self._core.shadows
        asked, shadow = shadows.split(demands)
        if shadow and self._counting is None and shadows.is_to_look(self._clock.monotonic()):
            with suppress(*STORE_TROUBLES):
                yield from ask_shadow_reports(self._core, {each.name: each.limit for each in shadow})
            asked, shadow = shadows.split(demands)
        if asked:
            decision = yield from self._acquire_and_count(asked, max_wait)
        else:
            decision = passed(shadow, self._core.new_id())
        return self._let_through(decision, shadow) if shadow and decision.allowed else decision

    def _acquire_and_count(self, demands: tuple[LimitRequest, ...], max_wait: float | None) -> Operation[Decision]:
        operation = acquire(self._core, demands, longest_wait(max_wait), self._clock.monotonic)
        return (yield from self._counted(operation, demands, waits=max_wait != 0))

    @limiter_method
    def acquire_up_to(
        self,
        limits: Limits,
        permits: int,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        priority: int | None = None,
    ) -> Operation[Decision]:
        """Take as many permits as can be had now, up to ``permits``, in one atomic step.

        For work that can be cut: a batch takes as many items as it has permits for. The decision's ``permits`` says how
        many were taken; 0: it is refused, and says how long to wait for one.

        Args:
            limits: as in :meth:`acquire`. The same number is taken of each limit, as many as the tightest of them has;
                the limits' own costs do not matter.
            permits: the most to take, 1 or more. It may be above what a limit can hold.
            key, args, priority: as in :meth:`acquire`.

        Raises:
            ConfigurationError: as in :meth:`acquire`; or on a cluster, limits of several hash slots.

        *Warning*: as with :meth:`acquire`, a call that could only be granted before waiting calls is refused. Of a
        :class:`Concurrency` it takes one lease that holds so many permits.
        """
        check_permits(permits)
        demands = self._reader.demands(limits, key, 1, args, priority, of_each=True)
        asked, shadow = self._core.shadows.split(demands)
        if asked:
            decision = yield from self._counted(self._up_to(asked, permits), asked, waits=False)
        else:
            decision = replace(passed(shadow, self._core.new_id()), permits=permits)
        if not shadow or not decision.allowed:
            return decision
        return self._let_through(decision, of_cost(shadow, decision.permits))

    def _up_to(self, demands: tuple[LimitRequest, ...], permits: int) -> Operation[Decision]:
        core = self._core
        if len(core.by_slot(demands)) > 1:
            names = ", ".join(repr(demand.name) for demand in demands)
            raise ConfigurationError(
                f"limits {names} lie in several hash slots of the cluster, and one script takes as many permits as all "
                "of them have: give their names one hash tag, such as {stripe}.daily"
            )
        id = core.new_id() if leased(demands) else ""
        *reply, taken = yield from core.decide(core.scripts.acquire_up_to, demands, id, permits)
        asked = of_cost(demands, max(1, taken))
        return replace(decision_of(asked, reply, id or core.new_id()), permits=taken)

    @limiter_method
    def peek(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
        priority: int | None = None,
    ) -> Operation[Decision]:
        """The decision that :meth:`acquire` would return now. Takes nothing; another caller may be quicker."""
        return (yield from self._peek(self._reader.demands(limits, key, cost, args, priority)))

    def _peek(self, demands: tuple[LimitRequest, ...]) -> Operation[Decision]:
        asked, shadow = self._core.shadows.split(demands)
        return (yield from self._core.peek(asked)) if asked else passed(shadow, "")

    @limiter_method
    def reset(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        by: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Operation[None]:
        """Refill the buckets: all permits are available again, and the slots of waiting callers are gone.

        Reservations for a later time stay good, in addition. Cancelling or settling one afterwards may return permits
        that other callers have taken since. ``force``: also for an unknown name, see :meth:`set_rate`.
        """
        yield from self._core.reset(self._reader.to_reset(limits, key, args, force=force), note_of(by, reason))

    @limiter_method
    def reserve(
        self,
        limits: Limits,
        *,
        id: str,
        horizon: float,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
        priority: int | None = None,
    ) -> Operation[Decision]:
        """Take the permits of one call ahead of time, and return how long to wait for them.

        If the decision allows it, the permits are spent and become good in ``retry_after`` seconds; no second call is
        needed. The same ``id`` finds the same reservation, until an hour after its time.

        Args:
            limits: as in :meth:`acquire`, without :class:`Concurrency`.
            id: names the reservation.
            horizon: seconds; permits further ahead are refused.
            args, key, cost, priority: as in :meth:`acquire`.

        *Warning*: an unused reservation is spent unless it is cancelled, see :meth:`cancel`. An ``id`` reserved with
        more limits finds these limits only, without an error. An ``id`` reserved with fewer limits is an error; on a
        cluster, limits on other nodes are reserved too.
        """
        demands = self._reader.demands(limits, key, cost, args, priority)
        check_reservable(demands, id)
        asked, shadow = self._core.shadows.split(demands)
        seconds, decision = seconds_of("horizon", horizon, 0), passed(shadow, id)
        if asked:
            decision = yield from self._core.reserve(asked, id=id, horizon=seconds)
        if not shadow:
            return decision
        is_new = decision.allowed and self._core.shadows.is_first(("reserved", id))
        return self._let_through(decision, shadow) if is_new else replace(decision, _shadow=shadow)

    @limiter_method
    def cancel(
        self,
        limits: Limits,
        *,
        id: str,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
    ) -> Operation[bool]:
        """Cancel a reservation; the arguments are those of :meth:`reserve`. Idempotent. False: there was none.

        Permits come back as far as no limit can be exceeded: all of them if nothing is reserved behind, fewer if
        something is, and none if the permit is further in the past than its cost.
        """
        asked, shadow = self._core.shadows.split(self._reader.plain(limits, key, cost, args))
        was_there = bool(shadow) and self._core.shadows.forget(("reserved", id))
        if was_there:
            self._correct(shadow, [0] * len(shadow))
        return (yield from self._core.cancel(asked, id=id)) if asked else was_there

    @limiter_method
    def release(self, decision: Decision) -> Operation[bool]:
        """Release the :class:`Concurrency` leases that a call holds. Idempotent; False: there were none."""
        return (yield from self._core.release(decision._demands, id=decision.id, granted_at=decision._granted_at))

    @limiter_method
    def renew(self, decision: Decision) -> Operation[bool]:
        """Renew the leases that a call holds, for another ``lease`` seconds from now. False: one had expired."""
        return all((yield from self._core.renew([(demand, decision.id) for demand in leased(decision._demands)])))

    @limiter_method
    def available(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        priority: int | None = None,
    ) -> Operation[int]:
        """The permits that could be taken now: the smallest number over the limits. ``sys.maxsize``: none applies."""
        decision = yield from self._peek(self._reader.demands(limits, key, 1, args, priority, of_each=True))
        return min([state.remaining for state in decision.states], default=sys.maxsize) if decision.allowed else 0
