"""The algorithms that count permits, one small class each, and the line they share: what the Lua must agree with.

Written from their definitions. Permits and microseconds are whole numbers, of any size; only warm-up is kept in
doubles, as Guava keeps it, and so in Guava's order of operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor
from typing import NamedTuple

from celery_ratelimit.limiter.limit_request import LimitRequest

#: A slot that long overdue, in microseconds, is open to any request.
GRACE = 1_000_000
#: No bucket is further behind than that, in microseconds.
FAR = 2**51
#: A clock that steps back by so many microseconds, or fewer, is waited for.
STEP = 100_000
#: A slot so near may be taken ahead though permits of another limit lapse by that.
SOON = 100_000


class Numbers(NamedTuple):
    """A demand as it goes over the wire: ``count`` permits in ``period`` us; ``extra`` is the algorithm's own."""

    algorithm: str
    count: int
    period: int
    burst: int
    cost: int
    extra: int

    @classmethod
    def of(cls, demand: LimitRequest) -> Numbers:
        return cls(*demand.limit.wire(demand.cost, demand.leaves))

    @property
    def interval(self) -> Fraction:
        return Fraction(self.period, self.count)


def up(us: int) -> int:
    """A time to live in whole milliseconds, in microseconds."""
    return -(-us // 1000) * 1000


def lost(written: int, now: int) -> int:
    """The microseconds by which the clock has stepped back since it was ``written``, unless it is waited for."""
    return written - now if written - now > STEP else 0


#: For when permits were taken, and how long they take to come back.
Taken = tuple[tuple[int, Fraction], ...]


def lawful(now: int, taken: Taken) -> Fraction:
    """The earliest that a bucket can be full again from which no more was taken than the law allows in any interval."""
    sums = [start + sum(price for at, price in taken if at >= start) for start, _ in taken]
    return max([Fraction(now), *sums])


def without(taken: Taken, at: int, price: Fraction) -> Taken:
    """What was taken less ``price``, which was taken for ``at``."""
    left = []
    for when, each in taken:
        back = min(each, price) if when == at else Fraction(0)
        price -= back
        left.append((when, each - back))
    return tuple(left)


def came_back(back: int | None, price: Fraction, full_at: Fraction, least: Fraction) -> int:
    """The microseconds that came back, or all that can: no more than was paid, and the bucket is not full too early."""
    most = max(0, min(floor(price), floor(full_at - least)))
    assert back is None or 0 <= back <= most, f"{back} us came back where {most} could"
    return most if back is None else back


def changed_at(since: int, written: int, now: int) -> int:
    """When a rule began that a bucket was not written under: when it was stored; else the code has changed."""
    return since if written <= since <= now else now


def moved(now: int, newest: int, us: int, factor: float, deep: float) -> tuple[int, int]:
    """A change of the rate, where time stands for permits: when all is back then, and from when on the new rate holds.

    From the change on, or behind the newest permit. If that lies ahead, what was in use before it is all that can be.
    """
    start = max(now, min(newest, us))
    back = start + ceil((us - start) * factor)
    if start > now:
        back = max(back, now + ceil(min((us - now) * factor, deep)))
    return min(back, now + FAR), start


class Counter:
    """What was taken from one bucket. ``now`` is when it was read last."""

    now = 0
    newest = 0
    since = 0

    def __init__(self, numbers: Numbers, now: int) -> None:
        self.n, self.w, self.b, self.x, self.now = numbers.count, numbers.period, numbers.burst, numbers.extra, now

    def read(self, now: int, back: int) -> None:
        """Move on to ``now``, before which the clock stepped back by ``back``."""
        raise NotImplementedError

    def earliest(self, ahead: int, cost: int = 0) -> int:
        """When ``cost`` permits could go after ``ahead`` others."""
        raise NotImplementedError

    def take(self, joint: int, cost: int) -> None:
        raise NotImplementedError

    def charge(self, more: int) -> None:
        """Take permits that were used already, whether they are there or not."""
        raise NotImplementedError

    def give_back(self, at: int, less: int, back: int | None) -> None:
        """Permits that were taken for ``at`` were not used; ``back``: the microseconds that come back."""
        raise NotImplementedError

    def state(self) -> tuple[int, int]:
        """Permits left, and microseconds until full."""
        raise NotImplementedError

    def expires(self) -> int:
        """From when on a new bucket is as good."""
        return self.now + self.state()[1]

    @property
    def newest_at(self) -> int:
        """When the newest permit is good, by the clock of the last write."""
        return self.newest

    def changes(self, numbers: Numbers) -> bool:
        """Whether other numbers change what is kept, so that it is written at once."""
        return True

    def follow(self, numbers: Numbers, at: int, back: int) -> int:
        """Other numbers are in force, since ``at``. Returns by how much the clock is still to be stepped back."""
        self.n, self.w, self.b, self.x = numbers.count, numbers.period, numbers.burst, numbers.extra
        return back


class FixedWindow(Counter):
    """At most n in ``[start, start + w)``. x = 0: windows begin at multiples of w; x = 1: at the first use."""

    def __init__(self, numbers: Numbers, now: int) -> None:
        super().__init__(numbers, now)
        self.start, self.used = now if self.x else now - now % self.w, 0
        self.forgiven, self.since = 0, now

    def _move(self, at: int) -> None:
        passed = max(0, (at - self.start) // self.w)
        if passed:
            self.used, self.forgiven = max(0, self.used - self.forgiven - passed * self.n), 0
        if not self.x and passed:  # of the clock again, should it have stepped back
            self.start = at - at % self.w
        elif self.used:
            self.start += passed * self.w
        elif self.x:  # no use has opened it
            self.start = max(at, self.start)

    def read(self, now: int, back: int) -> None:
        self.now = now
        self._step_back(back)
        self._move(now)

    def _step_back(self, back: int) -> None:
        self.start, self.newest, self.since = self.start - back, self.newest - back, self.since - back

    def earliest(self, ahead: int, cost: int = 0) -> int:
        over = self.used + ahead + cost - self.n
        return max(self.now, self.start) if over <= 0 else self.start + self._windows(over) * self.w

    def _windows(self, permits: int) -> int:
        return max(1, -((self.forgiven - permits) // self.n))

    def take(self, joint: int, cost: int) -> None:
        self._move(joint)
        self.used += cost
        self.newest = max(self.newest, joint)

    def charge(self, more: int) -> None:
        self.used += more

    def give_back(self, at: int, less: int, back: int | None) -> None:
        if max(self.start, self.since) <= at < self.start + self.w:
            less = min(less, self.used)
            self.used, self.forgiven = self.used - less, max(0, self.forgiven - less)

    def follow(self, numbers: Numbers, at: int, back: int) -> int:
        """What was used is in use in the window of ``at``, or of the newest permit; what exceeds that is not owed."""
        self._step_back(back)
        self._move(at)
        self.forgiven += max(0, min(self.used - self.forgiven, self.n) - numbers.count)
        self.since = max(self.since, self.start)
        super().follow(numbers, at, 0)
        at = max(at, self.newest)
        if not self.x:
            self.start = at - at % self.w
        elif at >= self.start + self.w:
            self.start = at
        return 0

    def state(self) -> tuple[int, int]:
        return max(0, self.n - self.used), self.start + self.w - self.now if self.used else 0

    def expires(self) -> int:
        return self.start + self.w * self._windows(self.used)


class SlidingWindow(Counter):
    """Counters of sub-windows, x to a period; the oldest of x + 1 counts in part, as much as is still inside.

    ``lag`` is what the clock has stepped back by: sub-windows go on from where they were.
    """

    def __init__(self, numbers: Numbers, now: int) -> None:
        super().__init__(numbers, now)
        self.sub, self.lag = -(-self.w // self.x), 0
        self.index, self.c, self.since = now // self.sub, [0] * (self.x + 1), now

    def _shift(self, index: int) -> None:
        steps = max(0, index - self.index)
        self.c = (self.c + [0] * min(steps, len(self.c)))[-len(self.c) :]
        self.index += steps

    def read(self, now: int, back: int) -> None:
        self.now = now
        self.lag += back
        self._shift((now + self.lag) // self.sub)

    def earliest(self, ahead: int, cost: int = 0) -> int:
        k = ahead + cost
        if k > self.n:
            rounds, k = divmod(k - 1, self.n)
            return self.earliest(k + 1) + rounds * self.sub * self.x
        for j, leaving in enumerate(self.c):
            room = self.n - k - sum(self.c[j + 1 :])
            if room >= 0:
                since = max(0, self.sub - room * self.sub // leaving) if leaving else 0
                if since < self.sub:
                    return max(self.now, self._starts(j) + since)
        return self._starts(len(self.c))

    def _starts(self, j: int) -> int:
        """When the sub-window begins that is ``j`` after the newest."""
        return (self.index + j) * self.sub - self.lag

    def take(self, joint: int, cost: int) -> None:
        self._shift((joint + self.lag) // self.sub)
        self.c[-1] += cost
        self.newest = max(self.newest, joint + self.lag)

    @property
    def newest_at(self) -> int:
        return self.newest - self.lag

    def charge(self, more: int) -> None:
        self.c[-1] += more

    def give_back(self, at: int, less: int, back: int | None) -> None:
        j = self.x - (self.index - (at + self.lag) // self.sub)
        if 0 <= j <= self.x and at + self.lag >= self.since:
            self.c[j] = max(0, self.c[j] - less)

    def changes(self, numbers: Numbers) -> bool:
        return -(-numbers.period // numbers.extra) != self.sub

    def follow(self, numbers: Numbers, at: int, back: int) -> int:
        super().follow(numbers, at, back)
        sub = -(-self.w // self.x)
        if sub == self.sub:
            self.c = ([0] * (self.x + 1) + self.c)[-self.x - 1 :]
        else:
            used = [self.index - j for j, count in enumerate(reversed(self.c)) if count]
            self.since = max(self.since, min(used, default=self.index) * self.sub)
            at = max(at + self.lag + back, self.newest)
            self.index, self.c, self.sub = at // sub, [0] * self.x + [sum(self.c)], sub
        return back

    def state(self) -> tuple[int, int]:
        inside = self.sub - max(0, self.now - self._starts(0))
        left = floor(self.n - sum(self.c[1:]) - Fraction(self.c[0] * inside, self.sub))
        newest = max((j for j, count in enumerate(self.c) if count), default=None)
        if newest is None:
            return max(0, left), 0
        return max(0, left), self._starts(newest + 1) - self.now

    def expires(self) -> int:
        return max(self.now + self.state()[1], self._starts(0))  # what was shifted out must not be forgotten sooner


class SlidingLog(Counter):
    """Every grant with its time: at most n in any ``[s, s + w)``."""

    def changes(self, numbers: Numbers) -> bool:
        return False

    def __init__(self, numbers: Numbers, now: int) -> None:
        super().__init__(numbers, now)
        self.entries: list[tuple[int, int]] = []
        self.last, self.clock = 0, now

    def read(self, now: int, back: int) -> None:
        self.now, self.clock = now, max(now, self.now - back)  # what had left at the last write was forgotten
        self.last, self.since = self.last - back, self.since - back
        self.entries = [(time - back, weight) for time, weight in self.entries if time - back + self.w > now]

    @property
    def total(self) -> int:
        return sum(weight for _, weight in self.entries)

    def earliest(self, ahead: int, cost: int = 0) -> int:
        k = ahead + cost
        if k > self.n:
            rounds, k = divmod(k - 1, self.n)
            return self.earliest(k + 1) + rounds * self.w
        at = max(self.clock, self.last)
        over = self.total + k - self.n
        for time, weight in self.entries:
            if over <= 0:
                break
            over -= weight
            at = max(at, time + self.w)
        return at

    def take(self, joint: int, cost: int) -> None:
        self.last = max(joint, self.last)
        self.entries.append((self.last, cost))

    def charge(self, more: int) -> None:
        self.take(self.now, more)

    def give_back(self, at: int, less: int, back: int | None) -> None:
        for i, (time, weight) in enumerate(self.entries):
            if time == at >= self.since:
                self.entries[i], less = (time, weight - min(weight, less)), less - min(weight, less)

    @property
    def newest_at(self) -> int:
        return self.last

    def state(self) -> tuple[int, int]:
        return max(0, self.n - self.total), self.last + self.w - self.now if self.total else 0


class Stepped(Counter):
    """A bucket of b permits into which n come at once, every w."""

    def __init__(self, numbers: Numbers, now: int) -> None:
        super().__init__(numbers, now)
        self.tokens, self.tick, self.since = self.b, now, now

    def _refill(self, at: int) -> None:
        times = max(0, (at - self.tick) // self.w)
        self.tokens = min(self.b, self.tokens + times * self.n)
        self.tick += times * self.w

    def read(self, now: int, back: int) -> None:
        self.now = now
        self._step_back(back)
        self._refill(now)
        if self.tokens == self.b:
            self.tick = max(now, self.tick)

    def _step_back(self, back: int) -> None:
        self.tick, self.newest, self.since = self.tick - back, self.newest - back, self.since - back

    def earliest(self, ahead: int, cost: int = 0) -> int:
        short = ahead + cost - self.tokens
        return max(self.now, self.tick) if short <= 0 else self.tick + -(-short // self.n) * self.w

    def take(self, joint: int, cost: int) -> None:
        self._refill(joint)
        self.tokens -= cost
        self.newest = max(self.newest, joint)

    def charge(self, more: int) -> None:
        self.tokens -= more

    def give_back(self, at: int, less: int, back: int | None) -> None:
        if at < self.since:
            return
        refills = max(0, -((at - self.tick) // self.w))
        self.tokens = min(self.b, self.tokens + max(0, less - self.n * refills))

    def follow(self, numbers: Numbers, at: int, back: int) -> int:
        """What is missing stays missing, no more is left than was, and the new pace begins now."""
        self._step_back(back)
        self._refill(at)
        left = self.tokens
        if self.tick > at:
            ahead = self.tick - at
            came = min(self.b, -(-ahead // self.w) * self.n)
            left = min(left, left - came + ahead // numbers.period * numbers.count)
        elif self.tick + numbers.period <= at:
            self.tick = at
        self.tokens, self.since = min(left, left + numbers.burst - self.b), at
        super().follow(numbers, at, 0)
        return 0

    def state(self) -> tuple[int, int]:
        return max(0, self.tokens), self.expires() - self.now if self.tokens < self.b else 0

    def expires(self) -> int:
        return self.tick + -((self.tokens - self.b) // self.n) * self.w


class WarmUp(Counter):
    """Guava's SmoothWarmingUp with a cold factor of 3: the colder, the slower; each call waits for the one before."""

    def __init__(self, numbers: Numbers, now: int) -> None:
        super().__init__(numbers, now)
        self._reckon()
        self.stored, self.next = self.most, now
        self.taken: Taken = ()

    def _reckon(self) -> None:
        self.stable = self.w / self.n
        self.threshold = 0.5 * self.x / self.stable
        self.most = self.threshold + 2 * self.x / (4 * self.stable)
        self.slope = 2 * self.stable / (self.most - self.threshold)
        self.cool = self.x / self.most

    def changes(self, numbers: Numbers) -> bool:
        return (numbers.count, numbers.period, numbers.extra) != (self.n, self.w, self.x)

    def follow(self, numbers: Numbers, at: int, back: int) -> int:
        """As cold as before, in proportion; what is to be paid is so many permits."""
        self.next, self.newest = self.next - back, self.newest - back
        self._rest(at)
        stable, most = self.stable, self.most
        super().follow(numbers, at, 0)
        self._reckon()
        self.stored, self.taken = self.stored * self.most / most, ()
        if self.next > at:
            self.next, _ = moved(at, self.newest, self.next, self.stable / stable, self.b * self.stable)
        return 0

    def _rest(self, until: int) -> None:
        if until > self.next:
            self.stored = min(self.most, self.stored + (until - self.next) / self.cool)
            self.next = until

    def _spend(self, k: float) -> float:
        above, time = self.stored - self.threshold, 0.0
        if above > 0:
            n = min(above, k)
            time = n * ((self.stable + above * self.slope) + (self.stable + (above - n) * self.slope)) / 2
            k = k - n
        return time + self.stable * k

    def read(self, now: int, back: int) -> None:
        self.now = now
        self.next, self.newest = self.next - back, self.newest - back
        self.taken = tuple((at - back, price) for at, price in self.taken) if self.next > now else ()
        self._rest(now)

    def earliest(self, ahead: int, cost: int = 0) -> int:
        return max(self.now, self.next + ceil(self._spend(ahead)))

    def take(self, joint: int, cost: int) -> None:
        self._rest(joint)
        self.newest = max(self.newest, joint)
        self._pay(joint, cost)

    def charge(self, more: int) -> None:
        self._pay(self.now, more)

    def _pay(self, at: int, permits: int) -> None:
        self.taken += ((at, Fraction(permits * self.w, self.n)),)
        self.next += ceil(self._spend(permits))
        self.stored = self.stored - min(self.stored, permits)

    def give_back(self, at: int, less: int, back: int | None) -> None:
        price = Fraction(less * self.w, self.n)
        self.taken = without(self.taken, at, price)
        self.next -= came_back(back, price, self.next, lawful(self.now, self.taken))

    def state(self) -> tuple[int, int]:
        reset = max(0, self.next - self.now) + ceil((self.most - self.stored) * self.cool)
        return self.b if self.next <= self.now else 0, reset


COUNTERS: Mapping[str, type[Counter]] = {
    "fixed_window": FixedWindow,
    "sliding_window": SlidingWindow,
    "sliding_log": SlidingLog,
    "stepped_bucket": Stepped,
    "warm_up": WarmUp,
}


@dataclass
class Counted:
    """A bucket as it is kept: what was taken, and the line: ``waiting`` permits, ``slots`` id -> when it is due.

    The slots mean something only while a request is known to wait, and expire by themselves.
    """

    counter: Counter | None = None
    written: int = 0
    expires: int = 0
    waiting: int = 0
    slots: dict[str, int] = field(default_factory=dict)
    slots_expire: int = 0

    def expire(self, now: int) -> bool:
        """Whether nothing is left."""
        if self.expires <= now:
            self.counter = None
        if self.slots_expire <= now:
            self.slots = {}
        return self.counter is None and not self.slots

    def leave(self, id: str, cost: int) -> None:
        del self.slots[id]
        self.waiting = max(0, self.waiting - cost)
        if not self.waiting:
            self.slots = {}


class CountedView:
    """One demand on one bucket at one instant: when it could be granted, and where its request stands in the line.

    ``slot`` is when the request itself is due; ``overdue`` is whose place it may take; ``ahead`` are the permits of
    the requests before it.
    """

    full = False
    paused = 0
    patience: int | None = None
    first: int | None = None

    def __init__(
        self, demand: LimitRequest, kept: Counted | None, now: int, id: str, void: int = 0, since: int = 0
    ) -> None:
        numbers = self.numbers = Numbers.of(demand)
        self.demand, self.cost, self.now, self.id = demand, numbers.cost, now, id
        self.bucket = bucket = deepcopy(kept or Counted())
        # Slots that mean nothing any more: from before a step back of the clock, or before `void`.
        self.stepped_back = bucket.counter is not None and (lost(bucket.written, now) > 0 or bucket.written < void)
        if bucket.counter is None:
            bucket.counter, bucket.written, bucket.waiting = COUNTERS[numbers.algorithm](numbers, now), now, 0
        self.counter = bucket.counter
        back, changed = lost(bucket.written, now), False
        if (self.counter.n, self.counter.w, self.counter.b, self.counter.x) != (
            *(numbers.count, numbers.period, numbers.burst, numbers.extra),
        ):
            changed = self.counter.changes(numbers)
            back, changed = self.counter.follow(numbers, changed_at(since, bucket.written, now), back), changed
        self.counter.read(now, back)
        if self.stepped_back or max(bucket.slots.values(), default=-GRACE - 1) + GRACE < now:
            bucket.waiting = 0
        self.stepped_back = self.stepped_back or changed
        self.slot: int | None = None
        self.overdue: str | None = None
        self.ahead = self._ahead() if bucket.waiting else 0
        self.earliest = self._behind_all(now) if self.ahead else max(now, self.counter.earliest(0, self.cost))
        self.behind = self.ahead > 0 and self.earliest > now

    def begin_used_up(self, numbers: Numbers, at: int) -> None:
        """Another algorithm has written the state: all that the bucket holds counts as taken at ``at``."""
        self.counter = self.bucket.counter = type(self.counter)(numbers, at)
        self.counter.take(at, numbers.burst)
        self.counter.since = at + 1
        self.counter.read(self.now, 0)
        self.earliest = max(self.now, self.counter.earliest(0, self.cost))
        self.stepped_back = True

    def _ahead(self) -> int:
        slots, waiting = self.bucket.slots, self.bucket.waiting
        self.slot = slots.get(self.id) if self.id else None
        if self.slot is not None:
            return 0
        due, first = min((slot, id.encode()) for id, slot in slots.items())
        self.first = due
        if due + GRACE < self.now:
            self.overdue = first.decode()
            return 0
        usual, later = -(-waiting // len(slots)), [slot for slot in slots.values() if slot > self.now]
        before = usual * (len(slots) - len(later))
        gap = later and self.counter.earliest(before, self.cost) <= self.now
        return 0 if gap and self.counter.earliest(before + self.cost, usual) <= min(later) else waiting

    def commit(self, joint: int) -> None:
        self.counter.take(joint, self.cost)
        gone = self.id if self.slot is not None else self.overdue
        if gone is not None:
            self.bucket.leave(gone, self.cost)

    def _behind_all(self, at: int) -> int:
        """When it is its turn; requests that wait for other limits too may leave room before them."""
        bucket = self.bucket
        slot, last = self.counter.earliest(bucket.waiting, self.cost), max(bucket.slots.values(), default=0)
        if not bucket.waiting or last <= slot:
            return max(at, slot)
        return min(max(at, last), self._between(at, last))

    def _between(self, at: int, last: int) -> int:
        """Between the others: as many before each as can go by then, and no more than a period allows around it."""
        slots = sorted(self.bucket.slots.values())
        each = -(-self.bucket.waiting // len(slots))
        span, most = self.numbers.period, max(1, self.numbers.count // each)
        if isinstance(self.counter, WarmUp):
            span, most = ceil(self.cost * self.numbers.period / self.numbers.count), 1
        for _ in range(8):
            before = sum(slot <= at for slot in slots)
            soonest = self.counter.earliest(before * each, self.cost)
            if soonest <= at and before >= most:
                soonest = slots[before - most] + span
            if soonest <= at:
                if before + most > len(slots) or slots[before + most - 1] >= at + span:
                    return at
                soonest = slots[before + most - 1]
            at = soonest
        return max(at, last)

    def fits(self, joint: int, waits: bool) -> bool:
        if self.slot is not None and self.slot <= self.now + SOON:
            return True
        if waits and joint > self.earliest:
            return False
        return not self.bucket.waiting or self.first is None or self.overdue is not None or joint <= self.first

    def place(self, at: int, last: bool = False) -> int:
        """The earliest slot from ``at`` on; ``last``: behind all."""
        bucket = self.bucket
        if self.slot is not None and self.slot > self.now and self.slot >= at:
            return self.slot
        if self.slot is not None:
            mine = (self.slot, self.id.encode())
            rank = sum((slot, id.encode()) < mine for id, slot in bucket.slots.items())
            return max(at, self.counter.earliest(bucket.waiting * rank // len(bucket.slots), self.cost))
        if last:
            end = max(bucket.slots.values(), default=0) if bucket.waiting else 0
            return max(at, self.counter.earliest(bucket.waiting, self.cost), end)
        return self._behind_all(at)

    def claim(self, at: int) -> bool:
        """Keeps the slot. False: it stood there already."""
        bucket = self.bucket
        if at == self.slot:
            return False
        if not bucket.waiting:
            bucket.slots = {}
        bucket.slots[self.id] = at
        if self.slot is None:
            bucket.waiting += self.cost
        bucket.slots_expire = self.now + up(max(bucket.slots.values()) + GRACE - self.now)
        return True

    def reserve(self, joint: int, latest: int) -> tuple[int, bool]:
        """The slot that is proposed, and whether it was kept."""
        if self.slot is not None and self.slot > self.now:
            return max(self.slot, joint), False  # it came early: its slot stands
        slot = self.place(joint)
        return slot, bool(self.id) and slot <= latest and self.claim(slot)

    def charge(self, more: int) -> None:
        self.counter.charge(more)

    def give_back(self, at: int, less: int, back: int | None) -> bool:
        self.counter.give_back(at, less, back)
        return True

    def state(self) -> tuple[int, int]:
        return self.counter.state()

    def written(self) -> Counted:
        """The bucket as it is kept from now on."""
        bucket = self.bucket
        last = max(bucket.slots.values() if bucket.waiting else (), default=self.now - GRACE)
        until = max(self.counter.expires(), last + GRACE, self.now)
        bucket.written, bucket.expires = self.now, self.now + up(until - self.now + STEP)
        return bucket
