"""The limiters' methods about numbers of permits: as many as there are, what an upstream has reported, what a call
really cost. Each is an operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import ConfigurationError, shown
from ..limits.decision import Decision
from .limit_request import (
    MOST_SETTLED,
    LimitRequest,
    Limits,
    actual_costs,
    check_actual,
    check_settled,
    leased,
)
from .operation import Operation, limiter_method
from .permit_methods import LimiterBase
from .script_calls import decision_of
from .shadow import asked_of, passed

__all__ = ["CostMethods"]


class CostMethods(LimiterBase):
    """Take as many permits as there are, charge what was used elsewhere, correct what calls took."""

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
        _check_permits(permits)
        demands = self._reader.demands(limits, key, 1, args, priority, of_each=True)
        asked, shadow = self._core.shadows.split(demands)
        if asked:
            decision = yield from self._counted(self._up_to(asked, permits), asked, waits=False)
        else:
            decision = replace(passed(shadow, self._core.new_id()), permits=permits)
        if not shadow or not decision.allowed:
            return decision
        return self._let_through(decision, _of_cost(shadow, decision.permits))

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
        asked = _of_cost(demands, max(1, taken))
        return replace(decision_of(asked, reply, id or core.new_id()), permits=taken)

    @limiter_method
    def charge(
        self,
        limits: Limits,
        permits: int,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> Operation[None]:
        """Take permits that were used already, whether they are there or not: what an upstream has reported.

        A limit that has fewer is in debt, and refuses calls until the debt is paid: a bucket until it has refilled, a
        window until the permits have passed out of it. :meth:`peek` says when. An upstream that reports how much of a
        quota is left, used by other clients, too, is followed so.

        Args:
            limits: as in :meth:`acquire`, without :class:`Concurrency`. So many permits are taken of each.
            permits: 1 or more; they may be more than a limit can hold.
            key, args: as in :meth:`acquire`.

        Raises:
            ConfigurationError: as in :meth:`acquire`; or a :class:`Concurrency`, whose permits are held.

        *Warning*: a charge is not idempotent: one whose reply was lost may have been taken. Under
        :class:`StoreUnavailable` it is not known.
        """
        _check_permits(permits)
        demands = self._reader.plain(limits, key, 1, args, of_each=True)
        for demand in leased(demands):
            raise ConfigurationError(
                f"limit {demand.name!r}: permits of a Concurrency are held, not spent: acquire them, and release them"
            )
        asked, shadow = self._core.shadows.split(_of_cost(demands, permits))
        if asked:
            yield from self._charge(asked)
        if shadow:
            self._pass_by(shadow)

    def _charge(self, demands: tuple[LimitRequest, ...]) -> Operation[None]:
        yield from self._core.charge(demands)
        if self._counting is not None:
            for each in asked_of(demands):
                self._counting.counter.at_once(each)

    @limiter_method
    def settle(
        self, decision: Decision, actual_cost: int | Mapping[str, int], *, limit: str | None = None
    ) -> Operation[bool]:
        """Correct a granted call's cost once it is known: charge the difference, or return it.

        For costs that are known only afterwards, such as a language model's tokens: acquire with an estimate, settle
        with the actual cost. A decision is settled once. Permits come back as far as no limit can be exceeded: all of
        them to windows; to a token bucket what it would still hold without this charge, less what has refilled since;
        none under warm-up.

        Args:
            decision: the decision that allowed the call.
            actual_cost: permits, 0 or more. It may be above the limit's burst: later calls then wait. Several limits at
                once: a mapping of names to permits, ``{"tokens": 900, "requests": 1}``; other limits keep their cost.
            limit: the limit to settle. Default: each whose cost is not a fixed number; if there is none, each that
                takes more than one permit; else all.

        Returns:
            Whether this call settled it; False if an earlier call had.

        Raises:
            ConfigurationError: a limit that the decision does not have; names the limits that it has.
        """
        check_settled(decision)
        demands, shadow = decision._demands, decision._shadow
        if not demands and not shadow:
            return False
        actual = actual_costs((*demands, *shadow), actual_cost, limit)
        check_actual((*demands, *shadow), actual)
        is_first = bool(shadow) and self._core.shadows.is_first(("settled", decision.id))
        if is_first:
            self._correct(shadow, actual[len(demands) :])
        if not demands:
            return is_first
        actual = actual[: len(demands)]
        return (yield from self._core.settle(demands, actual, id=decision.id, granted_at=decision._granted_at))


def _check_permits(permits: Any) -> None:
    if isinstance(permits, bool) or not isinstance(permits, int) or not 1 <= permits < MOST_SETTLED:
        raise ConfigurationError(f"permits={shown(permits)} must be a whole number of permits, 1 or more")


def _of_cost(demands: tuple[LimitRequest, ...], cost: int) -> tuple[LimitRequest, ...]:
    return tuple([replace(demand, cost=cost) for demand in demands])
