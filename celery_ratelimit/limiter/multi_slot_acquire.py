"""A decision over limits in several hash slots of a cluster, which no single script can see.

The limits of one hash slot are a part, and one script decides each part. If no limit has refused lately, the scripts of
all parts run at once. Otherwise the caller first peeks at all parts, and then acquires one part after the other for
their joint time. The order of hash slots keeps two callers from holding what the other one waits for. If a part
refuses, the permits of the other parts are returned.

This is weaker than one script. For a moment a caller may hold permits that it will return, and another caller is
refused that one script would have let pass. Permits that cannot be returned (under warm-up, or in a bucket that has
lent permits ahead meanwhile) are lost. A caller that dies half-way has spent its permits. The permits of one decision
are good at one time only as exactly as its replies show, that is within the duration of the decision.

Nothing here calls the store: a generator yields steps, and receives each reply or error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ..errors import RateLimitError
from ..limits.concurrency import Concurrency
from ..store.script import Script
from .limit_request import LimitRequest
from .parts import Part, Reply, joint, parts_of

if TYPE_CHECKING:
    from .script_operations import Scripts

__all__ = ["MultiSlotAcquire", "Step", "Steps"]

_T = TypeVar("_T")

#: How often parts may be acquired again because another part has a later time.
ROUNDS = 3
#: A horizon that grants nothing: the script only reserves a slot.
SLOT_ONLY = -1
#: Seconds for which a caller peeks at a limit that has refused before it takes anything; and how many are remembered.
SUSPECT, SUSPECTS = 10.0, 1000


class Step(NamedTuple):
    """One script to run, with the arguments of :meth:`Calls.of_script`."""

    script: Script
    demands: tuple[LimitRequest, ...]
    first: tuple[str | int, ...]
    kind: str | None = None
    last: tuple[int | str, ...] = ()


#: Yields steps to run at once, receives a reply or an error for each, returns one reply as if one script had seen all.
Steps = Generator[Sequence[Step], Sequence[list[int] | RateLimitError], list[int]]
#: A part of such a generator, with another result.
Asks = Generator[Sequence[Step], Sequence[list[int] | RateLimitError], _T]


class MultiSlotAcquire:
    """The decisions of one limiter over several hash slots."""

    def __init__(self, scripts: Scripts, new_id: Callable[[], str]) -> None:
        self.scripts, self.new_id = scripts, new_id
        self.parts = lru_cache(maxsize=1024)(parts_of)
        self._closed: dict[tuple[str, str], float] = {}

    def steps(
        self,
        script: Script,
        parts: Sequence[Part],
        first: Sequence[str | int],
        kind: str | None,
        last: Sequence[int | str],
    ) -> Steps:
        """The steps that replace one run of ``script`` for all parts."""
        if script is self.scripts.acquire or script is self.scripts.reserve:
            id, horizon, claim = (*first, 0)[:3]
            reserves = script is self.scripts.reserve
            return _Taking(self, parts, str(id), int(horizon), int(claim), reserves, *map(str, last)).run()
        if script is self.scripts.peek:
            return _peek(self.scripts, parts, first)
        return _in_each(script, parts, first, kind, last)

    def closed(self, demand: LimitRequest) -> None:
        """Note that this limit has refused."""
        if len(self._closed) >= SUSPECTS:
            self._closed.clear()
        self._closed[demand.name, demand.key] = time.monotonic() + SUSPECT

    def suspects(self, part: Part) -> bool:
        """Whether a limit of this part has refused lately."""
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
    script: Script, parts: Sequence[Part], first: Sequence[str | int], kind: str | None, last: Sequence[int | str]
) -> Steps:
    """Run a script in each part; for scripts that count once for each id, in any order. Returns the highest reply."""
    asks = []
    for part in parts:
        own = tuple([last[place] for place in part.places]) if last else ()
        asks.append(Step(script, part.demands, tuple(first), kind, own))
    said = yield from _all(asks)
    return [max([done for (done,) in said])]


def _peek(scripts: Scripts, parts: Sequence[Part], first: Sequence[str | int]) -> Steps:
    said = yield from _all([Step(scripts.peek, part.demands, tuple(first)) for part in parts])
    replies = [Reply(reply, len(part.demands)) for part, reply in zip(parts, said, strict=True)]
    return joint(parts, replies)


class _Taking:
    """Takes the permits of every part, or of none."""

    def __init__(
        self,
        spread: MultiSlotAcquire,
        parts: Sequence[Part],
        id: str,
        horizon: int,
        claim: int,
        reserves: bool,
        lease_id: str = "",
    ) -> None:
        self.spread, self.scripts, self.parts, self.id = spread, spread.scripts, parts, id
        self.lease_id = lease_id or id
        self.last = (lease_id,) if lease_id else ()
        self.horizon, self.claim, self.reserves = horizon, claim, reserves
        self.replies: dict[int, Reply] = {}
        #: When the taken permits of each part are good, by this process's clock, in microseconds.
        self.good: dict[int, int] = {}
        self.began = _clock()
        #: The earliest time at which every part can have its permits, as far as known.
        self.joint = 0
        #: The number of parts that knew the reservation.
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
            else:  # other callers were quicker in every round
                said_no = said_no or self._early()
            return (yield from self._refused(said_no)) if said_no else self._granted()
        except RateLimitError:
            yield from self._undo_all()
            raise

    def _take_all(self) -> Asks[list[int]]:
        """Take the permits of every part. Returns the parts that refused."""
        everything = range(len(self.parts))
        # A bucket that lends permits ahead meanwhile can take none back: take nothing while some part may refuse.
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
        asks = [Step(self.scripts.peek, self.parts[i].demands, (id,), None, self.last) for i in which]
        said = yield from _all(asks)
        for i, reply in zip(which, said, strict=True):
            self.replies[i] = Reply(reply, len(self.parts[i].demands))

    def _early(self) -> list[int]:
        """The parts whose permits are good before the joint time: used at the joint time, they would bunch.

        Times closer together than the duration of this decision so far count as equal.
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
        return joint(self.parts, replies)

    def _step(self, i: int, known: str = "find") -> Step:
        earliest = max(0, max([self.joint, *self.good.values()]) - _clock())
        demands = self.parts[i].demands
        if self.reserves:
            return Step(self.scripts.join, demands, (self.id, self.horizon, 0, earliest, known), "ids")
        if earliest > 0:
            return Step(self.scripts.join, demands, (self.id, self.horizon, self.claim, earliest, ""), "ids", self.last)
        return Step(self.scripts.acquire, demands, (self.id, self.horizon, self.claim), None, self.last)

    def _take(self, i: int, known: str = "find") -> Asks[bool]:
        """Take the permits of one part. False: it refused."""
        return self._read(i, (yield from _one(self._step(i, known))))

    def _read(self, i: int, said: list[int]) -> bool:
        reply = self.replies[i] = Reply(said, len(self.parts[i].demands))
        if reply.binding < 0:
            reply.binding, self.found = 0, self.found + 1
        if reply.allowed == 1:
            self.good[i] = _clock() + reply.wait
            if reply.wait > 0:
                self.spread.closed(self.parts[i].demands[0])
        return reply.allowed == 1 or (reply.binding == 0 and reply.wait == 0)  # reserved a slot, needs none

    def _refused(self, said_no: Sequence[int]) -> Steps:
        """Some parts have refused. The part with the longest wait keeps the slot, as in one script."""
        yield from self._undo_all()
        others = [i for i in range(len(self.parts)) if i not in said_no]
        yield from self._look(others)
        longest = max(self.replies, key=lambda i: (self.replies[i].wait, i in said_no))
        part = self.parts[longest]
        if self.claim and self.id and not self.reserves:
            asks = [Step(self.scripts.forget, self.parts[i].demands, (self.id,)) for i in said_no if i != longest]
            if longest not in said_no:
                first = (self.id, SLOT_ONLY, self.claim)
                asks.append(Step(self.scripts.acquire, part.demands, first, None, self.last))
            said = yield from _all(asks)
            if longest not in said_no and said[-1][2]:  # it still refuses
                self.replies[longest] = Reply(said[-1], len(part.demands))
        self.spread.closed(part.demands[max(0, self.replies[longest].binding - 1)])
        return joint(self.parts, [self.replies[i] for i in range(len(self.parts))], longest)

    def _undo_all(self) -> Asks[None]:
        for i in list(self.good):
            with suppress(RateLimitError):  # its node is gone: permits are lost, and a lease expires
                yield from self._undo(i)

    def _undo(self, i: int, *, moves: bool = False) -> Asks[None]:
        """Return the permits of part ``i``, as far as no limit can be exceeded by it."""
        del self.good[i]
        part, reply = self.parts[i], self.replies[i]
        if self.reserves and not moves:
            yield from _one(Step(self.scripts.cancel, part.demands, (self.id,), "ids"))
            return
        counted = tuple([demand for demand in part.demands if not isinstance(demand.limit, Concurrency)])
        places = tuple([demand for demand in part.demands if isinstance(demand.limit, Concurrency)])
        if counted:  # an id of its own: the request may be settled, or undone, once more
            first = (self.spread.new_id(), reply.at)
            yield from _one(Step(self.scripts.settle, counted, first, "ids", (0,) * len(counted)))
        if places:
            yield from _one(Step(self.scripts.release, places, (self.lease_id, reply.at)))


def _clock() -> int:
    """Microseconds of this process's clock."""
    return time.monotonic_ns() // 1000
