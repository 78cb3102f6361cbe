"""Are forecasts right? Fifty backlogs of all kinds, on a clock that is moved: what was said, and what came.

    python -m benchmarks.forecasts [--backlogs 50] [--seed 1] [--verbose]

The scripts are the real ones, and so is what ``explain`` says; modelled are the workers. They take what leaves the
lots, hold it in its order, and start it with a permit when one of their processes is free. Five parked tasks of each
backlog are explained at several times. A number is right if the task starts within its ±; where a task cannot start
(no worker, a pause without an end, a share of weight 0) there has to be none.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import redis
from celery import Celery

from celery_ratelimit import Concurrency, Limit, ParkingLots, RateLimitedTask
from celery_ratelimit.app.app_store import limiter_of
from celery_ratelimit.backlog.backlog import backlog_of
from celery_ratelimit.counts.tally import Tally
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.report_counts import tell_counts
from celery_ratelimit.limiter.script_calls import LeasesToRelease
from celery_ratelimit.limits.any_limit import AnyLimit
from celery_ratelimit.operations.forecast import MIN_WINDOW, REPORTED_AFTER
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.conftest import START
from tests.lua.frozen import FROZEN_STORE
from tests.shop import park

KINDS = ("rate", "keys", "keys with settings", "fair", "places", "paused", "starved", "starved keys", "never")
#: Seconds between two polls of a worker; after which tasks are explained, from the beginning of a backlog; and for how
#: long tasks start.
POLL, ASKED_AT, LONGEST = 0.2, (3.0, 8.0, 15.0, 25.0, 40.0), 400.0
US, NEVER = 1_000_000, 10**12
#: Seconds until a backlog is old enough for a measurement of its fleet.
YOUNG = MIN_WINDOW + REPORTED_AFTER


@dataclass
class Backlog:
    """What is parked at the beginning, and the fleet that works on it.

    Attributes:
        sizes: tasks by key and share.
        seconds: that a task runs.
        settings: calls of the limiter's methods, before anything is explained.
        never: prefix of the tasks' ids that cannot start.
    """

    kind: str
    limit: AnyLimit
    sizes: Mapping[tuple[str, str | None], int]
    processes: int = 1000
    seconds: float = 0.0
    cost: int = 1
    settings: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    has_worker: bool = True
    never: str | None = None


def backlogs(chance: random.Random) -> Iterator[Backlog]:
    """Without an end, each kind in its turn."""
    for kind in itertools.cycle(KINDS):
        rate = chance.choice([2, 5, 10, 20, 40])
        number = rate * chance.randint(12, 50)
        one = {("", None): number}
        keys = {(f"k{n}", None): chance.randint(5, 25 * rate) for n in range(chance.randint(2, 8))}
        keyed = Limit(f"{rate}/s", name="api", key="{key}")
        match kind:
            case "rate":
                burst, cost = chance.choice([1, 10]), chance.choice([1, 3])
                yield Backlog(kind, Limit(f"{rate}/s", burst=max(burst, cost), name="api"), one, cost=cost)
            case "keys":
                yield Backlog(kind, keyed, keys)
            case "keys with settings":
                settings: list[Any] = [("pause", ("api", chance.randint(5, 60)), {"key": "k0"})]
                settings.append(("set_rate", ("api", f"{chance.randint(1, 3 * rate)}/s"), {"key": "k1"}))
                yield Backlog(kind, keyed, keys, settings=settings)
            case "fair":
                shares = {("", f"s{n}"): chance.randint(10, 10 * rate) for n in range(chance.randint(2, 8))}
                weights = {"s0": chance.choice([0.5, 2.0, 4.0])}
                yield Backlog(kind, Limit(f"{rate}/s", name="api", fair="{key}", weights=weights), shares)
            case "places":
                places = chance.randint(2, 10)
                yield Backlog(kind, Concurrency(places, name="api"), {("", None): 40 * places}, seconds=1.0)
            case "paused":
                yield Backlog(kind, keyed, keys, settings=[("pause", ("api", chance.randint(5, 60)), {})])
            case "starved":
                yield Backlog(kind, Limit(f"{rate}/s", name="api"), one, processes=max(1, rate // 4), seconds=1.5)
            case "starved keys":
                processes = max(1, rate * len(keys) // chance.randint(4, 8))
                yield Backlog(kind, keyed, keys, processes=processes, seconds=2.0)
            case "never":
                yield chance.choice(
                    [
                        Backlog("no worker", keyed, keys, has_worker=False, never=""),
                        Backlog("paused for ever", keyed, keys, settings=[("pause", ("api", 1e9), {})], never=""),
                        Backlog(
                            "key paused for ever",
                            keyed,
                            keys,
                            settings=[("pause", ("api", 1e9), {"key": "k1"})],
                            never="api-k1-",
                        ),
                        Backlog(
                            "weight 0",
                            Limit(f"{rate}/s", name="api", fair="{key}"),
                            {("", "s0"): number, ("", "s1"): number},
                            settings=[("set_weight", ("api", "s0", 0), {})],
                            never="api-s0-",
                        ),
                    ]
                )


class Fleet:
    """A backlog that is worked on, and what was said of its tasks."""

    def __init__(self, server: EmbeddedServer, backlog: Backlog, chance: random.Random) -> None:
        self._store = redis.Redis.from_url(server.url)
        self._store.flushall()
        self.backlog, self._chance = backlog, chance
        self._app = app = Celery("forecasts", broker=server.url, set_as_current=False)
        app.conf.ratelimit_url = server.url
        app.task(name="call", base=RateLimitedTask, limits=backlog.limit, shared=False)(_call)
        self._asker: Any = limiter_of(app)._asker
        self._asker.replace_includes = {"now": FROZEN_STORE}
        for script in vars(self._asker.core.scripts).values():
            script._replace = self._asker.replace_includes
        self._move(0)
        self.ids: list[str] = []
        self.started: dict[str, float] = {}
        self.said: list[tuple[str, float, float | None, float, str]] = []
        self._held: list[tuple[int, int, str, str]] = []
        self._asked: list[tuple[int, int, str, str]] = []
        self._ends: list[tuple[int, str, int, LimitRequest]] = []
        self._numbers, self._tally = itertools.count(), Tally()

    def _move(self, to: int) -> None:
        self.now = to
        self._store.set("test:clock", START + to)

    def run(self) -> None:
        one, limiter = self.backlog, limiter_of(self._app)
        for (key, share), number in one.sizes.items():
            for first in range(0, number, 200):
                ids = [f"api-{share or key}-{n}" for n in range(first, min(number, first + 200))]
                self.ids += park(self._app, "api", 0, ids=ids, key=key, share=share, task="call", cost=one.cost)
        for verb, arguments, how in one.settings:
            getattr(limiter, verb)(*arguments, **how)
        if not one.has_worker:
            backlog_of(self._app).register.attend("w1", [], ["celery"], 0.0)
        polls, asked = 0, list(ASKED_AT)
        may_start = [id for id in self.ids if one.never is None or not id.startswith(one.never)]
        while self.now < LONGEST * US and (asked or len(self.started) < len(may_start)):
            poll = round(polls * POLL * US)
            if one.has_worker:
                while (at := self._next_start()) <= poll:
                    self._move(max(self.now, at))
                    self._start()
            self._move(poll)
            if one.has_worker:
                self._poll(polls)
            if asked and poll >= asked[0] * US:
                del asked[0]
                self._explain()
            polls += 1

    def _next_start(self) -> int:
        """When a task that has a process asks for its permit again, or another one has its turn and a process."""
        again = self._asked[0][0] if self._asked else NEVER
        if not self._held:
            return again
        is_full = len(self._ends) + len(self._asked) >= self.backlog.processes
        free = self._ends[0][0] if is_full and self._ends else NEVER if is_full else 0
        return min(again, max(self._held[0][0], free))

    def _start(self) -> None:
        self._end()
        waiting = self._asked if self._asked and self._asked[0][0] <= self.now else self._held
        _, number, id, key = heapq.heappop(waiting)
        demand = LimitRequest(self.backlog.limit, "api", key, self.backlog.cost)
        decision = self._asker.ask([demand], id=id, claim=600.0)
        if not decision:
            again = self.now + max(1, round(decision.retry_after * US))
            if isinstance(self.backlog.limit, Concurrency) and self._ends:
                again = min(again, self._ends[0][0])  # the release of a permit wakes who waits for it
            heapq.heappush(self._asked, (again, number, id, key))
            return
        self.started[id.partition("~")[0]] = self.now / US
        self._tally.started("waited", [("api", "", self.backlog.cost)], 1.0)
        seconds = self.backlog.seconds * self._chance.uniform(0.7, 1.3)
        heapq.heappush(self._ends, (self.now + round(seconds * US), id, START + self.now, demand))

    def _end(self) -> None:
        while self._ends and self._ends[0][0] <= self.now:
            _, id, since, demand = heapq.heappop(self._ends)
            if isinstance(self.backlog.limit, Concurrency):
                self._asker.release([LeasesToRelease(id, [demand], since)])

    def _poll(self, polls: int) -> None:
        parking, limit = backlog_of(self._app), self.backlog.limit
        self._end()
        if polls % 10 == 0:
            parking.register.attend("w1", ["celery"], [], 6.0)
            parking.register.seen(["api"])
        if polls % 5 == 0:
            self._asker.drive(tell_counts(self._asker.core, self._tally.take()))
        while due := parking.due(["api"]):
            for looked in parking.take_due([LimitRequest(limit, *bucket) for bucket in due], due=True):
                for parked in looked.leaving:
                    turn = self.now + round(parked.wait * US), next(self._numbers), parked.id, looked.bucket[1]
                    heapq.heappush(self._held, turn)
                parking.published({looked.bucket: looked.leaving})

    def _explain(self) -> None:
        lots, left = ParkingLots(self._app), {id.partition("~")[0] for *_, id, _ in (*self._held, *self._asked)}
        parked = [id for id in self.ids if id not in self.started and id not in left]
        for id in self._chance.sample(parked, min(5, len(parked))):
            forecast = lots.explain(id).forecast
            if forecast is not None:
                self.said.append(
                    (id, self.now / US, forecast.seconds, forecast.band, forecast.limited_by or forecast.reason)
                )


def _call(key: str = "") -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backlogs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="each forecast that was wrong")
    options = parser.parse_args()
    chance, right, wrong = random.Random(options.seed), Counter[str](), Counter[str]()
    silent, later, unfounded, rightly_silent = Counter[str](), Counter[bool](), 0, 0
    with embedded_server() as server:
        for backlog in itertools.islice(backlogs(chance), options.backlogs):
            fleet = Fleet(server, backlog, chance)
            fleet.run()
            for id, at, seconds, band, why in fleet.said:
                cannot = backlog.never is not None and id.startswith(backlog.never)
                if cannot:
                    unfounded += seconds is not None
                    rightly_silent += seconds is None
                elif seconds is None:
                    silent[backlog.kind] += 1
                else:
                    start = fleet.started.get(id, LONGEST)
                    off = start - at - seconds
                    is_right = abs(off) <= band
                    (right if is_right else wrong)[backlog.kind] += 1
                    later[is_right] += at >= YOUNG
                    if options.verbose and not is_right:
                        print(
                            f"{backlog.kind}: {id} at {at:.0f} s: {seconds:.1f} ± {band:.1f} s, off {off:+.1f} s; {why}"
                        )
    for kind in dict.fromkeys([*right, *wrong, *silent]):
        told = right[kind] + wrong[kind]
        print(f"{kind:20} {told:4} forecasts, {right[kind] / max(1, told):6.1%} right; {silent[kind]} not known yet")
    told = right.total() + wrong.total()
    print(f"all of {options.backlogs} backlogs: {right.total()} of {told} within their ±: {right.total() / told:.1%}")
    print(f"from {YOUNG:.0f} s on: {later[True]} of {later.total()}: {later[True] / later.total():.1%}")
    print(f"tasks that cannot start: no number for {rightly_silent}, a number for {unfounded}")


if __name__ == "__main__":
    main()
