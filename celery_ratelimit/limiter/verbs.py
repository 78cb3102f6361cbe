"""What users do with permits: each verb is written once, for those who wait and for those who await."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from ..limits.any_limit import AnyLimit
from ..limits.decision import Decision
from .checks import actual_costs, check_actual, check_reservable, check_settled
from .core import Core
from .demand import Demand, Limits, leased
from .durations import seconds_of
from .questions import Asks
from .reader import Reader
from .shadows import asked_of, passed
from .stored import note_of

__all__ = ["Asking", "Verbs", "asked"]

P = ParamSpec("P")
R = TypeVar("R")


def asked(verb: Callable[Concatenate[Any, P], Asks[R]]) -> Callable[Concatenate[Any, P], R]:
    """A method that is written as a generator of questions, as it is called: the limiter drives it to its answer."""

    @wraps(verb)
    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        answer: R = self._drive(verb(self, *args, **kwargs))
        return answer

    said = inspect.signature(verb)
    returns = str(said.return_annotation).removeprefix("Asks[").removesuffix("]")
    method.__signature__ = said.replace(return_annotation=returns)  # type: ignore[attr-defined]
    return method


class Asking:
    """What limiters have in common, however they talk to the store.

    Args:
        quotas: limits by name, so that calls can name them.
        prefix: what every key in the store begins with.
        core: what is asked.
        lowest_first: whether the lowest priority goes first at the broker; ``None``: it is not known.

    Attributes:
        reader: reads what users ask.
    """

    #: Makes the limiter of an app, of this kind: set by the package, since what an app is, is known further up.
    of_app: ClassVar[Callable[[type[Asking], Any], Any]]
    _counting: Any

    def __init__(
        self, quotas: Mapping[str, Any] | None, prefix: str, core: Core, lowest_first: bool | None = None
    ) -> None:
        self.prefix = prefix
        self.reader = Reader(quotas)
        self.reader.goes_by = lambda: lowest_first
        self._core = core

    def pass_by(self, shadow: Sequence[Demand], users: Sequence[str] = ()) -> None:
        """Something goes on past limits in shadow, which are told of it, and no more; ``users``: see ``Tally``."""
        if self._counting is not None and self._core.pretended_wait is None:
            self._core.shadows.note(shadow)
            self._counting.counter.shadowed(asked_of(shadow), users)

    def correct(self, shadow: Sequence[Demand], actual: Sequence[int]) -> None:
        """What went past limits in shadow has cost that."""
        if self._counting is not None and self._core.pretended_wait is None:
            pairs = zip(shadow, actual, strict=True)
            self._core.shadows.note(shadow)
            self._counting.counter.corrected([(each.name, each.key, cost - each.cost) for each, cost in pairs])

    def _let_through(self, decision: Decision, shadow: tuple[Demand, ...]) -> Decision:
        if not decision.allowed:
            return decision
        self.pass_by(shadow)
        return replace(decision, shadow=shadow)

    @property
    def quotas(self) -> dict[str, AnyLimit]:
        """Limits by name; more may be put in."""
        return self.reader.quotas


class Verbs(Asking):
    """Take permits, and give them back."""

    def _take(self, demands: Sequence[Demand], max_wait: float | None) -> Decision:
        raise NotImplementedError

    def acquire(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
        priority: int | None = None,
        max_wait: float | None = 0.0,
    ) -> Decision:
        """Take the permits of one call from every limit in one atomic step, or none of them.

        When a limit is closed the decision says so and how long to wait; nothing was taken. With ``max_wait`` the
        call sleeps to a slot of its own, in the order of arrival, and is refused at once if that slot lies further
        away. Who arrives while others wait joins the line behind them, even if a permit is there at that moment.

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

        *Warning*: under :class:`Concurrency` nobody knows when a place will be free: waits are estimates, and callers
        may overtake one another. Without ``max_wait`` a call has no place in the line. While tasks wait for this limit
        (``throttle="retry"``), it is refused; with ``max_wait`` it is served in its turn, behind them. A call that
        sleeps hears of no change: when a rate is raised, a pause is ended or a bucket is reset, it sleeps to the turn
        that it was told. Where that matters, wait for a part of the time, and call again.

        The permit is spent when this returns. What the caller does afterwards, and when, is not seen.
        """
        return self._take(self.reader.demands(limits, key, cost, args, priority), max_wait)

    @asked
    def peek(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
        priority: int | None = None,
    ) -> Asks[Decision]:
        """What :meth:`acquire` would answer now. Takes nothing; the next caller may be quicker."""
        return (yield from self._peek(self.reader.demands(limits, key, cost, args, priority)))

    def _peek(self, demands: tuple[Demand, ...]) -> Asks[Decision]:
        asked, shadow = self._core.shadows.split(demands)
        return (yield from self._core.peek(asked)) if asked else passed(shadow, "")

    @asked
    def reset(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        by: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Asks[None]:
        """Forget what was taken: the buckets are full again and the slots of those who wait are gone.

        What had been reserved for later than now is good still, on top. Cancelled or settled afterwards, it may give
        permits back that others have taken since.

        With ``force`` a name that is no quota here means whatever limit bears it; see :meth:`set_rate`.
        """
        yield from self._core.reset(self.reader.to_reset(limits, key, args, force=force), note_of(by, reason))

    @asked
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
    ) -> Asks[Decision]:
        """Take the permits of one call ahead of time, and say how long to wait for them.

        When it is allowed the permits are spent; they are good in ``retry_after`` seconds, and no second call is
        needed then. The same ``id`` finds the same reservation, for an hour after its time.

        Args:
            limits: as in :meth:`acquire`; without :class:`Concurrency`, since nobody can know when a place is free.
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

    @asked
    def cancel(
        self,
        limits: Limits,
        *,
        id: str,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
    ) -> Asks[bool]:
        """Give a reservation back; the arguments are those of :meth:`reserve`. Idempotent.

        What comes back is what can be given to others without anybody exceeding a limit: all of it if nobody has
        reserved behind it, less if somebody has, nothing of a permit that lies in the past for longer than it cost.

        Returns:
            Whether there was such a reservation.
        """
        asked, shadow = self._core.shadows.split(self.reader.plain(limits, key, cost, args))
        was_there = bool(shadow) and self._core.shadows.forget(("reserved", id))
        if was_there:
            self.correct(shadow, [0] * len(shadow))
        return (yield from self._core.cancel(asked, id=id)) if asked else was_there

    @asked
    def settle(self, decision: Decision, actual_cost: int, *, limit: str | None = None) -> Asks[bool]:
        """Correct what a granted call was charged, once it is known: more is charged, less is given back.

        For costs that are known only afterwards (tokens of a language model): acquire with an estimate, settle with
        the truth. It counts once, however often it is called for a decision. What was too much comes back as far as
        nobody can exceed the limit by it: all of it from windows; from a token bucket what it would still hold if it
        had never lent it, less what has come back since; nothing under warm-up.

        Args:
            decision: the one that allowed the call.
            actual_cost: permits; 0 or more, and it may be above what the limit holds: those who come next wait.
            limit: the name of the limit to settle. Default: those whose cost is not a fixed number; if there are none,
                those that take more than one permit; else all.

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

    @asked
    def release(self, decision: Decision) -> Asks[bool]:
        """Give back the places under :class:`Concurrency` that a call holds. Idempotent; False: there were none."""
        return (yield from self._core.release(decision.demands, id=decision.id, granted_at=decision.granted_at))

    @asked
    def renew(self, decision: Decision) -> Asks[bool]:
        """Keep the places that a call holds for another ``lease`` seconds from now. False: one had expired."""
        return all((yield from self._core.renew([(demand, decision.id) for demand in leased(decision.demands)])))

    @asked
    def available(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        priority: int | None = None,
    ) -> Asks[int]:
        """Permits that could be taken now: of the limit that has the fewest. The next caller may be quicker."""
        decision = yield from self._peek(self.reader.demands(limits, key, 1, args, priority))
        return min(state.remaining for state in decision.states) if decision.allowed else 0
