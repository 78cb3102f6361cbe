"""Methods of operators: store rates, pause, and look at what is stored and counted. Each is an operation."""

from __future__ import annotations

from collections.abc import Iterable

from ..counts.figures import Stats
from ..counts.would import Would
from ..limits.any_limit import AnyLimit
from .limit_request import length_of
from .operation import Operation, limiter_method
from .permit_methods import LimiterBase
from .setting_calls import Change
from .shadow import ask_would
from .stored_settings import LimitConfig, WeightConfig, check_shadow_to_store, note_of, weight_to_store
from .usage import ask_counts

__all__ = ["AdminMethods"]


class AdminMethods(LimiterBase):
    """Change a limit for the whole fleet, from the next decision on."""

    def _named(self, name: str | AnyLimit, key: str | None, force: bool) -> Operation[tuple[str, AnyLimit | None]]:
        """A limit that somebody knows, by its name; and as the code here has it."""
        known, code = self.reader.code(name, key, force=force)
        if code is None and not force and not (yield from self._core.settings.is_known(known, key)):
            raise self.reader.unknown(known)
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
        """Put a rate in the place of the code's, for every process and from its next decision on.

        Tokens are kept, not time: what was used stays used, and comes back at the new rate. Another algorithm begins
        as used up. Those who wait come earlier or later accordingly.

        Args:
            name: the limit's name, or the limit.
            rate: a rate (the other options stay those of the quota of that name here), a :class:`Limit` or, for places,
                a :class:`Concurrency`. Its name, key, cost, lease and per_worker do not count: they are the code's.
            key: for one bucket of a limit that is kept by key; goes before what is stored for the whole limit.
            version: a number that grows with each deploy. Nothing is changed if this or a higher version was set
                before, so that an old process, or a deploy that is rolled back, cannot undo a newer change. Without
                one (a change by hand) it is changed in any case, and the version stays.
            for_: seconds after which the code's rate holds again. Default: it stays until somebody changes it.
            by: who it was; default: user and host. It stands in :meth:`config` and :meth:`history`, as with all that
                change something.
            reason: why; the same.
            force: also for a name that nobody knows: no quota of this limiter, no limit of its app's tasks and queues,
                and nothing in the store, where a limit is known as long as it is stored, paused or in use. (One that
                is kept by key and known nowhere here is found there by what is stored for it, or by ``key``.) All that
                is done to a limit by its name takes it.

        Returns:
            Whether it is in force now; False if a newer version stays.

        Raises:
            ConfigurationError: a rate that cannot be read, a rate for places, or a name that nobody knows.

        *Warning*: a stored burst below what a call costs makes that call impossible (:class:`ImpossibleRequest`). A
        change of algorithm clears the line: who waits comes at the time that was told, and then joins it again.
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
        """As :meth:`set_rate`, only if no rate is stored. Returns whether it was."""
        known = yield from self._named(name, key, force)
        set_rate = self._core.settings.set_rate
        return (yield from set_rate(*known, rate, key=key, only_if_none=True, for_=for_, by=by, reason=reason))

    @limiter_method
    def expire(
        self,
        name: str | AnyLimit,
        seconds: float,
        *,
        key: str | None = None,
        by: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Operation[bool]:
        """The stored rate ends in so many seconds; then the code's holds again. False: none is stored."""
        us = length_of(seconds, "seconds")
        known, _ = yield from self._named(name, key, force)
        return (yield from self._core.settings.expire_rate(known, key, us, note_of(by, reason)))

    @limiter_method
    def delete(
        self,
        name: str | AnyLimit,
        *,
        key: str | None = None,
        by: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Operation[bool]:
        """Take the stored rate away; the code's holds again from the next decision on. False: none is stored.

        What was used stays used: :meth:`reset` forgets that.
        """
        known, _ = yield from self._named(name, key, force)
        return (yield from self._core.settings.expire_rate(known, key, 0, note_of(by, reason)))

    @limiter_method
    def config(self, name: str | AnyLimit, *, key: str | None = None, force: bool = False) -> Operation[LimitConfig]:
        """What is in force for a limit, since when and by whom: code and store side by side."""
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
        """Put a limit into shadow, so that it throttles nobody, or in force, whatever the code says.

        In shadow from the next decision on, for every process; in force again within a second, where a process has
        let tasks and calls pass without asking, and with nothing used.

        Args:
            name: the limit's name, or the limit; all of its keys.
            on: whether it is in shadow; ``None``: as the code says again.
            by, reason: who it was, and why, for :meth:`config` and :meth:`history`; default: user and host.
            force: see :meth:`set_rate`.

        Returns:
            False: that was stored already.

        Raises:
            ConfigurationError: a limit of places, a name that nobody knows, or ``on`` is neither of these.
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
        """Change the weight of one of those who share a limit (``fair=``), also among what waits already.

        Args:
            name: the limit's name, or the limit.
            key: whose weight: what ``fair`` makes of a task's arguments, or will make.
            weight: of two keys that have tasks waiting, one of 4 has four times as many permits as one of 1. 0 holds
                the tasks of a key back. ``None``: the weight in the code again, 1 if there is none.
            by, reason: who it was, and why, for :meth:`history`; default: user and host.
            force: see :meth:`set_rate`; also for a limit that is not fair in the code here.

        Returns:
            False: no weight was stored that could be taken away.

        Raises:
            ConfigurationError: a weight that cannot be, a name that nobody knows, or a limit that nobody shares.
        """
        known, code = yield from self._named(name, None, force)
        weight = weight_to_store(known, code, key, weight, force=force)
        return (yield from self._core.settings.set_weight(known, key, weight, by, reason))

    @limiter_method
    def weights(self, name: str | AnyLimit, *, force: bool = False) -> Operation[dict[str, WeightConfig]]:
        """Weights of those who share a limit, by key: of the code and stored, since when and by whom. Others have 1."""
        known, code = yield from self._named(name, None, force)
        return (yield from self._core.settings.weights(known, code))

    @limiter_method
    def history(self, name: str | AnyLimit, *, force: bool = False) -> Operation[list[Change]]:
        """What was changed of a limit and its keys, by whom and why: the last hundred changes, in their order.

        Each is noted in the step that makes it. What a version before this one changes is not noted.
        """
        known, code = self.reader.code(name, None, force=force)
        found = yield from self._core.settings.history(known, code)
        if not found:  # else somebody knows it
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
        """Let nothing through for so many seconds, in the whole fleet, from the next decision on.

        For an upstream that says ``Retry-After``. A shorter pause never shortens one that is there.

        Args:
            name: the limit's name, or the limit.
            seconds: how long from now.
            key: only this bucket of a limit that is kept by key.

        Returns:
            Seconds that it is paused for, from now.

        *Warning*: permits that were taken ahead are used still: a tenth of a second at most for tasks in a worker, a
        second for calls that wait (``max_wait``).
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
    def stats(self, name: str | AnyLimit, *, force: bool = False) -> Operation[Stats]:
        """What was decided about a limit: results, permits, waiting times, the last minutes, who uses it most.

        Every worker and every limiter counts, and tells the store about once a second; what those have counted that are
        gone is there still. A killed one's last second is missing.

        Args:
            name: the limit's name, or the limit.
            force: also for a name that nobody knows, see :meth:`set_rate`.
        """
        known, _ = yield from self._named(name, None, force)
        (stats,) = yield from ask_counts(self._core, [known])
        return stats

    @limiter_method
    def stats_of(
        self, names: Iterable[str], *, totals: bool = False, minutes: int | None = None
    ) -> Operation[list[Stats]]:
        """The same for many limits at once, known or not, in the order of their names.

        ``totals``: without the seconds, the minutes and the users, which are most of it. ``minutes``: with the last so
        many in which something was decided, 60 at the most, and without the rest.
        """
        return (yield from ask_counts(self._core, list(names), totals=totals, minutes=minutes))

    @limiter_method
    def would(self, name: str | AnyLimit, *, force: bool = False) -> Operation[Would]:
        """What a limit in shadow would have done, had it been in force: as a text, a sentence.

        Of all requests since it was put into shadow but those of the last seconds, which are not reckoned yet.

        Args:
            name: the limit's name, or the limit.
            force: also for a name that nobody knows, see :meth:`set_rate`.
        """
        known, code = yield from self._named(name, None, force)
        return (yield from ask_would(self._core, {known: code}))[known]
