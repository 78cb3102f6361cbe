"""What was decided about limits, by the whole fleet."""

from __future__ import annotations

from collections.abc import Iterable

from ..counts.figures import Stats
from ..counts.would import Would
from ..limits.any_limit import AnyLimit
from .counted import ask_counts
from .live_verbs import LiveVerbs
from .questions import Asks
from .shadows import ask_would
from .verbs import asked

__all__ = ["StatsVerbs"]


class StatsVerbs(LiveVerbs):
    """Read what workers and limiters have counted."""

    @asked
    def stats(self, name: str | AnyLimit, *, force: bool = False) -> Asks[Stats]:
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

    @asked
    def stats_of(self, names: Iterable[str], *, totals: bool = False, minutes: int | None = None) -> Asks[list[Stats]]:
        """The same for many limits at once, known or not, in the order of their names.

        ``totals``: without the seconds, the minutes and the users, which are most of it. ``minutes``: with the last so
        many in which something was decided, 60 at the most, and without the rest.
        """
        return (yield from ask_counts(self._core, list(names), totals=totals, minutes=minutes))

    @asked
    def would(self, name: str | AnyLimit, *, force: bool = False) -> Asks[Would]:
        """What a limit in shadow would have done, had it been in force: as a text, a sentence.

        Of all requests since it was put into shadow but those of the last seconds, which are not reckoned yet.

        Args:
            name: the limit's name, or the limit.
            force: also for a name that nobody knows, see :meth:`set_rate`.
        """
        known, code = yield from self._named(name, None, force)
        return (yield from ask_would(self._core, {known: code}))[known]
