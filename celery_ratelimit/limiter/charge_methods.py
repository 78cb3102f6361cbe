"""The limiters' methods about costs that are known afterwards: what an upstream has reported, what a call really took.

Each is an operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigurationError
from ..limits.decision import Decision
from .argument_checks import actual_costs, check_actual, check_permits, check_settled
from .limit_request import LimitRequest, Limits, leased, of_cost
from .limiter_base import LimiterBase
from .operation import Operation, limiter_method
from .shadow import asked_of

__all__ = ["ChargeMethods"]


class ChargeMethods(LimiterBase):
    """Charge what was used elsewhere, and settle what calls really cost."""

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
        check_permits(permits)
        demands = self._reader.plain(limits, key, 1, args, of_each=True)
        for demand in leased(demands):
            raise ConfigurationError(
                f"limit {demand.name!r}: permits of a Concurrency are held, not spent: acquire them, and release them"
            )
        asked, shadow = self._core.shadows.split(of_cost(demands, permits))
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
