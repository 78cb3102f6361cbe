"""Callers that always wait for their turn, on a clock that stands still between two of them.

Each asks, sleeps for exactly what the answer says, and maybe a little longer, uses its permit when that is good, and
asks anew, as another request.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from celery_ratelimit import Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.conftest import START, Clock

from .frozen import us

SECOND = 1_000_000


@dataclass
class Group:
    """So many callers that ask the same. ``came`` and ``starts``: when, in us, each came, and its permit was good."""

    demands: tuple[LimitRequest, ...]
    callers: int
    starts: list[int] = field(default_factory=list)
    came: list[int] = field(default_factory=list)


@dataclass
class Caller:
    group: Group
    number: int
    round: int = 0
    came: int = 0
    granted: bool = False

    @property
    def id(self) -> str:
        return f"{self.number}.{self.round}"


def play(
    limiter: Limiter,
    clock: Clock,
    groups: Sequence[Group],
    seconds: float,
    *,
    horizon: float = 1.0,
    late: int = 0,
    seed: int = 1,
) -> int:
    """Returns how often the store was asked. ``late``: us, at most, by which a caller wakes up too late."""
    random, end = Random(seed), START + us(seconds)
    callers = [Caller(group, 0) for group in groups for _ in range(group.callers)]
    random.shuffle(callers)
    wakes: list[tuple[int, int]] = []
    for number, caller in enumerate(callers):
        caller.number = number
        heapq.heappush(wakes, (START + random.randrange(10_000), number))
    asked = 0
    while wakes[0][0] <= end:
        now, number = heapq.heappop(wakes)
        caller = callers[number]
        if caller.granted or not caller.came:
            caller.round, caller.came, caller.granted = caller.round + 1, now, False
        clock.set(now)
        decision = limiter._asker.ask(caller.group.demands, id=caller.id, horizon=horizon, claim=1e6)
        asked += 1
        wait = us(decision.retry_after)
        assert decision.allowed or wait > 0, "a refusal that says to come back at once"
        if decision.allowed:
            caller.granted = True
            caller.group.starts.append(now + wait)
            caller.group.came.append(caller.came)
        heapq.heappush(wakes, (now + wait + (random.randrange(late + 1) if late else 0), number))
    return asked
