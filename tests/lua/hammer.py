"""What the processes of ``test_processes`` run. A module of its own, so that a spawned process can import it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import redis

from celery_ratelimit import Limiter
from celery_ratelimit.limiter import Demand

from .model import Answer

#: The store's own clock; besides, every call of a script is written down, in the order in which they ran.
LOGGED_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('RPUSH', 'test:log', string.format('%.0f %s', now, ARGV[1]))
"""


class Call(NamedTuple):
    """A call as the store saw it."""

    now: int
    id: str


@dataclass(frozen=True)
class Asked:
    """A call as its caller saw it; what it asked, and what it was told."""

    id: str
    horizon: int
    claim: int
    answer: Answer


def limiter_on(url: str) -> Limiter:
    return Limiter(redis.Redis.from_url(url), replace_includes={"now": LOGGED_NOW})


def ask_for(limiter: Limiter, wanted: list[Demand], name: str, seconds: float) -> list[Asked]:
    """Ask again and again, now without patience, now keeping a slot and returning to it, now taking ahead."""
    asked: list[Asked] = []
    end = time.monotonic() + seconds
    number, waiting = 0, ""
    while time.monotonic() < end:
        number += 1
        id = waiting or f"{name}-{number}"
        # Every third request keeps a slot if it is refused, every fifth may take a permit 8 ms ahead.
        claim = 1_000_000 if number % 3 == 0 or waiting else 0
        horizon = 8_000 if number % 5 == 0 else 0
        reply = limiter._run(limiter._acquire, wanted, id, horizon, claim)
        answer = Answer.of(limiter._decision(wanted, reply))
        asked.append(Asked(id, horizon, claim, answer))
        waiting = id if claim and not answer.allowed else ""
        if waiting and number % 2:
            time.sleep(min(answer.wait, 20_000) / 1e6)
    return asked


def log_of(store: redis.Redis) -> list[Call]:
    """The calls in the order in which the store ran them."""
    return [Call(int(now), id) for now, id in (line.split(" ", 1) for line in store.lrange("test:log", 0, -1))]
