"""The store in a few pages of exact arithmetic: what the Lua must agree with. Here the token bucket and its line of
slots, and the leaky bucket, which is one that takes so many into its line and no more; see ``counted`` for the rest.

A bucket is the instant at which it will be full again, kept as a fraction of a microsecond and never rounded.
Answers are whole microseconds, rounded up. Slots are whole microseconds too: they are proposals, not permits.

How much of a permit that was not used goes back into a bucket is for the Lua to say, which does not remember all that
was taken: no more than the law leaves, which the model knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor
from typing import NamedTuple

from celery_ratelimit import Decision
from celery_ratelimit.limiter import Demand
from celery_ratelimit.limits import AnyLimit

from .counted import COUNTERS, GRACE, STEP, Counted, CountedView, Numbers, Taken, came_back, lawful, lost, up, without
from .frozen import us

#: How long the id of a reservation is known after its time, and that of a call after it was settled.
HOUR = 3_600_000_000


class Answer(NamedTuple):
    """A decision in whole microseconds; ``states`` is (remaining, reset_after) of each limit."""

    allowed: bool
    wait: int
    binding: str | None
    states: tuple[tuple[int, int], ...]
    granted_at: int
    full: bool = False

    @classmethod
    def of(cls, decision: Decision) -> Answer:
        states = tuple((state.remaining, us(state.reset_after)) for state in decision.states)
        wait = us(decision.retry_after)
        return cls(decision.allowed, wait, decision.binding, states, decision.granted_at, decision.full)


@dataclass
class Bucket:
    """``full_at`` and ``seen`` (the clock at the last change) in microseconds; ``line`` is id -> score."""

    full_at: Fraction = Fraction(0)
    seen: int = 0
    taken: Taken = ()
    end: int = 0
    expires: int = 0
    line: dict[str, int] = field(default_factory=dict)
    rate: tuple[int, int] = (1, 1)
    newest: int = 0

    def expire(self, now: int) -> bool:
        """Whether nothing is left."""
        return self.expires <= now

    def rescale(self, now: int, rate: tuple[int, int]) -> None:
        """Another rate is in force: permits that are missing stay missing. As the store reckons, in doubles."""
        factor = rate[1] / rate[0] / (self.rate[1] / self.rate[0])
        back = lost(self.seen, now)
        whole = max(now, floor(self.full_at) - back)
        self.newest = max(0, self.newest - back)
        start = max(now, min(self.newest, whole))  # what was granted for later stays
        self.line = {} if back else {id: start + ceil((score - start) * factor) for id, score in self.line.items()}
        self.full_at = Fraction(start + ceil((whole - start) * factor))
        self.end = max(self.line.values(), default=0)
        self.seen, self.rate, self.taken = now, rate, ()
        self.expires = now + up(max(floor(self.full_at) + 1, self.end + GRACE if self.end > now else 0) - now + STEP)

    def at(self, now: int) -> Bucket:
        """This bucket as it stands at ``now``."""
        if self.expires <= now:
            return Bucket(Fraction(now), now, rate=self.rate)
        back = lost(self.seen, now)
        if back:  # the clock stepped back: no time has passed since, and the slots mean nothing any more
            taken = tuple((at - back, price) for at, price in self.taken)
            newest = max(0, self.newest - back)
            return Bucket(self.full_at - back, now, taken, rate=self.rate, newest=newest)
        full_at, end = max(self.full_at, Fraction(now)), max(self.line.values(), default=0)
        taken = self.taken if full_at > now else ()
        if end <= now:  # every slot has passed, or everyone has left
            return Bucket(full_at, self.seen, taken, rate=self.rate, newest=self.newest)
        return Bucket(full_at, self.seen, taken, end, self.expires, dict(self.line), self.rate, self.newest)


class View:
    """One demand on one bucket at one instant: when it could be granted, and where its request stands in the line.

    ``slot`` is when the request itself is due, ``first`` when the first of those who wait is; ``overdue`` is whose
    place it may take; ``queue``: how far ahead a leaky bucket's queue ends; ``full``: it takes nobody more.
    """

    full = False
    paused = 0

    def __init__(self, demand: Demand, kept: Bucket | None, now: int, id: str) -> None:
        numbers = Numbers.of(demand)
        self.rate = numbers.count, numbers.period
        self.demand, self.bucket, self.now, self.id = demand, (kept or Bucket()).at(now), now, id
        self.stepped_back = kept is not None and lost(kept.seen, now) > 0
        leaky = numbers.algorithm == "leaky_bucket"
        self.interval, self.burst = numbers.interval, numbers.burst
        self.queue = floor(numbers.extra * self.interval) if leaky and numbers.extra >= 0 else None
        self.price = numbers.cost * self.interval
        # One permit must be there, and the overdraft must stay within the debt.
        debt = 0 if leaky else numbers.extra
        self.needed = max(1, numbers.cost - debt) * self.interval
        self.depth = numbers.burst * self.interval
        slots = {member: score - floor(self.depth) for member, score in self.bucket.line.items()}
        self.slot = slots.get(id) if id else None
        if self.slot is not None:  # those after it pay for what it overdraws
            self.slot -= floor(self.price - self.needed)
        self.first = min(slots.values(), default=0)
        self.overdue: str | None = None
        self.behind = False
        if slots and self.slot is None:
            if self.first + GRACE < now:
                self.overdue = min(slots, key=lambda member: slots[member])
            else:  # it may fill a gap before the first slot, and must not make the line wait
                self.behind = self.bucket.full_at + self.price > self.first - floor(debt * self.interval)
        self.earliest = self.last_in_line if self.behind else self.admission(self.bucket.full_at)
        # A queue with an end: nobody goes ahead beyond it either. Who has a slot is in the queue already.
        self.behind = self.behind or (self.slot is None and self._beyond(self.earliest))

    def _beyond(self, at: int) -> bool:
        return self.queue is not None and at > max(self.now, self.paused) + self.queue

    def admission(self, full_at: Fraction) -> int:
        return max(self.now, ceil(full_at + self.needed - self.depth))

    @property
    def last_in_line(self) -> int:
        return self.admission(max(self.bucket.full_at, Fraction(self.bucket.end)))

    def take(self, at: int, price: Fraction) -> None:
        self.bucket.full_at = max(self.bucket.full_at, Fraction(at)) + price
        self.bucket.taken += ((at, price),)

    def commit(self, joint: int) -> None:
        self.take(joint, self.price)
        self.bucket.newest = max(self.bucket.newest, joint)
        self.bucket.line.pop(self.id if self.slot is not None else self.overdue or "", None)

    def reserve(self, joint: int, latest: int) -> tuple[int, bool]:
        """The slot that is proposed, and whether it was kept."""
        if self.slot is not None and self.slot > self.now:
            return max(joint, self.slot), False  # it came early: its slot stands
        slot, bucket = max(joint, self.last_in_line), self.bucket
        if self._beyond(slot) and self.slot is None:
            self.full = True
            return max(slot - (self.queue or 0), self.now + 1), False
        if self.id and slot <= latest:  # who came late is in the queue still
            bucket.end = ceil(max(bucket.full_at, Fraction(bucket.end), Fraction(slot)) + self.price)
            bucket.line[self.id] = bucket.end
            return slot, True
        if slot == self.now and self.behind:
            # There is enough even for the last in the line, but the first, who is due, goes first, until overdue.
            return min(bucket.end, self.first + GRACE + 1), False
        return slot, False

    def charge(self, more: int) -> None:
        self.take(self.now, more * self.interval)

    def give_back(self, at: int, less: int, back: int | None) -> bool:
        """Permits that were taken for ``at`` were not used: ``back`` us of them come back, or all that can."""
        bucket, price = self.bucket, less * self.interval
        bucket.taken = without(bucket.taken, at, price)
        came = came_back(back, price, bucket.full_at, lawful(self.now, bucket.taken))
        bucket.full_at -= came
        return came > 0

    def state(self) -> tuple[int, int]:
        """Permits left, and microseconds until full."""
        full_at = self.bucket.full_at
        left = max(0, floor((self.now + self.depth - full_at) / self.interval))
        return min(left, self.burst), ceil(full_at - self.now)

    def written(self) -> Bucket:
        """The bucket as it is kept from now on."""
        bucket = self.bucket
        bucket.seen, bucket.rate = self.now, self.rate
        bucket.expires = self.now + up(max(floor(bucket.full_at) + 1, bucket.end + GRACE) - self.now + STEP)
        return bucket


AnyView = View | CountedView


def in_use(kept: Bucket | Counted, burst: int, now: int) -> int:
    """Permits that another algorithm has lent: how a new one begins."""
    if isinstance(kept, Bucket):
        missing = max(0, floor(kept.full_at) - max(now, kept.seen))
        return ceil(missing / (kept.rate[1] / kept.rate[0]))
    assert kept.counter is not None
    return max(0, kept.counter.in_use(burst, now))


@dataclass
class Ids:
    """Ids and their times, each known for an hour."""

    times: dict[str, int] = field(default_factory=dict)
    expires: int = 0

    def at(self, now: int) -> Ids:
        return self if self.expires > now else Ids()

    def add(self, id: str, at: int, now: int) -> None:
        self.times = {each: time for each, time in self.times.items() if time > now - HOUR} | {id: at}
        self.expires = now + up(max(now, *self.times.values()) - now + HOUR)

    def settle(self, id: str, now: int) -> bool:
        """Whether it is the first time."""
        if f"settled {id}" in self.times:
            return False
        self.add(f"settled {id}", now, now)
        return True


class Model:
    """The store. ``now`` is its clock, in microseconds, and may be set to any time.

    ``ids`` are those that each bucket knows: of reservations, and of what was settled or cancelled.
    """

    def __init__(self, now: int) -> None:
        self.now = now
        self.buckets: dict[tuple[str, str], Bucket | Counted] = {}
        self.ids: dict[tuple[str, str], Ids] = {}
        self.stored: dict[str, AnyLimit] = {}
        self.paused: dict[str, int] = {}
        self.since: dict[str, int] = {}
        self.resumed: dict[str, int] = {}

    def acquire(self, demands: Sequence[Demand], id: str = "", horizon: int = 0, claim: int = 0) -> Answer:
        views = self._views(demands, id)
        joint, binding, behind = self._joint(views)
        if joint <= self.now + horizon and not behind:
            for view in views:
                view.commit(joint)
                self._write(view)
            return self._answer(True, joint, None, views)
        if binding is None:  # the horizon lies in the past: no permit is wanted, and none needs a slot
            return self._answer(False, self.now, None, views)
        slot, kept = views[binding].reserve(joint, self.now + claim)
        for view in views:
            if view.stepped_back or (kept and view is views[binding]):
                self._write(view)
        return self._answer(False, slot, binding, views)

    def peek(self, demands: Sequence[Demand]) -> Answer:
        views = self._views(demands, "")
        joint, binding, _ = self._joint(views)
        if binding is None:
            return self._answer(True, self.now, None, views)
        slot, _ = views[binding].reserve(joint, self.now)
        return self._answer(False, slot, binding, views)

    def reserve(self, demands: Sequence[Demand], id: str, horizon: int) -> Answer:
        """Like ``acquire`` without a slot in the line; what it takes is found again by its id."""
        at = self._ids(demands[0]).times.get(id)
        if at is not None:
            answer = self._answer(True, max(at, self.now), None, self._views(demands, ""))
            return answer._replace(granted_at=at)
        answer = self.acquire(demands, "", horizon)
        for demand in demands if answer.allowed else ():
            self._ids(demand).add(id, answer.granted_at, self.now)
        return answer

    def cancel(self, demands: Sequence[Demand], id: str, back: Sequence[int] | None = None) -> bool:
        """``back``: the microseconds that come back, of each limit."""
        found = False
        for i, view in enumerate(self._views(demands, "")):
            ids = self._ids(view.demand)
            at = ids.times.pop(id, None)
            if at is None:
                continue
            found = True
            if ids.settle(id, self.now) and view.give_back(at, view.demand.cost, back[i] if back else None):
                self._write(view)
        return found

    def settle(
        self,
        demands: Sequence[Demand],
        actual: Sequence[int],
        id: str,
        granted_at: int,
        back: Sequence[int] | None = None,
    ) -> bool:
        fresh = False
        for i, (view, cost) in enumerate(zip(self._views(demands, ""), actual, strict=True)):
            if not self._ids(view.demand).settle(id, self.now):
                continue
            fresh = True
            more = cost - view.demand.cost
            if more > 0:
                view.charge(more)
            if more > 0 or (more < 0 and view.give_back(granted_at, -more, back[i] if back else None)):
                self._write(view)
        return fresh

    def forget(self, demands: Sequence[Demand], id: str) -> None:
        self._expire(demands)
        for demand in demands:
            kept = self.buckets.get(self._name(demand))
            if isinstance(kept, Bucket):
                kept.line.pop(id, None)
            elif kept is not None and id in kept.slots:
                view = CountedView(demand, kept, self.now, "")
                view.bucket.leave(id, view.cost)
                self._write(view)

    def reset(self, demands: Sequence[Demand]) -> None:
        for demand in demands:
            self.buckets.pop(self._name(demand), None)

    @staticmethod
    def _name(demand: Demand) -> tuple[str, str]:
        return demand.name, demand.key

    def _ids(self, demand: Demand) -> Ids:
        ids = self.ids[self._name(demand)] = self.ids.get(self._name(demand), Ids()).at(self.now)
        return ids

    def _expire(self, demands: Sequence[Demand]) -> None:
        for name in map(self._name, demands):
            if name in self.buckets and self.buckets[name].expire(self.now):
                del self.buckets[name]

    def _views(self, demands: Sequence[Demand], id: str) -> list[AnyView]:
        self._expire(demands)
        return [self._view(demand, self.buckets.get(self._name(demand)), id) for demand in demands]

    def _view(self, demand: Demand, kept: Bucket | Counted | None, id: str) -> AnyView:
        asked = demand
        demand = Demand(self.stored.get(demand.name, demand.limit), demand.name, demand.key, demand.cost)
        numbers = Numbers.of(demand)
        rate = numbers.count, numbers.period
        view: AnyView
        if numbers.algorithm in COUNTERS:
            of_another = kept is not None and not (
                isinstance(kept, Counted) and type(kept.counter) in (COUNTERS[numbers.algorithm], type(None))
            )
            void = max(self.since.get(demand.name, 0), self.resumed.get(demand.name, 0))
            view = CountedView(demand, None if isinstance(kept, Bucket) or of_another else kept, self.now, id, void)
            if of_another:
                assert kept is not None
                view.begin_with(min(numbers.burst, in_use(kept, numbers.burst, self.now)))
        else:
            void = isinstance(kept, Bucket) and kept.seen < self.resumed.get(demand.name, 0)
            if void:
                assert isinstance(kept, Bucket)
                kept.line = {}
            if isinstance(kept, Bucket) and kept.expires > self.now and kept.rate != rate:
                kept.rescale(self.now, rate)
            of_another = isinstance(kept, Counted) and kept.counter is not None
            view = View(demand, None if isinstance(kept, Counted) else kept, self.now, id)
            if of_another:
                assert kept is not None
                used = min(numbers.burst, in_use(kept, numbers.burst, self.now))
                begun = Bucket(self.now + used * numbers.interval, self.now, expires=self.now + HOUR * 10**6, rate=rate)
                view = View(demand, begun, self.now, id)
                view.stepped_back = True
            view.stepped_back = view.stepped_back or void
        view.paused = self.paused.get(demand.name, 0)
        view.earliest = max(view.earliest, view.paused)
        view.demand = asked
        return view

    def _joint(self, views: Sequence[AnyView]) -> tuple[int, int | None, bool]:
        """The earliest time for all, which limit decides it, and whether a line comes first."""
        joint = max(view.earliest for view in views)
        late = [i for i, view in enumerate(views) if view.earliest == joint > self.now]
        behind = [i for i, view in enumerate(views) if view.behind]
        binding = min(late, default=min(behind, default=None))
        return joint, binding, bool(behind)

    def _write(self, view: AnyView) -> None:
        self.buckets[self._name(view.demand)] = view.written()

    def _answer(self, allowed: bool, at: int, binding: int | None, views: Sequence[AnyView]) -> Answer:
        name = None if binding is None else views[binding].demand.name
        states = tuple(view.state() for view in views)
        full = any(view.full for view in views)
        return Answer(allowed, at - self.now, name, states, at if allowed else self.now, full)
