"""A decision over limits that live in several slots of a cluster, which no script can see at once.

The limits of one slot are one part of it, and one script decides about each part. Where none of the limits has said
no lately, all parts are asked at once. Else all are looked at first, and then one part after the other is asked for the
time at which all of them can be had, always in the order of their slots, so that two callers never hold what the other
one waits for. When a part says no, what the others have given is given back.

Weaker than one script, in this: for a moment a caller may hold permits that it will give back, and another who asks
then is refused where one script would have let it pass; what cannot be given back (under warm-up, or in a bucket that
has lent permits ahead meanwhile) is lost to everybody; a caller that dies half-way has spent what it held; and the
permits of one decision are good at one time only as exactly as its replies tell, which is what the decision takes.

Nothing here talks to the store: a generator yields what is to be asked, and is sent the reply, or thrown the error.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple, TypeVar

from ..errors import RateLimitError
from ..limits.concurrency import Concurrency
from ..limits.decision import GrantedAt
from ..store.cluster import slot_of
from ..store.keys import hash_tag
from ..store.script import Script
from .core import Asking
from .demand import Demand

__all__ = ["CrossSlot", "Part", "Step", "Steps", "parts_of"]

_T = TypeVar("_T")

#: How often parts may be taken anew because another part can only be had later.
ROUNDS = 3
#: A horizon that grants nothing: asks only for a slot.
SLOT_ONLY = -1
#: Seconds for which a limit that has said no is looked at before anything is taken, and how many such are remembered.
SUSPECT, SUSPECTS = 10.0, 1000


class Part(NamedTuple):
    """The demands that one slot has, and where they stand among all."""

    places: tuple[int, ...]
    demands: tuple[Demand, ...]


class Step(NamedTuple):
    """One script to run; the arguments are those of ``Limiter._run``."""

    script: Script
    demands: tuple[Demand, ...]
    first: tuple[str | int, ...]
    kind: str | None = None
    last: tuple[int, ...] = ()


#: Yields what to ask at once, is sent a reply or an error for each, returns one reply as if one script had seen all.
Steps = Generator[Sequence[Step], Sequence[list[int] | RateLimitError], list[int]]
#: A part of it that returns something else.
Asks = Generator[Sequence[Step], Sequence[list[int] | RateLimitError], _T]


def parts_of(demands: Sequence[Demand]) -> tuple[Part, ...]:
    """The parts of a decision in the order in which they are asked; none where one script sees all."""
    slots: dict[int, list[int]] = {}
    for place, demand in enumerate(demands):
        slots.setdefault(slot_of(hash_tag(demand.name)), []).append(place)
    if len(slots) < 2:
        return ()
    return tuple(Part(tuple(slots[slot]), tuple([demands[place] for place in slots[slot]])) for slot in sorted(slots))


class CrossSlot:
    """The decisions of one limiter over several slots."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self.parts = lru_cache(maxsize=1024)(parts_of)
        self._closed: dict[tuple[str, str], float] = {}

    def steps(
        self, script: Script, parts: Sequence[Part], first: Sequence[str | int], kind: str | None, last: Sequence[int]
    ) -> Steps:
        """What to ask instead of running ``script`` once for all parts."""
        if script is self.asking._acquire or script is self.asking._reserve:
            id, horizon, claim = (*first, 0)[:3]
            return _Taking(self, parts, str(id), int(horizon), int(claim), script is self.asking._reserve).run()
        if script is self.asking._peek:
            return _peek(self.asking, parts, first)
        return _in_each(script, parts, first, kind, last)

    def closed(self, demand: Demand) -> None:
        """This limit has said no."""
        if len(self._closed) >= SUSPECTS:
            self._closed.clear()
        self._closed[demand.name, demand.key] = time.monotonic() + SUSPECT

    def suspects(self, part: Part) -> bool:
        """Whether a limit of this part has said no lately."""
        if not self._closed:
            return False
        now = time.monotonic()
        return any(self._closed.get((demand.name, demand.key), 0.0) > now for demand in part.demands)


def _one(step: Step) -> Asks[list[int]]:
    (reply,) = yield from _all([step])
    return reply


def _all(asks: Sequence[Step]) -> Asks[list[list[int]]]:
    replies = (yield asks) if asks else ()
    said = []
    for reply in replies:
        if isinstance(reply, RateLimitError):
            raise reply
        said.append(reply)
    return said


def _in_each(
    script: Script, parts: Sequence[Part], first: Sequence[str | int], kind: str | None, last: Sequence[int]
) -> Steps:
    """For what counts once for each id, in whatever order: how much of it was done."""
    asks = []
    for part in parts:
        own = tuple([last[place] for place in part.places]) if last else ()
        asks.append(Step(script, part.demands, tuple(first), kind, own))
    said = yield from _all(asks)
    return [max([done for (done,) in said])]


def _peek(asking: Asking, parts: Sequence[Part], first: Sequence[str | int]) -> Steps:
    said = yield from _all([Step(asking._peek, part.demands, tuple(first)) for part in parts])
    replies = [_Reply(reply, len(part.demands)) for part, reply in zip(parts, said, strict=True)]
    return _joint(parts, replies)


class _Reply:
    """A script's reply about one part; see ``lua/include/reply.lua``."""

    def __init__(self, reply: Sequence[int], number: int) -> None:
        self.allowed, self.wait, self.binding, self.at = reply[:4]
        states, stored = reply[4 : 4 + 2 * number], reply[4 + 2 * number :]
        self.states = [states[2 * i : 2 * i + 2] for i in range(number)]
        self.stored = [stored[4 * i : 4 * i + 4] for i in range(number)] if stored else []


def _joint(parts: Sequence[Part], replies: Sequence[_Reply], said_no: int | None = None) -> list[int]:
    """One reply out of those of all parts, in the order of the demands."""
    allowed, wait, binding = 1, max(reply.wait for reply in replies), 0
    if said_no is None and any(reply.allowed != 1 for reply in replies):
        said_no = max(range(len(replies)), key=lambda i: (replies[i].binding > 0, replies[i].wait))
    if said_no is not None:
        allowed = min(0, replies[said_no].allowed)
        if replies[said_no].binding or wait:
            binding = 1 + parts[said_no].places[max(0, replies[said_no].binding - 1)]
    number = sum(len(part.places) for part in parts)
    states: list[Sequence[int]] = [()] * number
    stored: list[Sequence[int]] = [()] * number
    for part, reply in zip(parts, replies, strict=True):
        for i, place in enumerate(part.places):
            states[place] = reply.states[i]
            stored[place] = reply.stored[i] if reply.stored else _as_written(part.demands[i])
    tail = stored if any(reply.stored for reply in replies) else []
    at = {demand.name: reply.at for part, reply in zip(parts, replies, strict=True) for demand in part.demands}
    head = [allowed, wait, binding, GrantedAt(at)]
    return head + [value for each in (*states, *tail) for value in each]


def _as_written(demand: Demand) -> tuple[int, int, int, int]:
    """What a limit holds and allows where nothing is stored for it."""
    _, count, period, burst, _, _ = demand.limit.wire(demand.cost)
    return int(burst), int(count), int(period), 0


class _Taking:
    """Takes permits of every part, or of none."""

    def __init__(
        self, spread: CrossSlot, parts: Sequence[Part], id: str, horizon: int, claim: int, reserves: bool
    ) -> None:
        self.spread, self.asking, self.parts, self.id = spread, spread.asking, parts, id
        self.horizon, self.claim, self.reserves = horizon, claim, reserves
        self.replies: dict[int, _Reply] = {}
        #: When the permits of a part that were taken are good, by this process's clock, in microseconds.
        self.good: dict[int, int] = {}
        self.began = _clock()
        #: When every part can have its permits, as far as one has looked.
        self.joint = 0
        #: How many parts knew the reservation.
        self.found = 0

    def run(self) -> Steps:
        try:
            said_no = yield from self._take_all()
            for _ in range(ROUNDS):
                early = self._early()
                if said_no or not early:
                    break
                for i in early:
                    yield from self._undo(i, moves=True)
                    if not (yield from self._take(i, "replace")):
                        said_no = [i]
                        break
            else:  # others are quicker, again and again
                said_no = said_no or self._early()
            return (yield from self._refused(said_no)) if said_no else self._granted()
        except RateLimitError:
            yield from self._undo_all()
            raise

    def _take_all(self) -> Asks[list[int]]:
        """Returns the parts that said no."""
        everything = range(len(self.parts))
        # What has lent permits ahead meanwhile can take none back: so nothing is taken where some part may say no.
        if not (self.reserves or any(self.spread.suspects(part) for part in self.parts)):
            replies = yield [self._step(i) for i in everything]
            said_no, errors = [], []
            for i, reply in enumerate(replies):
                if isinstance(reply, RateLimitError):
                    errors.append(reply)
                elif not self._read(i, reply):
                    said_no.append(i)
            if errors:
                raise errors[0]
            return said_no
        if self.horizon >= 0:
            yield from self._look(everything)
            for i in everything:
                if i not in self.good and self.replies[i].wait > self.horizon and not (yield from self._take(i)):
                    return [i]
            self.joint = _clock() + max(reply.wait for reply in self.replies.values())
        for i in everything:
            if i not in self.good and not (yield from self._take(i)):
                return [i]
        return []

    def _look(self, which: Sequence[int]) -> Asks[None]:
        id = "" if self.reserves else self.id
        said = yield from _all([Step(self.asking._peek, self.parts[i].demands, (id,)) for i in which])
        for i, reply in zip(which, said, strict=True):
            self.replies[i] = _Reply(reply, len(self.parts[i].demands))

    def _early(self) -> list[int]:
        """The parts whose permits are good before those of the others are. Used then, they would bunch.

        What this decision has taken so far is how much the replies can be told apart at all.
        """
        if not self.good or self.found == len(self.parts):
            return []
        joint = max(self.good.values())
        uncertain = _clock() - self.began
        return [i for i, good in self.good.items() if joint - good > uncertain]

    def _granted(self) -> list[int]:
        replies = [self.replies[i] for i in range(len(self.parts))]
        now = _clock()
        for i, good in self.good.items():
            replies[i].wait = max(0, good - now) if replies[i].wait else 0
        return _joint(self.parts, replies)

    def _step(self, i: int, known: str = "find") -> Step:
        earliest = max(0, max([self.joint, *self.good.values()]) - _clock())
        demands = self.parts[i].demands
        if self.reserves:
            return Step(self.asking._join, demands, (self.id, self.horizon, 0, earliest, known), "ids")
        if earliest > 0:
            return Step(self.asking._join, demands, (self.id, self.horizon, self.claim, earliest, ""), "ids")
        return Step(self.asking._acquire, demands, (self.id, self.horizon, self.claim))

    def _take(self, i: int, known: str = "find") -> Asks[bool]:
        """False: this part said no."""
        return self._read(i, (yield from _one(self._step(i, known))))

    def _read(self, i: int, said: list[int]) -> bool:
        reply = self.replies[i] = _Reply(said, len(self.parts[i].demands))
        if reply.binding < 0:
            reply.binding, self.found = 0, self.found + 1
        if reply.allowed == 1:
            self.good[i] = _clock() + reply.wait
            if reply.wait > 0:
                self.spread.closed(self.parts[i].demands[0])
        return reply.allowed == 1 or (reply.binding == 0 and reply.wait == 0)  # asked for a slot, needs none

    def _refused(self, said_no: Sequence[int]) -> Steps:
        """Some parts have said no. The one that says so for longest keeps the slot, as in one script."""
        yield from self._undo_all()
        others = [i for i in range(len(self.parts)) if i not in said_no]
        yield from self._look(others)
        longest = max(self.replies, key=lambda i: (self.replies[i].wait, i in said_no))
        part = self.parts[longest]
        if self.claim and self.id and not self.reserves:
            asks = [Step(self.asking._forget, self.parts[i].demands, (self.id,)) for i in said_no if i != longest]
            if longest not in said_no:
                asks.append(Step(self.asking._acquire, part.demands, (self.id, SLOT_ONLY, self.claim)))
            said = yield from _all(asks)
            if longest not in said_no and said[-1][2]:  # it still says no
                self.replies[longest] = _Reply(said[-1], len(part.demands))
        self.spread.closed(part.demands[max(0, self.replies[longest].binding - 1)])
        return _joint(self.parts, [self.replies[i] for i in range(len(self.parts))], longest)

    def _undo_all(self) -> Asks[None]:
        for i in list(self.good):
            with suppress(RateLimitError):  # its node is gone: what it gave is lost, and a place expires
                yield from self._undo(i)

    def _undo(self, i: int, *, moves: bool = False) -> Asks[None]:
        """Give back what part ``i`` gave, as far as nobody can exceed a limit by it."""
        del self.good[i]
        part, reply = self.parts[i], self.replies[i]
        if self.reserves and not moves:
            yield from _one(Step(self.asking._cancel, part.demands, (self.id,), "ids"))
            return
        counted = tuple([demand for demand in part.demands if not isinstance(demand.limit, Concurrency)])
        places = tuple([demand for demand in part.demands if isinstance(demand.limit, Concurrency)])
        if counted:  # an id of its own: the request may be settled, or undone, once more
            first = (self.asking._new_id(), reply.at)
            yield from _one(Step(self.asking._settle, counted, first, "ids", (0,) * len(counted)))
        if places:
            yield from _one(Step(self.asking._release, places, (self.id, reply.at)))


def _clock() -> int:
    """Microseconds of this process's clock."""
    return time.monotonic_ns() // 1000
