"""Methods of callers: take permits and give them back. Each is an operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from ..errors import STORE_TROUBLES
from ..limits.any_limit import AnyLimit
from ..limits.decision import Decision
from .blocking_acquire import acquire
from .limit_request import (
    LimitRequest,
    Limits,
    actual_costs,
    check_actual,
    check_reservable,
    check_settled,
    leased,
    longest_wait,
    seconds_of,
)
from .operation import Operation, limiter_method
from .resolve_request import RequestResolver
from .script_operations import Operations
from .shadow import ask_would, asked_of, passed
from .stored_settings import note_of
from .usage import note, note_lost

__all__ = ["LimiterBase", "PermitMethods"]


class LimiterBase:
    """What limiters have in common, however they talk to the store.

    Args:
        quotas, prefix, lowest_first: see :class:`~celery_ratelimit.Limiter`.
        core: what is asked.
        clock: of the caller.
    """

    #: Makes the limiter of an app, of this kind: set by the package, since what an app is, is known further up.
    of_app: ClassVar[Callable[[type[LimiterBase], Any], Any]]
    _counting: Any

    def __init__(
        self, quotas: Mapping[str, Any] | None, prefix: str, core: Operations, clock: Any, lowest_first: bool | None
    ) -> None:
        self.prefix = prefix
        self.reader = RequestResolver(quotas)
        self.reader.goes_by = lambda: lowest_first
        self._core, self._clock = core, clock

    def pass_by(self, shadow: Sequence[LimitRequest], users: Sequence[str] = ()) -> None:
        """Something goes on past limits in shadow, which are told of it, and no more; ``users``: see ``Tally``."""
        if self._counting is not None and self._core.pretended_wait is None:
            self._core.shadows.note(shadow)
            self._counting.counter.shadowed(asked_of(shadow), users)

    def correct(self, shadow: Sequence[LimitRequest], actual: Sequence[int]) -> None:
        """What went past limits in shadow has cost that."""
        if self._counting is not None and self._core.pretended_wait is None:
            more = [(each.name, each.key, cost - each.cost) for each, cost in zip(shadow, actual, strict=True)]
            self._core.shadows.note(shadow)
            self._counting.counter.corrected(more)

    def _let_through(self, decision: Decision, shadow: tuple[LimitRequest, ...]) -> Decision:
        self.pass_by(shadow)
        return replace(decision, shadow=shadow)

    @property
    def quotas(self) -> dict[str, AnyLimit]:
        """Limits by name; more may be put in."""
        return self.reader.quotas


class PermitMethods(LimiterBase):
    """Take permits, and give them back."""

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
        """Take the permits of one call from every limit in one atomic step, or none of them.

        A refusal says how long to wait; nothing was taken. With ``max_wait`` the call sleeps to its slot, behind the
        slots of calls that came earlier, and is refused at once if that slot lies further away.

        Args:
            limits: a quota's name, a :class:`Limit` that has a name, or several of them.
            args: what the call is about, by name: each limit takes its own key and cost from it, as from the arguments
                of a task.
            key: the bucket as it is shown everywhere, for limits that are kept by key; the others are whole.
            cost: permits to take from each; default: what each limit says.
            priority: how important the call is, in the broker's numbers, where a limit has a ``reserve``. Default: as a
                message that is sent without one.
            max_wait: seconds that the call may sleep for its turn; ``None``: as long as it takes.

        Returns:
            The decision. If it allows, the permit is good now.

        Raises:
            ImpossibleRequest: the cost is above a limit's burst.
            ConfigurationError: an unknown quota, a limit without a name or key that it needs, or a key where none of
                the limits is kept by key.
            StoreUnavailable: the store did not answer.

        *Warning*: under :class:`Concurrency` waits are estimates, and callers may overtake one another. Without
        ``max_wait`` a call has no place in the line: while tasks wait for this limit (``throttle="retry"``) it is
        refused. A call that sleeps hears of no change: when a rate is raised, a pause is ended or a bucket is reset, it
        sleeps to the turn that it was told. Where that matters, wait for a part of the time, and call again.
        """
        return (yield from self._acquire(self.reader.demands(limits, key, cost, args, priority), max_wait))

    def _acquire(self, demands: tuple[LimitRequest, ...], max_wait: float | None) -> Operation[Decision]:
        shadows = self._core.shadows
        asked, shadow = shadows.split(demands)
        if shadow and self._counting is None and shadows.is_to_look(self._clock.monotonic()):
            with suppress(*STORE_TROUBLES):
                yield from ask_would(self._core, {each.name: each.limit for each in shadow})
            asked, shadow = shadows.split(demands)
        if asked or not shadow:
            decision = yield from self._acquire_and_count(asked, max_wait)
        else:
            decision = passed(shadow, self._core.new_id())
        return self._let_through(decision, shadow) if shadow and decision.allowed else decision

    def _acquire_and_count(self, demands: tuple[LimitRequest, ...], max_wait: float | None) -> Operation[Decision]:
        now, counting = self._clock.monotonic, self._counting
        operation = acquire(self._core, demands, longest_wait(max_wait), now)
        if counting is None or self._core.pretended_wait is not None:
            return (yield from operation)
        began = now()
        try:
            decision = yield from operation
        except STORE_TROUBLES:
            note_lost(counting.counter, demands)
            raise
        note(counting.counter, demands, decision, now() - began if max_wait != 0 else 0.0)
        self._core.shadows.hear(decision)
        return decision

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
        """What :meth:`acquire` would answer now. Takes nothing; the next caller may be quicker."""
        return (yield from self._peek(self.reader.demands(limits, key, cost, args, priority)))

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
        """Forget what was taken: the buckets are full again and the slots of those who wait are gone.

        What had been reserved for later than now is good still, on top. Cancelled or settled afterwards, it may give
        permits back that others have taken since. ``force``: also for a name that is no quota here, see
        :meth:`set_rate`.
        """
        yield from self._core.reset(self.reader.to_reset(limits, key, args, force=force), note_of(by, reason))

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
        """Take the permits of one call ahead of time, and say how long to wait for them.

        When it is allowed the permits are spent; they are good in ``retry_after`` seconds, and no second call is
        needed then. The same ``id`` finds the same reservation, for an hour after its time.

        Args:
            limits: as in :meth:`acquire`, without :class:`Concurrency`.
            id: names the reservation.
            horizon: seconds; how far ahead the permits may lie. Refused if they would lie further.
            args, key, cost, priority: as in :meth:`acquire`.

        *Warning*: a permit taken ahead is spent even if nobody comes for it: see :meth:`cancel`. Under an id that more
        limits were reserved with, these alone are found, and nothing is said; under one with fewer limits it is an
        error (but on a cluster those that are on other nodes are reserved too).
        """
        demands = self.reader.demands(limits, key, cost, args, priority)
        check_reservable(demands, id)
        asked, shadow = self._core.shadows.split(demands)
        seconds, decision = seconds_of("horizon", horizon, 0), passed(shadow, id) if shadow else None
        if asked or decision is None:
            decision = yield from self._core.reserve(asked, id=id, horizon=seconds)
        if not shadow:
            return decision
        is_new = decision.allowed and self._core.shadows.is_first(("reserved", id))
        return self._let_through(decision, shadow) if is_new else replace(decision, shadow=shadow)

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
        """Give a reservation back; the arguments are those of :meth:`reserve`. Idempotent. False: there was none.

        What comes back is what can be given to others without exceeding a limit: all of it if nothing is reserved
        behind it, less if something is, nothing of a permit that lies in the past for longer than it cost.
        """
        asked, shadow = self._core.shadows.split(self.reader.plain(limits, key, cost, args))
        was_there = bool(shadow) and self._core.shadows.forget(("reserved", id))
        if was_there:
            self.correct(shadow, [0] * len(shadow))
        return (yield from self._core.cancel(asked, id=id)) if asked else was_there

    @limiter_method
    def settle(self, decision: Decision, actual_cost: int, *, limit: str | None = None) -> Operation[bool]:
        """Correct what a granted call was charged, once it is known: more is charged, less is given back.

        For costs that are known only afterwards (tokens of a language model): acquire with an estimate, settle with
        the truth. It counts once for each decision. What was too much comes back as far as no limit can be exceeded by
        it: all of it from windows; from a token bucket what it would still hold if it had never lent it, less what has
        come back since; nothing under warm-up.

        Args:
            decision: the one that allowed the call.
            actual_cost: permits; 0 or more, and it may be above what the limit holds: those who come next wait.
            limit: the one to settle. Default: each whose cost is not a fixed number; if there is none, each that takes
                more than one permit; else all.

        Returns:
            Whether this call corrected it; False if an earlier one had.
        """
        check_settled(decision)
        demands, shadow = decision.demands, decision.shadow
        if not demands and not shadow:
            return False
        actual = actual_costs((*demands, *shadow), actual_cost, limit)
        check_actual((*demands, *shadow), actual)
        is_first = bool(shadow) and self._core.shadows.is_first(("settled", decision.id))
        if is_first:
            self.correct(shadow, actual[len(demands) :])
        if not demands:
            return is_first
        actual = actual[: len(demands)]
        return (yield from self._core.settle(demands, actual, id=decision.id, granted_at=decision.granted_at))

    @limiter_method
    def release(self, decision: Decision) -> Operation[bool]:
        """Give back the places under :class:`Concurrency` that a call holds. Idempotent; False: there were none."""
        return (yield from self._core.release(decision.demands, id=decision.id, granted_at=decision.granted_at))

    @limiter_method
    def renew(self, decision: Decision) -> Operation[bool]:
        """Keep the places that a call holds for another ``lease`` seconds from now. False: one had expired."""
        return all((yield from self._core.renew([(demand, decision.id) for demand in leased(decision.demands)])))

    @limiter_method
    def available(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        priority: int | None = None,
    ) -> Operation[int]:
        """Permits that could be taken now, of the limit that has the fewest."""
        decision = yield from self._peek(self.reader.demands(limits, key, 1, args, priority))
        return min(state.remaining for state in decision.states) if decision.allowed else 0
