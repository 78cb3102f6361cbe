"""Scenario ``cluster``: what a decision costs on a cluster of three masters, against a bare ``INCR`` there.

Three limits whose names share a hash tag are one script; three of three tags are three, on three nodes, sent at once.
Both are beside a decision of one limit, and bare commands on the same client, which is redis-py's: for each of them it
looks for the node and takes a connection from a pool, where the limiter keeps one for each node.

*contended* is what many callers get who share limits of three tags: the share of the rate that was used, the most
permits beyond the rate, and the scripts a decision, refusals too. What is given half-way is given back; this says how
much is lost by it.

Times are taken as in the scenario ``acquire``.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from benchmarks.acquire import WIDE, Contender, measure, row
from benchmarks.servers import Cluster, cluster
from celery_ratelimit import Limit, Limiter

BASE = "INCR, our client, on the cluster"
ONE_TAG = "celery_ratelimit, three limits of one tag, one decision"
THREE_TAGS = "celery_ratelimit, three limits of three tags, one decision"
CONTENDED = "celery_ratelimit, limits of three tags, six callers"

#: Of the contended limits: so many a second of each, for so many seconds.
RATE, SECONDS, CALLERS = 50, 6.0, 6


def run(*, rounds: int, calls: int, say: Callable[[str], None]) -> list[dict[str, object]]:
    """``rounds`` × ``calls`` for each contender, then those that contend."""
    with cluster() as running:
        contenders = _contenders(running)
        stats = _Stats(running)
        measure(contenders, stats, rounds=rounds, calls=calls, say=lambda text: say(f"cluster: {text}"))
        running.flush()
        say("cluster: six callers")
        contended = _contended(running, stats)
    base = contenders[0]
    rows: list[dict[str, object]] = [{"part": "cluster", **row(contender, base)} for contender in contenders]
    return [*rows, {"part": "contended", **contended}]


class _Stats:
    """The statistics of all nodes as if they were one server's."""

    def __init__(self, running: Cluster) -> None:
        self._clients = running.clients

    def config_resetstat(self) -> None:
        for client in self._clients:
            client.config_resetstat()

    def info(self, section: str) -> dict[str, dict[str, float]]:
        total: dict[str, dict[str, float]] = defaultdict(lambda: {"calls": 0.0, "usec": 0.0})
        for client in self._clients:
            for name, seen in client.info(section).items():
                for field in ("calls", "usec"):
                    total[name][field] += seen[field]
        return dict(total)

    def scripts(self) -> float:
        seen = self.info("commandstats")
        return sum(seen[name]["calls"] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in seen)


def _contenders(running: Cluster) -> list[Contender]:
    limiter = Limiter.from_url(running.url)
    client: Any = limiter.client

    def limits(*names: str) -> list[Limit]:
        return [Limit(f"{WIDE}/s", burst=1000, name=name) for name in names]

    one, together, apart = limits("a"), limits("{bench}.a", "{bench}.b", "{bench}.c"), limits("a", "b", "c")
    three = ("bench:incr:{a}", "bench:incr:{b}", "bench:incr:{c}")
    return [
        Contender(BASE, lambda: client.incr("bench:incr"), BASE),
        Contender("celery_ratelimit, one limit", lambda: limiter.acquire(one).allowed, BASE),
        Contender(ONE_TAG, lambda: limiter.acquire(together).allowed, BASE),
        Contender(THREE_TAGS, lambda: limiter.acquire(apart).allowed, BASE),
        Contender("three INCR of three tags", lambda: min(client.incr(key) for key in three), BASE),
    ]


def _contended(running: Cluster, stats: _Stats) -> dict[str, object]:
    limits = [Limit(f"{RATE}/s", burst=5, name=name) for name in ("a", "b", "c")]
    granted: dict[str, list[float]] = defaultdict(list)
    decisions: list[int] = []
    lock = threading.Lock()
    stats.config_resetstat()
    stop = time.monotonic() + SECONDS

    def call(number: int) -> None:
        limiter = Limiter.from_url(running.url)
        mine = [limits[number % 3], limits[(number + 1 + number % 2) % 3]]
        while time.monotonic() < stop:
            decision = limiter.acquire(mine, max_wait=1.0)
            with lock:
                decisions.append(decision.allowed)
                for limit in mine if decision.allowed else ():
                    granted[str(limit.name)].append(decision._granted_at / 1e6)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    scripts = stats.scripts()
    shares, beyond = [], []
    for times in granted.values():
        times.sort()
        shares.append(len(times) / (RATE * (times[-1] - times[0])))
        ahead = [at * RATE - number for number, at in enumerate(times)]
        beyond.append(max(1 + max(ahead[: i + 1]) - ahead[i] for i in range(len(ahead))) - 5)
    return {
        "name": CONTENDED,
        "share": min(shares),
        "beyond": max(beyond),
        "scripts": scripts / len(decisions),
        "refused": len(decisions) - sum(decisions),
    }
