"""What is counted: sent to the store, and read from it, by a script for many limits (on a cluster, for one each)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from ..counts.counter import Counter
from ..counts.figures import Stats, read_stats
from ..counts.tally import MOST_USERS, Part, wire_of
from ..store.keys import count_keys
from .calls import call_of
from .core import Core
from .operation import Operation, RunScript, run_all
from .shadows import tell_arrivals

__all__ = ["ask_counts", "ask_used", "tell_all", "tell_counts"]

_T = TypeVar("_T")

#: Limits of which one script is told, or asks, and users: it is to take no longer than a few milliseconds.
_TOLD, _ASKED, _TOTALS = 20, 4, 100
#: Of many limits at once: no more than so many minutes each.
MOST_MINUTES = 60
_USERS = 400
#: Entries that one script reads of what was used lately; and seconds that are kept one by one, see ``lua/count.lua``.
_ENTRIES, _SECONDS = 1500, 180


def tell_counts(core: Core, parts: Sequence[tuple[str, Part]]) -> Operation[None]:
    """Add up what was decided."""
    for some in _told(core, parts):
        keys = [key for name, _ in some for key in count_keys(core.calls.prefix, name)]
        values = [MOST_USERS, len(some), *[value for _, part in some for value in wire_of(part)]]
        yield from run_all([RunScript(core.scripts.count, call_of(keys, values))])


def tell_all(core: Core, counter: Counter, parts: Sequence[tuple[str, Part]]) -> Operation[None]:
    """The same, and what came to limits in shadow."""
    yield from tell_arrivals(core, counter.arrivals)
    yield from tell_counts(core, parts)


def ask_counts(
    core: Core, names: Sequence[str], *, totals: bool = False, minutes: int | None = None
) -> Operation[list[Stats]]:
    """What was counted, in the order of the names; ``totals``: without the seconds, the minutes and the users;
    ``minutes``: with so many of the minutes in which something was decided, and without the rest.
    """
    which = min(minutes, MOST_MINUTES) if minutes is not None else 0 if totals else -1
    parts, asked = _together(core, names, _ASKED if which < 0 else _TOTALS), []
    for some in parts:
        keys = [key for name in some for key in count_keys(core.calls.prefix, name)]
        asked.append(RunScript(core.scripts.counts, call_of(keys, [which])))
    answer: list[Stats] = []
    for some, (us, *said) in zip(parts, (yield from run_all(asked)), strict=True):
        answer += [read_stats(name, int(us), each) for name, each in zip(some, said, strict=True)]
    return answer


def ask_used(core: Core, asked: Sequence[tuple[str, float]]) -> Operation[list[int]]:
    """Permits that were taken of these limits, each within so many seconds, up to a day; see ``lua/used.lua``."""
    parts: list[list[tuple[str, float]]] = []
    size = 0
    for name, within in asked:
        entries = int(within) if within <= _SECONDS else int(within / 60)
        if not parts or core.is_cluster or size + entries > _ENTRIES:
            parts.append([])
            size = 0
        parts[-1].append((name, within))
        size += entries
    replies = yield from run_all([_used(core, part) for part in parts])
    return [int(permits) for reply in replies for permits in reply]


def _used(core: Core, asked: Sequence[tuple[str, float]]) -> RunScript:
    keys, values = [], list[int | str]()
    for name, within in asked:
        _, seconds, minutes, _ = count_keys(core.calls.prefix, name)
        keys.append(seconds if within <= _SECONDS else minutes)
        values += [1 if within <= _SECONDS else 60, round(within)]
    return RunScript(core.scripts.used, call_of(keys, values))


def _told(core: Core, parts: Sequence[tuple[str, Part]]) -> Iterator[Sequence[tuple[str, Part]]]:
    """Those of which one script is told: not too many limits, nor users of them."""
    for some in _together(core, parts, _TOLD):
        first, users = 0, 0
        for at, (_, part) in enumerate(some):
            number = min(len(part.users), MOST_USERS)
            if users and users + number > _USERS:
                yield some[first:at]
                first, users = at, 0
            users += number
        yield some[first:]


def _together(core: Core, each: Sequence[_T], most: int) -> list[Sequence[_T]]:
    most = 1 if core.is_cluster else most
    return [each[at : at + most] for at in range(0, len(each), most)]
