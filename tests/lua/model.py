"""The token bucket and its line of slots in a page of exact arithmetic: what the Lua must agree with.

A bucket is the instant at which it will be full again, kept as a fraction of a microsecond and never rounded.
Answers are whole microseconds, rounded up. Slots are whole microseconds too: they are proposals, not permits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor
from typing import NamedTuple

from celery_ratelimit import Decision
from celery_ratelimit.limiter import Demand

from .frozen import us

#: A slot that long overdue, in microseconds, is open to whoever is there.
GRACE = 1_000_000


class Answer(NamedTuple):
    """A decision in whole microseconds; ``states`` is (remaining, reset_after) of each limit."""

    allowed: bool
    wait: int
    binding: str | None
    states: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, decision: Decision) -> Answer:
        states = tuple((state.remaining, us(state.reset_after)) for state in decision.states)
        return cls(decision.allowed, us(decision.retry_after), decision.binding, states)


@dataclass
class Bucket:
    """``full_at`` and ``seen`` (the clock at the last change) in microseconds; ``line`` is id -> score."""

    full_at: Fraction = Fraction(0)
    seen: int = 0
    end: int = 0
    expires: int = 0
    line: dict[str, int] = field(default_factory=dict)

    def at(self, now: int) -> Bucket:
        """This bucket as it stands at ``now``."""
        if self.expires <= now:
            return Bucket(Fraction(now), now)
        back = max(0, self.seen - now)
        if back:  # the clock stepped back: no time has passed since, and the slots mean nothing any more
            return Bucket(self.full_at - back, now)
        full_at, end = max(self.full_at, Fraction(now)), max(self.line.values(), default=0)
        if end <= now:  # every slot has passed, or everyone has left
            return Bucket(full_at, self.seen)
        return Bucket(full_at, self.seen, end, self.expires, dict(self.line))


class View:
    """One demand on one bucket at one instant: when it could be granted, and where its request stands in the line.

    ``slot`` is when the request itself is due, ``first`` when the first of those who wait is; ``overdue`` is whose
    place it may take.
    """

    def __init__(self, demand: Demand, bucket: Bucket, now: int, id: str) -> None:
        rate = demand.limit.parsed
        self.demand, self.bucket, self.now = demand, bucket, now
        self.interval = Fraction(rate.period_us, rate.count)
        self.price = demand.cost * self.interval
        self.depth = demand.limit.burst * self.interval
        slots = {member: score - floor(self.depth) for member, score in bucket.line.items()}
        self.slot = slots.get(id) if id else None
        self.first = min(slots.values(), default=0)
        self.overdue: str | None = None
        self.behind = False
        if slots and self.slot is None:
            if self.first + GRACE < now:
                self.overdue = min(slots, key=lambda member: slots[member])
            else:  # it may fill a gap before the first slot, and must not make the line wait
                self.behind = bucket.full_at + self.price > self.first
        self.earliest = self.last_in_line if self.behind else self.admission(bucket.full_at)

    def admission(self, full_at: Fraction) -> int:
        return max(self.now, ceil(full_at + self.price - self.depth))

    @property
    def last_in_line(self) -> int:
        return self.admission(max(self.bucket.full_at, Fraction(self.bucket.end)))

    def state(self) -> tuple[int, int]:
        """Permits left, and microseconds until full."""
        full_at = self.bucket.full_at
        left = max(0, floor((self.now + self.depth - full_at) / self.interval))
        return min(left, self.demand.limit.burst), ceil(full_at - self.now)


class Model:
    """The store. ``now`` is its clock, in microseconds, and may be set to any time."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.buckets: dict[tuple[str, str], Bucket] = {}

    def acquire(self, demands: Sequence[Demand], id: str = "", horizon: int = 0, claim: int = 0) -> Answer:
        views = self._views(demands, id)
        joint, binding, behind = self._joint(views)
        if joint <= self.now + horizon and not behind:
            for view in views:
                self._commit(view, id, joint)
            return self._answer(True, joint, None, views)
        if binding is None:  # the horizon lies in the past: no permit is wanted, and none needs a slot
            return self._answer(False, self.now, None, views)
        view = views[binding]
        slot = self._slot(view, joint)
        kept = None
        if id and slot <= self.now + claim and (view.slot is None or view.slot <= self.now):
            bucket = view.bucket
            bucket.end = ceil(max(bucket.full_at, Fraction(bucket.end), Fraction(slot)) + view.price)
            bucket.line[id] = bucket.end
            kept = view
        elif slot == self.now and view.behind:
            slot = self._after_the_first(view)
        for each in views:
            stepped_back = self.now < self.buckets.get(self._name(each.demand), Bucket()).seen
            if stepped_back or each is kept:
                self._write(each)
        return self._answer(False, slot, binding, views)

    def peek(self, demands: Sequence[Demand]) -> Answer:
        views = self._views(demands, "")
        joint, binding, _ = self._joint(views)
        if binding is None:
            return self._answer(True, self.now, None, views)
        slot = self._slot(views[binding], joint)
        if slot == self.now:
            slot = self._after_the_first(views[binding])
        return self._answer(False, slot, binding, views)

    def forget(self, demands: Sequence[Demand], id: str) -> None:
        for demand in demands:
            if self._name(demand) in self.buckets:
                self.buckets[self._name(demand)].line.pop(id, None)

    def reset(self, demands: Sequence[Demand]) -> None:
        for demand in demands:
            self.buckets.pop(self._name(demand), None)

    @staticmethod
    def _name(demand: Demand) -> tuple[str, str]:
        return demand.name, demand.key

    def _views(self, demands: Sequence[Demand], id: str) -> list[View]:
        for name in [name for name, bucket in self.buckets.items() if bucket.expires <= self.now]:
            if name in map(self._name, demands):
                del self.buckets[name]
        return [
            View(demand, self.buckets.get(self._name(demand), Bucket()).at(self.now), self.now, id)
            for demand in demands
        ]

    def _joint(self, views: Sequence[View]) -> tuple[int, int | None, bool]:
        """The earliest time for all, which limit decides it, and whether a line comes first."""
        joint = max(view.earliest for view in views)
        late = [i for i, view in enumerate(views) if view.earliest == joint > self.now]
        behind = [i for i, view in enumerate(views) if view.behind]
        binding = min(late, default=min(behind, default=None))
        return joint, binding, bool(behind)

    def _slot(self, view: View, joint: int) -> int:
        if view.slot is not None and view.slot > self.now:
            return max(joint, view.slot)  # it came early: its slot stands
        return max(joint, view.last_in_line)

    @staticmethod
    def _after_the_first(view: View) -> int:
        """There is enough even for the last in the line, but the first, who is due, goes first, until overdue."""
        return min(view.bucket.end, view.first + GRACE + 1)

    def _commit(self, view: View, id: str, joint: int) -> None:
        view.bucket.full_at = max(view.bucket.full_at, Fraction(joint)) + view.price
        view.bucket.line.pop(id if view.slot is not None else view.overdue or "", None)
        self._write(view)

    def _write(self, view: View) -> None:
        bucket = view.bucket
        bucket.seen = self.now
        until = max(floor(bucket.full_at) + 1, bucket.end + GRACE) - self.now
        bucket.expires = self.now + 1000 * ceil(Fraction(until, 1000))
        self.buckets[self._name(view.demand)] = bucket

    def _answer(self, allowed: bool, at: int, binding: int | None, views: Sequence[View]) -> Answer:
        name = None if binding is None else views[binding].demand.name
        return Answer(allowed, at - self.now, name, tuple(view.state() for view in views))
