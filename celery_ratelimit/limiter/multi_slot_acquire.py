"""A decision over limits in several hash slots of a cluster, which no single script can see.

The limits of one hash slot are a part, which one script decides. If no limit has refused lately, the scripts of all
parts run at once. Otherwise the caller peeks at all parts, and then acquires one after the other for their joint time,
in the order of hash slots, so that no two callers hold what the other one waits for. If a part refuses, the permits of
the others are returned.

This is weaker than one script. For a moment a caller may hold permits that it will return, and another caller is
refused that one script would have let pass. Permits that cannot be returned (under warm-up, or in a bucket that has
lent permits ahead meanwhile) are lost, and so are those of a caller that dies half-way. The permits of one decision are
good at one time, within its duration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import RateLimitError
from ..limits.concurrency import Concurrency
from ..limits.decision import GrantedAt
from ..store.cluster import slot_of
from ..store.keys import hash_tag
from ..store.script import Script
from .limit_request import LimitRequest
from .operation import Operation, RunScript, without_errors
from .script_calls import read_reply

if TYPE_CHECKING:
    from .script_operations import Operations

__all__ = ["MultiSlotDecider", "parts_of"]

#: How often parts may be acquired again because another part has a later time.
ROUNDS = 3
#: A horizon that grants nothing: the script only reserves a slot.
SLOT_ONLY = -1
#: Seconds for which a caller peeks at a limit that has refused before it takes anything; and how many are remembered.
SUSPECT, SUSPECTS = 10.0, 1000


class Part(NamedTuple):
    """The limit requests of one hash slot, and their positions among all."""

    places: tuple[int, ...]
    demands: tuple[LimitRequest, ...]


def parts_of(demands: Sequence[LimitRequest]) -> tuple[Part, ...]:
    """The parts of a decision, in the order of their calls; none where one script sees all limits."""
    slots: dict[int, list[int]] = {}
    for place, demand in enumerate(demands):
        slots.setdefault(slot_of(hash_tag(demand.name)), []).append(place)
    if len(slots) < 2:
        return ()
    return tuple(Part(tuple(slots[slot]), tuple([demands[place] for place in slots[slot]])) for slot in sorted(slots))


class PartReply:
    """A script's reply about one part; see ``lua/include/reply.lua``."""

    def __init__(self, reply: Sequence[int], number: int) -> None:
        self.allowed: int = reply[0]
        self.wait: int = reply[1]
        self.binding: int = reply[2]
        self.at: int = reply[3]
        self.states: list[Sequence[int]] = [reply[i : i + 2] for i in range(4, 4 + 2 * number, 2)]
        self.stored: list[Sequence[int]] = [reply[i : i + 4] for i in range(4 + 2 * number, len(reply), 4)]


def joint(parts: Sequence[Part], replies: Mapping[int, PartReply], said_no: int | None = None) -> list[int]:
    """Join the parts' replies into one, in the order of the limit requests."""
    allowed, wait, binding = 1, max(reply.wait for reply in replies.values()), 0
    if said_no is None and any(reply.allowed != 1 for reply in replies.values()):
        said_no = max(replies, key=lambda i: (replies[i].binding > 0, replies[i].wait, -i))
    if said_no is not None:
        allowed = min(0, replies[said_no].allowed)
        if replies[said_no].binding or wait:
            binding = 1 + parts[said_no].places[max(0, replies[said_no].binding - 1)]
    states, stored, at = dict[int, Sequence[int]](), dict[int, Sequence[int]](), dict[str, int]()
    for part, reply in [(part, replies[i]) for i, part in enumerate(parts)]:
        for i, place in enumerate(part.places):
            states[place], at[part.demands[i].name] = reply.states[i], reply.at
            stored[place] = reply.stored[i] if reply.stored else _in_code(part.demands[i])
    each = [states[place] for place in sorted(states)]
    if any(reply.stored for reply in replies.values()):
        each += [stored[place] for place in sorted(stored)]
    return [allowed, wait, binding, GrantedAt(at), *[value for values in each for value in values]]


def _in_code(demand: LimitRequest) -> Sequence[int]:
    """Burst, count, period and 0, where nothing is stored for the limit."""
    count, period, burst = map(int, demand.limit.wire(demand.cost)[1:4])
    return burst, count, period, 0


class PartCall(NamedTuple):
    """One script to run; arguments of :meth:`Calls.of_script`."""

    script: Script
    demands: tuple[LimitRequest, ...]
    first: tuple[str | int, ...]
    kind: str | None = None
    last: tuple[int | str, ...] = ()


class MultiSlotDecider:
    """The decisions of one limiter over several hash slots."""

    def __init__(self, core: Operations) -> None:
        self.core = core
        self.parts: Callable[[tuple[LimitRequest, ...]], tuple[Part, ...]] = lru_cache(maxsize=1024)(parts_of)
        self._closed: dict[tuple[str, str], float] = {}

    def decide(
        self, script: Script, parts: Sequence[Part], first: Sequence[Any], kind: str | None, last: Sequence[Any]
    ) -> Operation[list[int]]:
        """Run a script in each part. Returns one reply, as if one script had seen all limits."""
        if script in (self.core.scripts.acquire, self.core.scripts.reserve):
            return (yield from _Taking(self, parts, script is self.core.scripts.reserve, tuple(last), *first).run())
        last_of = [tuple([last[i] for i in places if last]) for places, _ in parts]
        steps = [PartCall(script, part.demands, (*first,), kind, own) for part, own in zip(parts, last_of, strict=True)]
        said = yield from self.run(*steps)
        if script is self.core.scripts.peek:
            return joint(parts, {i: PartReply(reply, len(parts[i].demands)) for i, reply in enumerate(said)})
        return [max([done for (done,) in said])]  # these count once for each id, in any order

    def replies(self, steps: Sequence[PartCall]) -> Operation[list[list[int] | RateLimitError]]:
        """Run scripts at once; errors are returned."""
        replies = (yield [RunScript(step.script, self.core.calls.of_script(*step)) for step in steps]) if steps else ()
        return [read_reply(step.demands, reply) for step, reply in zip(steps, replies, strict=True)]

    def run(self, *steps: PartCall) -> Operation[list[list[int]]]:
        """Run scripts at once; the first error is raised."""
        return without_errors((yield from self.replies(steps)))

    def closed(self, demand: LimitRequest) -> None:
        """Note that this limit has refused."""
        if len(self._closed) >= SUSPECTS:
            self._closed.clear()
        self._closed[demand.name, demand.key] = time.monotonic() + SUSPECT

    def suspects(self, part: Part) -> bool:
        """Whether a limit of this part has refused lately."""
        return any(self._closed.get((each.name, each.key), 0.0) > time.monotonic() for each in part.demands)


@dataclass
class _Taking:
    """Takes the permits of every part, or of none.

    Attributes:
        last: the id of the leases, if they have one of their own.
        good: when the permits of each part that are taken are good; by this process's clock, in microseconds.
        joint: the earliest time at which all can be good, as far as known.
    """

    spread: MultiSlotDecider
    parts: Sequence[Part]
    reserves: bool
    last: tuple[str | int, ...]
    id: str
    horizon: int
    claim: int = 0
    replies: dict[int, PartReply] = field(default_factory=dict)
    good: dict[int, int] = field(default_factory=dict)
    joint: int = 0
    parts_that_knew_id: int = 0

    def __post_init__(self) -> None:
        self.scripts, self.began = self.spread.core.scripts, _clock()

    def run(self) -> Operation[list[int]]:
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

    def _take_all(self) -> Operation[list[int]]:
        """Take the permits of every part. Returns the parts that refused."""
        everything = range(len(self.parts))
        # A bucket that lends permits ahead meanwhile can take none back: take nothing while a part may refuse.
        if not (self.reserves or any(self.spread.suspects(part) for part in self.parts)):
            replies = yield from self.spread.replies([self._step(i) for i in everything])
            granted = {i: self._read(i, reply) for i, reply in enumerate(replies) if isinstance(reply, list)}
            without_errors(replies)
            return [i for i, is_granted in granted.items() if not is_granted]
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

    def _look(self, which: Sequence[int]) -> Operation[None]:
        first = ("" if self.reserves else self.id,)
        steps = [PartCall(self.scripts.peek, self.parts[i].demands, first, None, self.last) for i in which]
        for i, reply in zip(which, (yield from self.spread.run(*steps)), strict=True):
            self.replies[i] = PartReply(reply, len(self.parts[i].demands))

    def _early(self) -> list[int]:
        """The parts whose permits are good before the joint time, by more than this decision has taken so far.

        Used at the joint time, they would bunch.
        """
        if not self.good or self.parts_that_knew_id == len(self.parts):
            return []
        before = max(self.good.values()) - (_clock() - self.began)
        return [i for i, good in self.good.items() if good < before]

    def _granted(self) -> list[int]:
        for i, good in self.good.items():
            self.replies[i].wait = max(0, good - _clock()) if self.replies[i].wait else 0
        return joint(self.parts, self.replies)

    def _step(self, i: int, known: str = "find") -> PartCall:
        earliest = max(0, max([self.joint, *self.good.values()]) - _clock())
        demands = self.parts[i].demands
        if self.reserves:
            return PartCall(self.scripts.acquire_part, demands, (self.id, self.horizon, 0, earliest, known), "ids")
        if earliest > 0:
            first = (self.id, self.horizon, self.claim, earliest, "")
            return PartCall(self.scripts.acquire_part, demands, first, "ids", self.last)
        return PartCall(self.scripts.acquire, demands, (self.id, self.horizon, self.claim), None, self.last)

    def _take(self, i: int, known: str = "find") -> Operation[bool]:
        """Take the permits of one part. False: it refused."""
        (reply,) = yield from self.spread.run(self._step(i, known))
        return self._read(i, reply)

    def _read(self, i: int, said: list[int]) -> bool:
        reply = self.replies[i] = PartReply(said, len(self.parts[i].demands))
        if reply.binding < 0:
            reply.binding, self.parts_that_knew_id = 0, self.parts_that_knew_id + 1
        if reply.allowed == 1:
            self.good[i] = _clock() + reply.wait
            if reply.wait > 0:
                self.spread.closed(self.parts[i].demands[0])
        return reply.allowed == 1 or (reply.binding == 0 and reply.wait == 0)  # reserved a slot, needs none

    def _refused(self, said_no: Sequence[int]) -> Operation[list[int]]:
        """Some parts have refused. The part with the longest wait keeps the slot, as in one script."""
        yield from self._undo_all()
        yield from self._look([i for i in range(len(self.parts)) if i not in said_no])
        longest = max(self.replies, key=lambda i: (self.replies[i].wait, i in said_no))
        part = self.parts[longest]
        if self.claim and self.id and not self.reserves:
            withdraw = self.scripts.withdraw_request
            steps = [PartCall(withdraw, self.parts[i].demands, (self.id,)) for i in said_no if i != longest]
            if longest not in said_no:
                first = (self.id, SLOT_ONLY, self.claim)
                steps.append(PartCall(self.scripts.acquire, part.demands, first, None, self.last))
            said = yield from self.spread.run(*steps)
            if longest not in said_no and said[-1][2]:  # it still refuses
                self.replies[longest] = PartReply(said[-1], len(part.demands))
        self.spread.closed(part.demands[max(0, self.replies[longest].binding - 1)])
        return joint(self.parts, self.replies, longest)

    def _undo_all(self) -> Operation[None]:
        for i in list(self.good):
            with suppress(RateLimitError):  # its node is gone: permits are lost, and a lease expires
                yield from self._undo(i)

    def _undo(self, i: int, *, moves: bool = False) -> Operation[None]:
        """Return the permits of part ``i``, as far as no limit can be exceeded by it."""
        del self.good[i]
        part, reply = self.parts[i], self.replies[i]
        if self.reserves and not moves:
            yield from self.spread.run(PartCall(self.scripts.cancel, part.demands, (self.id,), "ids"))
            return
        counted = tuple([demand for demand in part.demands if not isinstance(demand.limit, Concurrency)])
        if counted:  # an id of its own: the request may be settled, or undone, once more
            first = (self.spread.core.new_id(), reply.at)
            yield from self.spread.run(PartCall(self.scripts.settle, counted, first, "ids", (0,) * len(counted)))
        yield from self.spread.core.release(part.demands, id=str((*self.last, self.id)[0]), granted_at=reply.at)


def _clock() -> int:  # microseconds
    return time.monotonic_ns() // 1000
