"""What users do with limits while they are in force: store rates, pause, and look at what is stored."""

from __future__ import annotations

from ..limits.any_limit import AnyLimit
from .durations import length_of
from .history import Change, read_history
from .questions import Asks
from .stored import LimitConfig, change_of, note_of, read_config
from .stored_shadow import check_shadow_to_store
from .stored_weights import WeightConfig, note_of_weight, read_weights, weight_to_store
from .verbs import Asking, asked

__all__ = ["LiveVerbs"]


class LiveVerbs(Asking):
    """Change a limit for the whole fleet, from the next decision on."""

    def _named(self, name: str | AnyLimit, key: str | None, force: bool) -> Asks[tuple[str, AnyLimit | None]]:
        """A limit that somebody knows, by its name; and as the code here has it."""
        known, code = self.reader.code(name, key, force=force)
        if code is None and not force and not (yield from self._core.is_known(known, key)):
            raise self.reader.unknown(known)
        return known, code

    @asked
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
    ) -> Asks[bool]:
        """Put a rate in the place of the code's, for every process and from its next decision on.

        Tokens are kept, not time: what was used stays used, and comes back at the new rate. Another algorithm begins
        as used up. Those who wait come earlier or later accordingly.

        Args:
            name: the limit's name, or the limit.
            rate: a rate (the other options stay those of the quota of that name here), a :class:`Limit` or, for places,
                a :class:`Concurrency`. Its name, key, cost, lease
                and per_worker do not count: they are the code's.
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
        call = change_of(self._core.calls, *known, rate, key=key, version=version, for_=for_, by=by, reason=reason)
        return (yield from self._core.set_rate(call))

    @asked
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
    ) -> Asks[bool]:
        """As :meth:`set_rate`, only if no rate is stored. Returns whether it was."""
        known = yield from self._named(name, key, force)
        call = change_of(self._core.calls, *known, rate, key=key, only_if_none=True, for_=for_, by=by, reason=reason)
        return (yield from self._core.set_rate(call))

    @asked
    def expire(
        self,
        name: str | AnyLimit,
        seconds: float,
        *,
        key: str | None = None,
        by: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Asks[bool]:
        """The stored rate ends in so many seconds; then the code's holds again. False: none is stored."""
        us = length_of(seconds, "seconds")
        known, _ = yield from self._named(name, key, force)
        return (yield from self._core.expire(known, key, us, note_of(by, reason)))

    @asked
    def delete(
        self,
        name: str | AnyLimit,
        *,
        key: str | None = None,
        by: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Asks[bool]:
        """Take the stored rate away; the code's holds again from the next decision on. False: none is stored.

        What was used stays used: :meth:`reset` forgets that.
        """
        known, _ = yield from self._named(name, key, force)
        return (yield from self._core.expire(known, key, 0, note_of(by, reason)))

    @asked
    def config(self, name: str | AnyLimit, *, key: str | None = None, force: bool = False) -> Asks[LimitConfig]:
        """What is in force for a limit, since when and by whom: code and store side by side."""
        known, code = yield from self._named(name, key, force)
        return read_config(known, key or "", code, (yield from self._core.config(known, key)))

    @asked
    def set_shadow(
        self,
        name: str | AnyLimit,
        on: bool | None,
        *,
        by: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Asks[bool]:
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
        return (yield from self._core.set_shadow(known, on, note_of(by, reason)))

    @asked
    def set_weight(
        self,
        name: str | AnyLimit,
        key: str,
        weight: float | None,
        *,
        by: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Asks[bool]:
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
        return (yield from self._core.set_weight(known, key, weight, note_of_weight(key, by, reason)))

    @asked
    def weights(self, name: str | AnyLimit, *, force: bool = False) -> Asks[dict[str, WeightConfig]]:
        """Weights of those who share a limit, by key: of the code and stored, since when and by whom. Others have 1."""
        known, code = yield from self._named(name, None, force)
        return read_weights(code, (yield from self._core.weights(known)))

    @asked
    def history(self, name: str | AnyLimit, *, force: bool = False) -> Asks[list[Change]]:
        """What was changed of a limit and its keys, by whom and why: the last hundred changes, in their order.

        Each is noted in the step that makes it. What a version before this one changes is not noted.
        """
        known, code = self.reader.code(name, None, force=force)
        found = read_history(known, code, (yield from self._core.history(known)))
        if not found:  # else somebody knows it
            yield from self._named(name, None, force)
        return found

    @asked
    def pause(
        self,
        name: str | AnyLimit,
        seconds: float,
        *,
        key: str | None = None,
        by: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Asks[float]:
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
        return (yield from self._core.pause(known, key, us, note_of(by, reason))) / 1e6

    @asked
    def resume(
        self,
        name: str | AnyLimit,
        *,
        key: str | None = None,
        by: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Asks[bool]:
        """End a pause. False: there was none."""
        known, _ = yield from self._named(name, key, force)
        return (yield from self._core.pause(known, key, 0, note_of(by, reason))) == 1
