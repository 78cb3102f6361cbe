"""The limiters' methods for operators: store rates, pause, read settings and counts. Each is an operation."""

from __future__ import annotations

from collections.abc import Iterable

from ..counts.shadow_report import ShadowReport
from ..counts.stats import Stats
from ..limits.any_limit import AnyLimit
from ..limits.stored_settings import Change, LimitConfig, WeightConfig
from .argument_checks import length_of
from .limiter_base import LimiterBase
from .operation import Operation, limiter_method
from .report_counts import ask_counts
from .resolve_request import several
from .setting_operations import check_shadow_to_store, note_of, weight_to_store
from .shadow import ask_shadow_reports

__all__ = ["AdminMethods"]


class AdminMethods(LimiterBase):
    """Change a limit for the whole fleet, from the next decision on."""

    def _named(self, name: str | AnyLimit, key: str | None, force: bool) -> Operation[tuple[str, AnyLimit | None]]:
        """The name of a known limit, and the limit as the code here has it."""
        known, code = self._reader.code(name, key, force=force)
        if code is None and not force and not (yield from self._core.settings.is_known(known, key)):
            raise self._reader.unknown(known)
        return known, code

    @limiter_method
    def set_rate(
        self,
        name: str | AnyLimit,
        rate: str | AnyLimit,
        *,
        key: str | None = None,
        version: int | None = None,
        for_: float | None = None,
        by: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Operation[bool]:
        """Store a rate that replaces the code's, for every process and from its next decision on.

        Tokens are kept, not time: used permits stay used, and refill at the new rate. A new algorithm starts with no
        permits left. Waiting tasks get earlier or later slots accordingly.

        Args:
            name: the limit's name, or the limit.
            rate: a rate (other options stay those of the quota here), a :class:`Limit`, or a :class:`Concurrency` to
                replace a :class:`Concurrency`. It is stored without name, key, missing_key, cost, per_worker, lease,
                fair, weights, max_parked, priority_reserve, adaptive, breaker, shadow (the code's hold), rates,
                rates_ttl and resume_over (none is in force).
            key: changes one bucket of a limit with keys; takes precedence over the whole limit's stored rate.
            version: a number that grows with each deploy. Nothing changes if this or a higher one was set before, as by
                a newer process. A change without a version always applies, and keeps the stored version.
            for_: seconds after which the code's rate holds again. Default: no end.
            by: author; default: user and host. :meth:`config` and :meth:`history` show it.
            reason: reason, shown in the same way.
            force: also for an unknown name: no quota of this limiter, no limit of its app's tasks and queues, and
                nothing in the store. The store knows a limit while its rate is stored, or it is paused or in use. (A
                limit with keys that the code here does not know is found by its stored rate, or by ``key``.) All
                methods that take a limit's name have this argument.

        Returns:
            Whether the rate is in force now; False if a newer version stays.

        Raises:
            ConfigurationError: an unreadable rate, a rate for a :class:`Concurrency`, or an unknown name.

        *Warning*: a stored burst below a call's cost makes that call impossible (:class:`ImpossibleRequest`). A change
        of algorithm clears the queue: waiting calls return at their old slots and then queue again.
        """
        known = yield from self._named(name, key, force)
        set_rate = self._core.settings.set_rate
        return (yield from set_rate(*known, rate, key=key, version=version, for_=for_, by=by, reason=reason))

    @limiter_method
    def try_set_rate(
        self,
        name: str | AnyLimit,
        rate: str | AnyLimit,
        *,
        key: str | None = None,
        for_: float | None = None,
        by: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Operation[bool]:
        """As :meth:`set_rate`, but only if no rate is stored. Returns whether the rate was set."""
        known = yield from self._named(name, key, force)
        set_rate = self._core.settings.set_rate
        return (yield from set_rate(*known, rate, key=key, only_if_none=True, for_=for_, by=by, reason=reason))

    @limiter_method
    def expire_rate(
        self,
        name: str | AnyLimit,
        seconds: float,
        *,
        key: str | None = None,
        by: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Operation[bool]:
        """Let the stored rate end in ``seconds``; then the code's rate holds again. False: none is stored."""
        us = length_of(seconds, "seconds")
        known, _ = yield from self._named(name, key, force)
        return (yield from self._core.settings.expire_rate(known, key, us, note_of(by, reason)))

    @limiter_method
    def unset_rate(
        self,
        name: str | AnyLimit,
        *,
        key: str | None = None,
        by: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Operation[bool]:
        """Remove the stored rate; the code's rate holds again from the next decision on. False: none is stored.

        Used permits stay used: see :meth:`reset`.
        """
        known, _ = yield from self._named(name, key, force)
        return (yield from self._core.settings.expire_rate(known, key, 0, note_of(by, reason)))

    @limiter_method
    def config(self, name: str | AnyLimit, *, key: str | None = None, force: bool = False) -> Operation[LimitConfig]:
        """The limit that is in force, since when and set by which user: code and store side by side."""
        known, code = yield from self._named(name, key, force)
        return (yield from self._core.settings.config(known, key, code))

    @limiter_method
    def set_shadow(
        self,
        name: str | AnyLimit,
        on: bool | None,
        *,
        by: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Operation[bool]:
        """Put a limit into shadow, where it throttles nothing, or into force. This overrides the code.

        Shadow begins with every process's next decision. Force returns within a second, with all permits available:
        processes that let tasks and calls pass without the store look once a second.

        Args:
            name: the limit's name, or the limit, with all of its keys.
            on: whether the limit is in shadow; ``None``: as the code says.
            by, reason: author and reason, for :meth:`config` and :meth:`history`; default author: user and host.
            force: see :meth:`set_rate`.

        Returns:
            False if this was stored already.

        Raises:
            ConfigurationError: a :class:`Concurrency`, an unknown name, or another value of ``on``.
        """
        known, code = yield from self._named(name, None, force)
        check_shadow_to_store(known, code, on)
        return (yield from self._core.settings.set_shadow(known, on, note_of(by, reason)))

    @limiter_method
    def set_weight(
        self,
        name: str | AnyLimit,
        key: str,
        weight: float | None,
        *,
        by: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Operation[bool]:
        """Change the weight of a key that shares a limit (``fair=``), also for tasks that wait already.

        Args:
            name: the limit's name, or the limit.
            key: the key that ``fair`` makes of a task's arguments.
            weight: of two keys with waiting tasks, weight 4 gets four times the permits of weight 1. Weight 0 holds
                the key's tasks back. ``None``: the code's weight, 1 if it has none.
            by, reason: author and reason, for :meth:`history`; default author: user and host.
            force: see :meth:`set_rate`; also for a limit that is not fair in the code here.

        Returns:
            False if no weight was stored that could be removed.

        Raises:
            ConfigurationError: an invalid weight, an unknown name, or a limit that is not fair.
        """
        known, code = yield from self._named(name, None, force)
        weight = weight_to_store(known, code, key, weight, force=force)
        return (yield from self._core.settings.set_weight(known, key, weight, by, reason))

    @limiter_method
    def weights(self, name: str | AnyLimit, *, force: bool = False) -> Operation[dict[str, WeightConfig]]:
        """Weights of a fair limit by key: the code's and the stored ones, with time and author. Other keys have 1."""
        known, code = yield from self._named(name, None, force)
        return (yield from self._core.settings.weights(known, code))

    @limiter_method
    def history(self, name: str | AnyLimit, *, force: bool = False) -> Operation[list[Change]]:
        """The last hundred changes of a limit and its keys, with author and reason, oldest first.

        The script that makes a change also notes it. Versions before this one note nothing.
        """
        known, code = self._reader.code(name, None, force=force)
        found = yield from self._core.settings.history(known, code)
        if not found:  # a limit with a history is known
            yield from self._named(name, None, force)
        return found

    @limiter_method
    def pause(
        self,
        name: str | AnyLimit,
        seconds: float,
        *,
        key: str | None = None,
        by: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Operation[float]:
        """Grant nothing for ``seconds``, in the whole fleet, from the next decision on.

        For an upstream that answers ``Retry-After``. A pause never shortens a longer one.

        Args:
            name: the limit's name, or the limit.
            seconds: length of the pause from now.
            key: pauses only this bucket of a limit with keys.

        Returns:
            Seconds from now until the pause ends.

        *Warning*: permits taken ahead are still used: for at most a tenth of a second by tasks in a worker, a second by
        calls that wait (``max_wait``).
        """
        us = length_of(seconds, "seconds")
        known, _ = yield from self._named(name, key, force)
        return (yield from self._core.settings.pause(known, key, us, note_of(by, reason))) / 1e6

    @limiter_method
    def resume(
        self,
        name: str | AnyLimit,
        *,
        key: str | None = None,
        by: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Operation[bool]:
        """End a pause. False: there was none."""
        known, _ = yield from self._named(name, key, force)
        return (yield from self._core.settings.pause(known, key, 0, note_of(by, reason))) == 1

    @limiter_method
    def stats(
        self,
        names: str | AnyLimit | Iterable[str | AnyLimit],
        *,
        totals: bool = False,
        minutes: int | None = None,
        force: bool = False,
    ) -> Operation[dict[str, Stats]]:
        """Counts of limits' decisions: results, permits, waiting times, the last minutes, the heaviest users.

        Workers and limiters count, and write to the store about once a second. Counts of stopped processes stay; a
        killed process loses its last second.

        Args:
            names: a limit's name, a limit, or several of them, such as :attr:`quotas`.
            totals: leaves out seconds, minutes and users, which are most of the data.
            minutes: reads only the last so many minutes that have decisions, at most 60.
            force: also for unknown names, see :meth:`set_rate`.

        Returns:
            The stats by the limit's name, in the order of ``names``, also of a single limit.
        """
        known: dict[str, None] = {}
        for each in several(names):
            known[(yield from self._named(each, None, force))[0]] = None
        found = yield from ask_counts(self._core, list(known), totals=totals, minutes=minutes)
        return {stats.name: stats for stats in found}

    @limiter_method
    def shadow_report(self, name: str | AnyLimit, *, force: bool = False) -> Operation[ShadowReport]:
        """What a limit in shadow would have done in force. The report's text is a sentence.

        Covers all requests since the shadow began, except the last few seconds.

        Args:
            name: the limit's name, or the limit.
            force: also for an unknown name, see :meth:`set_rate`.
        """
        known, code = yield from self._named(name, None, force)
        return (yield from ask_shadow_reports(self._core, {known: code}))[known]
