"""A model of the virtual queue: what a limit in shadow would have each request wait, in order of arrival.

Times are microseconds; of a bucket that is one time only, exact fractions.
"""

from __future__ import annotations

from fractions import Fraction

from celery_ratelimit import Limit


class Queue:
    """One bucket, under one rule after the other."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.last = Fraction(0)
        self._begin(limit)

    def _begin(self, limit: Limit) -> None:
        self.limit = limit
        self.interval = Fraction(limit.parsed.period_us, limit.parsed.count)
        self.tat = Fraction(0)
        self.log: list[tuple[Fraction, int]] = []
        self.window, self.used = Fraction(0), 0
        self.tokens, self.tick = limit.burst, Fraction(0)

    @property
    def _by_time(self) -> bool:
        return self.limit.method in ("token_bucket", "leaky_bucket")

    def change(self, limit: Limit, at: int) -> None:
        """Another rule is in force."""
        before, was_by_time, tat, last = self.interval, self._by_time, self.tat, self.last
        self._begin(limit)
        factor = self.interval / before
        both = was_by_time and self._by_time
        self.tat = at + (tat - at) * factor if both and tat > at else Fraction(0)
        self.last = Fraction(0)
        if last <= at:
            return
        self.last = at + (last - at) * factor
        if both:
            return
        if self._by_time:
            self.tat = self.last + limit.burst * self.interval
        elif limit.method == "sliding_log":
            self.log = [(self.last, limit.size)]
        elif limit.method == "fixed_window":
            self.window = self._window_of(self.last)
            self.used = limit.size
        else:
            self.tick, self.tokens = self.last, 0

    def ask(self, at: int, cost: int, paused: int = 0) -> Fraction | None:
        """When a request that comes then has its turn; ``None``: there is no room to wait."""
        start = max(Fraction(at), self.last, Fraction(paused))
        turn = getattr(self, "_" + self.limit.method)(start, cost, max(at, paused))
        if turn is not None:
            self.last = turn
        return turn

    def _token_bucket(self, start: Fraction, cost: int, at: int) -> Fraction:
        need = max(1, cost - self.limit.debt) if self.limit.debt else cost
        turn = max(start, self.tat + (need - self.limit.burst) * self.interval)
        self.tat = max(self.tat, turn) + cost * self.interval
        return turn

    def _leaky_bucket(self, start: Fraction, cost: int, at: int) -> Fraction | None:
        turn = max(start, self.tat)
        if self.limit.capacity is not None and turn - at > self.limit.capacity * self.interval:
            return None
        self.tat = turn + self.interval
        return turn

    def _sliding_log(self, start: Fraction, cost: int, at: int) -> Fraction:
        turn, period = start, self.limit.parsed.period_us
        while sum(n for t, n in self.log if t > turn - period) + cost > self.limit.size:
            turn = min(t for t, _ in self.log if t > turn - period) + period
        self.log = [(t, n) for t, n in self.log if t > turn - period] + [(turn, cost)]
        return turn

    def _window_of(self, at: Fraction) -> Fraction:
        return at - at % self.limit.parsed.period_us

    def _fixed_window(self, start: Fraction, cost: int, at: int) -> Fraction:
        if self._window_of(start) > self.window:
            self.window, self.used = self._window_of(start), 0
        if self.used + cost > self.limit.size:
            self.window, self.used = self.window + self.limit.parsed.period_us, 0
        self.used += cost
        return max(start, self.window)

    def _stepped_bucket(self, start: Fraction, cost: int, at: int) -> Fraction:
        period, count = self.limit.parsed.period_us, self.limit.parsed.count
        if start >= self.tick + period:
            steps = (start - self.tick) // period
            self.tokens, self.tick = min(self.limit.burst, self.tokens + steps * count), self.tick + steps * period
        if self.tokens == self.limit.burst:
            self.tick = max(self.tick, start)
        while self.tokens < cost:
            self.tokens, self.tick = self.tokens + count, self.tick + period
        self.tokens -= cost
        return max(start, self.tick)
