"""The store in a few pages of exact arithmetic: what the Lua must agree with. Here the token bucket and its line of
slots, and the leaky bucket, which is one that takes so many into its line and no more; see ``counted`` for the rest.

A bucket is the instant at which it will be full again, kept as a fraction of a microsecond and never rounded.
Answers are whole microseconds, rounded up. Slots are whole microseconds too: they are proposals, not permits.

How much of a permit that was not used goes back into a bucket is for the Lua to say, which does not remember all that
was taken: no more than the law leaves, which the model knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor, inf
from typing import NamedTuple

from celery_ratelimit import Decision
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limits.any_limit import AnyLimit

from .counted import (
    COUNTERS,
    GRACE,
    SOON,
    STEP,
    Counted,
    CountedView,
    Numbers,
    Taken,
    came_back,
    changed_at,
    lost,
    moved,
    up,
    without,
)
from .frozen import us

#: From when on, in microseconds, which emission interval was in force.
Rates = tuple[tuple[int, Fraction], ...]

#: How long the id of a reservation is known after its time, and that of a call after it was settled.
HOUR = 3_600_000_000


class Answer(NamedTuple):
    """A decision in whole microseconds; ``states`` is (remaining, reset_after) of each limit."""

    allowed: bool
    wait: int
    limited_by: str | None
    states: tuple[tuple[int, int], ...]
    granted_at: int
    queue_full: bool = False

    @classmethod
    def of(cls, decision: Decision) -> Answer:
        states = tuple((state.remaining, us(state.reset_after)) for state in decision.states)
        wait = us(decision.retry_after)
        return cls(decision.allowed, wait, decision.limited_by, states, decision._granted_at, decision.queue_full)


def lawful(now: int, taken: Taken, rates: Rates) -> Fraction:
    """The earliest that a bucket can be full again from which that was taken, under one rate after the other."""
    at, missing, interval = Fraction(0), Fraction(0), Fraction(1)
    takes = [(when, 1, permits) for when, permits in taken]
    for when, is_take, number in sorted([*takes, *((when, 0, each) for when, each in rates)]):
        at, missing = Fraction(when), max(Fraction(0), missing - (when - at) / interval)
        if is_take:
            missing += number
        else:
            interval = number
    return max(Fraction(now), at + missing * interval)


@dataclass
class Bucket:
    """``full_at`` and ``seen`` (the clock at the last change) in microseconds; ``line`` is id -> score; ``gaps`` are
    the times in it that no request waits for, begin -> end.

    ``taken``: for when, and permits, since it was full; ``rates``: from when on, and the emission interval.
    ``lines``: of calls that may use more of what is set aside than others: millionths that they leave -> where their
    line ends.
    """

    full_at: Fraction = Fraction(0)
    seen: int = 0
    taken: Taken = ()
    rates: Rates = ()
    end: int = 0
    expires: int = 0
    line: dict[str, int] = field(default_factory=dict)
    gaps: dict[int, int] = field(default_factory=dict)
    rate: tuple[int, int] = (1, 1)
    newest: int = 0
    lines: dict[int, int] = field(default_factory=dict)

    def expire(self, now: int) -> bool:
        """Whether nothing is left."""
        return self.expires <= now

    def rescale(self, now: int, at: int, rate: tuple[int, int], most: int) -> None:
        """Another rate is in force since ``at``: what is missing stays missing. As the store reckons, in doubles."""
        factor = rate[1] / rate[0] / (self.rate[1] / self.rate[0])
        back = lost(self.seen, now)
        whole = max(at, ceil(self.full_at) - back)
        self.newest = max(0, self.newest - back)
        self._step_back(back)
        full_at, start = moved(at, self.newest, whole, factor, most * rate[1] // rate[0])
        self.gaps, self.lines = {}, {}
        self.line = {} if back else {id: start + ceil((score - start) * factor) for id, score in self.line.items()}
        self.full_at = Fraction(max(now, full_at))
        self.end = max(self.line.values(), default=0)
        self.seen = now
        self.rate, self.rates = rate, (*self.rates, (start, Fraction(rate[1], rate[0])))
        if full_at < now:
            self.taken, self.rates = (), self.rates[-1:]
        self.expires = now + up(max(floor(self.full_at) + 1, self.end + GRACE if self.end > now else 0) - now + STEP)

    def _step_back(self, back: int) -> None:
        self.taken = tuple((at - back, permits) for at, permits in self.taken)
        self.rates = tuple((at - back, interval) for at, interval in self.rates)

    def at(self, now: int, rate: tuple[int, int]) -> Bucket:
        """This bucket as it stands at ``now``, under ``rate``."""
        rates: Rates = ((0, Fraction(rate[1], rate[0])),)
        if self.expires <= now:
            return Bucket(Fraction(now), now, rates=rates, rate=self.rate)
        back = lost(self.seen, now)
        if back:  # the clock stepped back: no time has passed since, and the slots mean nothing any more
            self._step_back(back)
            newest = max(0, self.newest - back)
            return Bucket(self.full_at - back, now, self.taken, self.rates, rate=self.rate, newest=newest)
        full_at, end = max(self.full_at, Fraction(now)), max(self.line.values(), default=0)
        taken, rates = (self.taken, self.rates or rates) if full_at > now else ((), rates)
        if end <= now:  # every slot has passed, or every request has left
            return Bucket(full_at, self.seen, taken, rates, rate=self.rate, newest=self.newest)
        line, gaps = dict(self.line), dict(self.gaps)
        lines = {own: us for own, us in self.lines.items() if us > now}
        return Bucket(full_at, self.seen, taken, rates, end, self.expires, line, gaps, self.rate, self.newest, lines)


class View:
    """One demand on one bucket at one instant: when it could be granted, and where its request stands in the line.

    ``slot`` is when the request itself is due, ``first`` when the first waiting request is; ``overdue`` is the id whose
    place it may take; ``queue``: how far ahead a leaky bucket's queue ends; ``full``: it takes no more requests.
    """

    full = False
    paused = 0
    patience: int | None = None
    room: int | None = None
    late: int | None = None
    last = among = False
    beside: float | None = None
    room_at: int | None = None
    leaves = shares = 0
    passes = False
    tail: int | None = None

    def __init__(
        self,
        demand: LimitRequest,
        kept: Bucket | None,
        now: int,
        id: str,
        is_paused: bool = False,
        reserve: tuple[int, int] | None = None,
    ) -> None:
        numbers = self.numbers = Numbers.of(demand)
        self.rate = numbers.count, numbers.period
        self.demand, self.bucket, self.now, self.id = demand, (kept or Bucket()).at(now, self.rate), now, id
        self.stepped_back = kept is not None and lost(kept.seen, now) > 0
        leaky = numbers.algorithm == "leaky_bucket"
        self.interval, self.burst = numbers.interval, numbers.burst
        self.queue = floor(numbers.extra * self.interval) if leaky and numbers.extra >= 0 else None
        self.price = numbers.cost * self.interval
        # One permit must be there, and the overdraft must stay within the debt.
        debt = 0 if leaky else max(0, numbers.extra)
        self.needed = max(1, numbers.cost - debt) * self.interval
        if reserve is not None:  # what it leaves has to be there, too
            self.own, most = reserve
            self.leaves = max(0, min(self.own * self.burst // 10**6, self.burst - numbers.cost))
            self.needed = (numbers.cost + self.leaves) * self.interval
            self.passes, self.tail = self.own < most, 0
            self.shares = floor((most * self.burst // 10**6 + 1) * self.interval)
        self.depth = numbers.burst * self.interval
        slots = {member: score - floor(self.depth) for member, score in self.bucket.line.items()}
        self.slot = slots.get(id) if id else None
        if reserve is not None and self.passes and self.slot is not None:
            end = max([us for own, us in self.bucket.lines.items() if own <= self.own], default=0)
            self.slot = min(self.slot, end - floor(self.depth)) if end else self.slot
        if self.slot is not None:  # later requests pay for what it overdraws
            self.slot -= floor(self.price - self.needed)
        self.first = min(slots.values(), default=0)
        self.overdue: str | None = None
        self.behind = False
        if slots and self.tail is not None:
            self.tail = max([us for own, us in self.bucket.lines.items() if own <= self.own], default=0)
            if not self.passes:  # waiting requests come later by what the important ones took
                waiting = ceil(self.bucket.full_at + len(slots) * self.price)
                self.tail = max(self.tail, self.bucket.end, waiting)
        if slots and self.slot is None and not self.passes:
            if self.first + self.shares + GRACE < now:
                self.overdue = min(slots, key=lambda member: slots[member])
            else:  # it may fill a gap before the first slot, and must not make the line wait
                self.room = self._room(floor(debt * self.interval), is_paused)
                self.behind = self.bucket.full_at + self.price > self.room
                self.patience = min(self.bucket.end, self.first + self.shares + GRACE + 1) if self.behind else None
        self.earliest = self._find(now)[0] if self.behind else self.admission(self.bucket.full_at)
        if self.passes and self.slot is None:  # it stands behind requests that leave no more than it does
            assert self.tail is not None
            self.earliest = self._find(now)[0]
            self.behind = self.earliest > now and self.tail > self._tat
        # A queue with an end: no request goes ahead beyond it either. One with a slot is in the queue already.
        self.behind = self.behind or (self.slot is None and self._beyond(self.earliest))

    def _beyond(self, at: int) -> bool:
        return self.queue is not None and at > max(self.now, self.paused) + self.queue

    def admission(self, full_at: Fraction) -> int:
        return max(self.now, ceil(full_at + self.needed - self.depth))

    @property
    def _tat(self) -> int:
        return floor(self.bucket.full_at)

    def _room(self, debt: int, is_paused: bool) -> int:
        """Up to where a newcomer may take the bucket and delays no request."""
        gaps = [gap for gap in self._gaps() if gap[0] > self._tat]
        if gaps and not is_paused and min(self.bucket.line.values()) > self._tat and gaps[0][1] <= self._tat:
            return max(self.first - debt, gaps[0][0])
        return self.first - debt

    def _gaps(self) -> list[tuple[int, int]]:
        """(end, begin) of those before the last in the line."""
        return sorted((end, begin) for begin, end in self.bucket.gaps.items() if end <= self.bucket.end)

    def _find(self, at: int) -> tuple[int, Fraction, int, int | None]:
        """The first turn from ``at`` on: its slot, where it begins, where what is before it ends, and its gap."""
        least = max(at, self._tat) + floor(self.price)
        wide = [gap for gap in self._gaps() if gap[0] >= least]
        for end, begin in wide[:16] if self.late is None and not self.last and not self.passes else ():
            start = self.bucket.full_at if begin <= self._tat else Fraction(begin)
            slot, base = self._turn(at, start)
            if base + self.price <= end:
                return slot, base, ceil(start), begin
        end = self.bucket.end if self.tail is None else self.tail
        start = max(self.bucket.full_at, Fraction(end)) if self.late is None else Fraction(self.late)
        return (*self._turn(at, start), ceil(start), None)

    def _turn(self, at: int, start: Fraction) -> tuple[int, Fraction]:
        slot = max(at, ceil(start + self.needed - self.depth))
        if slot <= floor(start):
            return slot, start
        steps = ceil(float(slot - floor(start)) * self.numbers.count / self.numbers.period)
        aligned, whole = start + steps * self.interval, floor(self.interval)
        if self.beside is None or floor(aligned) < slot:
            return slot, Fraction(slot)
        late = max(0, ceil(aligned + self.needed - self.depth) - slot)
        if float(late * whole) >= (whole - late) * self.beside:
            return slot, Fraction(slot)
        slot += late
        return slot, aligned if floor(aligned) >= slot else Fraction(slot)

    def fits(self, joint: int, waits: bool) -> bool:
        """Whether it may be taken ahead: it delays no request, and wastes nothing where it may wait itself."""
        if self.slot is not None and self.slot <= self.now + SOON:
            return True
        if waits and joint - self._tat >= floor(self.interval):
            return False
        return self.room is None or max(self._tat, joint) + floor(self.bucket.full_at % 1 + self.price) <= self.room

    def place(self, at: int, last: bool = False) -> int:
        """The earliest slot from ``at`` on; ``last``: behind all."""
        slot = self._place(at, last)
        if self.slot is None and slot > at and self._beyond(slot):
            self.room_at = max(self.now + 1, slot - (self.queue or 0))
        return slot

    def _place(self, at: int, last: bool) -> int:
        if self.slot is not None and self.slot > self.now and self.slot >= at:
            return self.slot
        self.last = last
        self._come_late()
        return self._find(at)[0]

    def _come_late(self) -> None:
        if self.slot is not None:
            mine = self.slot + floor(self.depth) + floor(self.price - self.needed)
            since = max(0, self.now - GRACE)  # earlier slots are overdue
            before = 0 if self.passes else sum(since < score < mine for score in self.bucket.line.values())
            self.late = ceil(self.bucket.full_at + before * self.price)

    def _move_back(self, end: Fraction) -> None:
        """The slots behind its own come later, if the first of them has to: behind ``end``."""
        bucket = self.bucket
        behind = {member: score for member, score in bucket.line.items() if score > bucket.line[self.id]}
        by = ceil(end + self.price) - min(behind.values(), default=inf)
        if by > 0:
            bucket.gaps = {}
            bucket.line |= {member: score + int(by) for member, score in behind.items()}
            bucket.end += int(by)

    def claim(self, at: int) -> bool:
        """Keeps the slot. False: it stood there already."""
        if at == self.slot:
            return False
        bucket = self.bucket
        _, base, before, gap = self._find(at)
        score = ceil(base + self.price)
        if gap is not None:
            self.note_gap(score, bucket.gaps.pop(gap))
        elif bucket.end <= self.now:
            bucket.line, bucket.gaps = {}, {}
        elif not self.passes:
            bucket.gaps = {begin: end for begin, end in bucket.gaps.items() if end <= bucket.end}
        if gap is not None or (self.among and self.late is None and not self.passes):
            self.note_gap(before, floor(base))
        bucket.end = max(bucket.end, score)
        bucket.line[self.id] = score
        if self.passes:
            bucket.lines[self.own] = max(bucket.lines.get(self.own, 0), score)
        return True

    def note_gap(self, begin: int, end: int) -> None:
        if end - begin >= ceil(self.interval):
            self.bucket.gaps[begin] = end

    def take(self, at: int, permits: int) -> None:
        self.bucket.full_at = max(self.bucket.full_at, Fraction(at)) + permits * self.interval
        self.bucket.taken += ((at, Fraction(permits)),)

    def commit(self, joint: int) -> None:
        self.take(joint, self.demand.cost)
        self.bucket.newest = max(self.bucket.newest, joint)
        bucket = self.bucket
        is_last = self.slot is not None and bucket.line[self.id] == bucket.end
        if not self.passes:
            bucket.gaps = {begin: end for begin, end in bucket.gaps.items() if end > self.now and not is_last}
        bucket.line.pop(self.id if self.slot is not None else self.overdue or "", None)

    def reserve(self, joint: int, latest: int) -> tuple[int, bool]:
        """The slot that is proposed, and whether it was kept."""
        if self.slot is not None and self.slot > self.now:
            return max(joint, self.slot), False  # it came early: its slot stands
        self._come_late()
        slot = self._find(joint)[0]
        if self._beyond(slot) and self.slot is None:
            self.full = True
            return max(slot - (self.queue or 0), self.now + 1), False
        if self.id and slot <= latest:  # one that came late is in the queue still
            if self.slot is not None and not self.passes:
                base = self._find(joint)[1]
                if self.tail is not None and ceil(base + self.price) - self.bucket.line[self.id] <= GRACE / 2:
                    return slot, False  # important calls go before it all the time
                self._move_back(base + self.price)
            return slot, self.claim(slot)
        if slot == self.now and self.behind:
            # There is enough even for the last in the line, but the first, which is due, goes first, until overdue.
            assert self.patience is not None
            return self.patience, False
        return slot, False

    def charge(self, more: int) -> None:
        self.take(self.now, more)

    def give_back(self, at: int, less: int, back: int | None) -> bool:
        """Permits that were taken for ``at`` were not used: ``back`` us of them come back, or all that can."""
        bucket, price = self.bucket, less * self.interval
        bucket.taken = without(bucket.taken, at, Fraction(less))
        came = came_back(back, price, bucket.full_at, lawful(self.now, bucket.taken, bucket.rates))
        bucket.full_at -= came
        return came > 0

    def state(self) -> tuple[int, int]:
        """Permits left, and microseconds until full."""
        full_at = self.bucket.full_at
        left = max(0, floor((self.now + self.depth - full_at) / self.interval))
        return max(0, min(left, self.burst) - self.leaves), ceil(full_at - self.now)

    def written(self) -> Bucket:
        """The bucket as it is kept from now on."""
        bucket = self.bucket
        bucket.seen, bucket.rate = self.now, self.rate
        bucket.expires = self.now + up(max(floor(bucket.full_at) + 1, bucket.end + GRACE) - self.now + STEP)
        return bucket


AnyView = View | CountedView


def used_up_at(kept: Bucket | Counted, now: int) -> int:
    """When all of a bucket counts as taken that begins in the place of another algorithm's."""
    if isinstance(kept, Bucket):
        return max(0, kept.newest - lost(kept.seen, now))
    assert kept.counter is not None
    return max(0, kept.counter.newest_at - lost(kept.written, now))


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

    ``ids`` are the ids that each bucket knows: of reservations, and of what was settled or cancelled.
    """

    def __init__(self, now: int) -> None:
        self.now = now
        self.buckets: dict[tuple[str, str], Bucket | Counted] = {}
        self.ids: dict[tuple[str, str], Ids] = {}
        self.stored: dict[str, AnyLimit] = {}
        self.paused: dict[str, int] = {}
        self.since: dict[str, int] = {}
        self.resumed: dict[str, int] = {}

    def acquire(self, demands: Sequence[LimitRequest], id: str = "", horizon: int = 0, claim: int = 0) -> Answer:
        views = self._views(demands, id)
        joint, binding, behind = self._joint(views)
        waits = len(views) > 1 and id != "" and joint <= self.now + claim
        if joint <= self.now + horizon and not behind and self._fit(views, joint, waits):
            for view in views:
                view.commit(joint)
                self._write(view)
            return self._answer(True, joint, None, views)
        if binding is None:  # the horizon lies in the past: no permit is wanted, and none needs a slot
            return self._answer(False, self.now, None, views)
        slot, kept = self._line_up(views, id, joint, self.now + claim)
        for view, own in zip(views, kept, strict=True):
            if view.stepped_back or own:
                self._write(view)
        return self._answer(False, max(slot, self.now + 1), binding, views)

    def peek(self, demands: Sequence[LimitRequest]) -> Answer:
        """Nothing is kept of it, not even a change that has come about by then. What has expired is gone."""
        self._expire(demands)
        kept = deepcopy(self.buckets)
        answer = self._peek(demands)
        self.buckets = kept
        return answer

    def _peek(self, demands: Sequence[LimitRequest]) -> Answer:
        views = self._views(demands, "")
        joint, binding, _ = self._joint(views)
        slot = self.now
        if binding is not None:
            slot, _ = self._line_up(views, "", joint, self.now)
        if binding is None:
            return self._answer(True, self.now, None, views)
        return self._answer(False, max(slot, self.now + 1), binding, views)

    def _fit(self, views: Sequence[AnyView], joint: int, waits: bool) -> bool:
        return joint == self.now or len(views) == 1 or all(view.fits(joint, waits) for view in views)

    def _line_up(self, views: Sequence[AnyView], id: str, joint: int, latest: int) -> tuple[int, list[bool]]:
        """The slot that is proposed, and in which limits it was kept now."""
        if len(views) == 1:
            slot, kept = views[0].reserve(joint, latest)
            return slot, [kept]
        none = [False] * len(views)
        dues = [view.slot for view in views if view.slot is not None and view.slot > self.now]
        if len(dues) == len(views):
            return max(joint, *dues), none
        prices = [view.numbers.cost * view.numbers.period / view.numbers.count for view in views]
        for view in views:
            if isinstance(view, View):
                view.among = True
        fastest = views[prices.index(min(prices))]
        if isinstance(fastest, View) and id:
            fastest.beside = max(prices)
        at = self._joint_place(views, joint)
        for view in views:
            if isinstance(view, View) and view.room_at is not None:
                view.full = True
                return view.room_at, none
        kept = none
        if id and at <= latest:
            kept = [view.claim(at) for view in views]
        elif at == self.now:
            at = max(at, *[view.patience or at for view in views])
        return at, kept

    def _joint_place(self, views: Sequence[AnyView], joint: int) -> int:
        at = joint
        for rounds in range(1, 17):
            before = at
            for view in views:
                at = view.place(at)
            if at == before:
                return at
            if rounds > 8:
                at += ceil((at - self.now) / 4)
        for _ in range(2):
            for view in views:
                at = view.place(at, last=True)
        return at

    def reserve(self, demands: Sequence[LimitRequest], id: str, horizon: int) -> Answer:
        """Like ``acquire`` without a slot in the line; what it takes is found again by its id."""
        at = self._ids(demands[0]).times.get(id)
        if at is not None:
            answer = self._answer(True, max(at, self.now), None, self._views(demands, ""))
            return answer._replace(granted_at=at)
        answer = self.acquire(demands, "", horizon)
        for demand in demands if answer.allowed else ():
            self._ids(demand).add(id, answer.granted_at, self.now)
        return answer

    def cancel(self, demands: Sequence[LimitRequest], id: str, back: Sequence[int] | None = None) -> bool:
        """``back``: the microseconds that come back, of each limit."""
        found = False
        for i, demand in enumerate(demands):
            ids = self._ids(demand)
            at = ids.times.pop(id, None)
            if at is None:
                continue
            found = True
            if not ids.settle(id, self.now):
                continue
            (view,) = self._views([demand], "")  # only now: it notes a change of the rate
            if view.give_back(at, demand.cost, back[i] if back else None):
                self._write(view)
        return found

    def settle(
        self,
        demands: Sequence[LimitRequest],
        actual: Sequence[int],
        id: str,
        granted_at: int,
        back: Sequence[int] | None = None,
    ) -> bool:
        fresh = False
        for i, (demand, cost) in enumerate(zip(demands, actual, strict=True)):
            if not self._ids(demand).settle(id, self.now):
                continue
            fresh = True
            (view,) = self._views([demand], "")
            more = cost - demand.cost
            if more > 0:
                view.charge(more)
            if more > 0 or (more < 0 and view.give_back(granted_at, -more, back[i] if back else None)):
                self._write(view)
        return fresh

    def forget(self, demands: Sequence[LimitRequest], id: str) -> None:
        self._expire(demands)
        for demand in demands:
            kept = self.buckets.get(self._name(demand))
            if isinstance(kept, Bucket):
                self._leave(demand, kept, kept.line.pop(id, None))
            elif kept is not None and id in kept.slots:
                view = CountedView(demand, kept, self.now, "")
                view.bucket.leave(id, view.cost)
                self._write(view)

    def _leave(self, demand: LimitRequest, kept: Bucket, score: int | None) -> None:
        view = self._view(demand, kept, "") if score is not None else None
        if score is None or not isinstance(view, View):
            return
        begin = score - floor(view.price)
        if score < view.bucket.end and begin > max(self.now, floor(view.bucket.full_at)):
            view.bucket = kept
            view.note_gap(begin, score)

    @staticmethod
    def _name(demand: LimitRequest) -> tuple[str, str]:
        return demand.name, demand.key

    def _ids(self, demand: LimitRequest) -> Ids:
        ids = self.ids[self._name(demand)] = self.ids.get(self._name(demand), Ids()).at(self.now)
        return ids

    def _expire(self, demands: Sequence[LimitRequest]) -> None:
        for name in map(self._name, demands):
            if name in self.buckets and self.buckets[name].expire(self.now):
                del self.buckets[name]

    def _views(self, demands: Sequence[LimitRequest], id: str) -> list[AnyView]:
        self._expire(demands)
        return [self._view(demand, self.buckets.get(self._name(demand)), id) for demand in demands]

    def _view(self, demand: LimitRequest, kept: Bucket | Counted | None, id: str) -> AnyView:
        asked = demand
        demand = LimitRequest(self.stored.get(demand.name, demand.limit), demand.name, demand.key, demand.cost)
        numbers = Numbers.of(demand)
        rate = numbers.count, numbers.period
        view: AnyView
        if numbers.algorithm in COUNTERS:
            of_another = kept is not None and not (
                isinstance(kept, Counted) and type(kept.counter) in (COUNTERS[numbers.algorithm], type(None))
            )
            void = max(self.since.get(demand.name, 0), self.resumed.get(demand.name, 0))
            same = None if isinstance(kept, Bucket) or of_another else kept
            view = CountedView(demand, same, self.now, id, void, self.since.get(demand.name, 0))
            if of_another:
                assert kept is not None
                view.begin_used_up(numbers, used_up_at(kept, self.now))
        else:
            void = isinstance(kept, Bucket) and kept.seen < self.resumed.get(demand.name, 0)
            if void:
                assert isinstance(kept, Bucket)
                kept.line = {}
            if isinstance(kept, Bucket) and kept.expires > self.now and kept.rate != rate:
                debt = max(0, numbers.extra) if numbers.algorithm == "token_bucket" else 0
                at = changed_at(self.since.get(demand.name, 0), kept.seen, self.now)
                kept.rescale(self.now, at, rate, numbers.burst + debt)
            of_another = isinstance(kept, Counted) and kept.counter is not None
            is_paused = self.paused.get(demand.name, 0) > self.now
            reserve = None
            if asked.limit.priority_reserve is not None and numbers.algorithm == "token_bucket" and numbers.extra <= 0:
                most = asked.limit.priority_reserve.most
                reserve = most if asked.leaves is None else asked.leaves, most
            view = View(demand, None if isinstance(kept, Counted) else kept, self.now, id, is_paused, reserve)
            if of_another:
                assert kept is not None
                at, used = used_up_at(kept, self.now), Fraction(numbers.burst)
                begun = Bucket(at + used * numbers.interval, self.now, ((at, used),), rate=rate, newest=at)
                begun.expires, begun.rates = self.now + HOUR * 10**6, ((0, numbers.interval),)
                view = View(demand, begun, self.now, id, reserve=reserve)
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
