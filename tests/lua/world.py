"""The store and the model side by side: every call goes to both."""

from __future__ import annotations

from collections.abc import Sequence

import redis

from celery_ratelimit import Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.asking import decide
from tests.conftest import START

from .frozen import FROZEN_STORE
from .model import Answer, Model


class World:
    """A frozen store that several processes ask (here: limiters with connections of their own), and the model."""

    def __init__(self, url: str, processes: int = 3) -> None:
        self.store = redis.Redis.from_url(url, decode_responses=True)
        self.clients = [redis.Redis.from_url(url) for _ in range(processes)]
        self.limiters = [
            Limiter(client, lowest_first=True, replace_includes={"now": FROZEN_STORE}) for client in self.clients
        ]
        self.begin()

    def begin(self) -> None:
        """Empty both."""
        self.store.flushall()
        self.model = Model(START)
        self.set(START)

    def set(self, now: int) -> None:
        self.model.now = now
        self.store.set("test:clock", now)

    def acquire(
        self, demands: Sequence[LimitRequest], id: str = "", horizon: int = 0, claim: int = 0, process: int = 0
    ) -> tuple[Answer, Answer]:
        """What the Lua answers and what the model answers; times in microseconds, as the script takes them."""
        limiter = self.limiters[process]
        decision = decide(limiter, "acquire", demands, id, horizon, claim)
        return Answer.of(decision), self.model.acquire(demands, id, horizon, claim)

    def peek(self, demands: Sequence[LimitRequest], process: int = 0) -> tuple[Answer, Answer]:
        limiter = self.limiters[process]
        return Answer.of(decide(limiter, "peek", demands, "")), self.model.peek(demands)

    def forget(self, demands: Sequence[LimitRequest], id: str) -> None:
        self.limiters[0]._asker.forget(demands, id=id)
        self.model.forget(demands, id)

    def close(self) -> None:
        for client in (self.store, *self.clients):
            client.close()
