"""The limiters' methods about numbers of permits: what a call really cost. Each is an operation."""

from __future__ import annotations

from collections.abc import Mapping

from ..limits.decision import Decision
from .limit_request import actual_costs, check_actual, check_settled
from .operation import Operation, limiter_method
from .permit_methods import LimiterBase

__all__ = ["CostMethods"]


class CostMethods(LimiterBase):
    """Correct what calls took."""

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
