"""Very many tasks that share one limit: how long one script keeps the store at the most.

    python -m benchmarks.fair_lots [--tasks 1000000] [--shares 100000] [--calls 1000]

So many tasks are parked in one lot by so many shares. Then more are parked, one by one and by the dozen; of ten it is
asked when they have their turn; and tasks are let out: as many as one script may, one a script, after sixty weights
were changed, with a thousand shares held back, and where tasks were parked by workers that know no shares. Of each: the
longest script (SLOWLOG), which is longer where others use the machine; and of the CPU time of the server's main thread
(Linux only) the median, the most, and how many calls took more than five milliseconds of it. A call that lets tasks out
also says that they are at the broker. ``RATELIMIT_TEST_SERVER`` names another server.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import redis

from benchmarks.lots import NOTED
from celery_ratelimit import Limit, Limiter
from celery_ratelimit.backlog.backlog import Backlog, ToPark
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.testing import embedded_server

BUCKET, AT_ONCE, LONG = ("bench", ""), 100, 5.0
KEYS = "ratelimit:v1:{bench}::"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--shares", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=1000)
    options = parser.parse_args()
    with embedded_server() as server, redis.Redis.from_url(server.url) as client:
        Lot(client, server.url, options.shares).measure(options.tasks, options.calls)


class Lot:
    def __init__(self, client: Any, url: str, shares: int) -> None:
        self.client, self.shares = client, shares
        self.limiter = Limiter.from_url(f"{url}?socket_timeout=60")
        self.parking = Backlog(self.limiter, "bench", 3600)
        self.numbers = itertools.count()
        self.pid = client.info("server")["process_id"]

    def measure(self, tasks: int, calls: int) -> None:
        began = time.monotonic()
        while self.client.zcard(f"{KEYS}parked@bench") < tasks:
            self.park(AT_ONCE)
        used = self.client.info("memory")["used_memory"]
        print(f"{tasks:,} tasks of {self.shares:,} shares, {time.monotonic() - began:.0f} s, {used / 1e6:,.0f} MB")
        self.show("parked one by one", calls, lambda: self.park(1))
        self.show("parked by the dozen", calls, lambda: self.park(12))
        fast, slow = self.demand("1000/s"), self.demand("1/2s")
        some = [f"{each}@q" for each in range(0, tasks, max(1, tasks // 10))]
        self.show("forecasts, ten", 1, lambda: [self.parking.contents.position(BUCKET, id) for id in some])
        self.show("let out, as many as may", calls, lambda: self.look(fast))
        self.show("let out, one a look", calls, lambda: self.look(slow))
        for number in range(60):
            self.limiter.set_weight(fast.limit, f"t{number}", 1 + number % 7)
        self.show("after 60 changes of weight", calls, lambda: self.look(fast))
        for number in range(1000):
            self.limiter.set_weight(fast.limit, f"t{number}", 0)
        self.show("1,000 are held back", calls, lambda: self.look(fast))
        for number in range(1000):
            self.limiter.set_weight(fast.limit, f"t{number}", None)
        self.show("they are let go", calls, lambda: self.look(fast))
        for _ in range(20):
            self.park(AT_ONCE, shared=False)
        self.show("2,000 that have no share", calls, lambda: self.look(fast))

    def demand(self, rate: str) -> LimitRequest:
        limit = Limit(rate, name="bench", fair="{tenant}", weights={"t1": 2, "t2": 3})
        return LimitRequest(limit, "bench")

    def park(self, number: int, *, shared: bool = True) -> None:
        self.parking.park({BUCKET: list(self.some(number, shared))})

    def some(self, number: int, shared: bool) -> Iterator[ToPark]:
        for each in itertools.islice(self.numbers, number):
            parcel = {"id": f"{each}", "to": "q", "body": "x" * 300, "headers": {"id": f"{each}"}, "properties": {}}
            share = f"t{each * 7919 % self.shares}" if shared else None
            yield ToPark(f"{each}@q", 1, json.dumps(parcel), 1, "t", task=f"{each}", queue="q", share=share)

    def look(self, asked: LimitRequest) -> None:
        """What has left is at the broker, and has started: its slot is free again."""
        self.client.delete(f"{KEYS}state", f"{KEYS}slots")
        (looked,) = self.parking.take_due([asked])
        self.parking.published({BUCKET: looked.leaving})

    def show(self, what: str, calls: int, call: Callable[[], None]) -> None:
        self.client.config_set("slowlog-log-slower-than", NOTED)
        self.client.config_set("slowlog-max-len", 10 * calls)
        self.client.slowlog_reset()
        used = []
        for _ in range(calls):
            before = self.cpu()
            call()
            used.append((self.cpu() - before) / 1e6)
        noted = [each["duration"] for each in self.client.slowlog_get(10 * calls) if each["command"][:4] == b"EVAL"]
        longest = max(noted, default=NOTED) / 1e3
        print(
            f"  {what:<28} longest script {longest:5.2f} ms; CPU: median {median(used):.2f} ms, "
            f"most {max(used):.2f} ms, {sum(each > LONG for each in used)} of {calls:,} above {LONG:g} ms",
            flush=True,
        )

    def cpu(self) -> int:
        """Nanoseconds that the server's main thread has used."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text().split()[0])


if __name__ == "__main__":
    main()
