"""What counting costs: ``python -m benchmarks.counting``. Processor time, medians of ten rounds.

In the worker, a start that nobody observes and one that is counted; a second's telling, there and in the store
(for a limit of one key, and of a thousand). Beside them one ``acquire`` from Python: shares depend less on the machine.
And what it takes to read what is used of a thousand limits, each in use all day: wall time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from types import SimpleNamespace
from typing import Any

from celery_ratelimit import Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.report_counts import DecisionCounter
from celery_ratelimit.operations.bucket_status import recent_use
from celery_ratelimit.testing import embedded_server
from celery_ratelimit.worker.announce_outcomes import Reporter

ROUNDS = 10


def measured(call: Callable[[], Any], times: int) -> float:
    """Microseconds of this process for one."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(times):
            call()
        rounds.append((time.process_time() - began) / times * 1e6)
    return median(rounds)


def held_by(key: str) -> Any:
    demand = LimitRequest(Limit("1000000/s", burst=1000, name="api"), "api", key)
    request = SimpleNamespace(name="shop.charge", id="id", message=SimpleNamespace(headers={}))
    return SimpleNamespace(
        request=request,
        id="id",
        queue="celery",
        demands=(demand,),
        returned=False,
        announced="",
        since=time.monotonic(),
    )


def main() -> None:
    with embedded_server() as server, Limiter.from_url(server.url, counts=False) as limiter:
        counting = DecisionCounter(limiter._asker, lambda seconds, call: None)
        held = held_by("")
        bare, counted = Reporter(), Reporter([counting.counter])
        nobody = measured(lambda: bare.started(held, 1), 20_000)
        each = measured(lambda: counted.started(held, 1), 20_000)
        asked = measured(lambda: limiter._asker.ask(held.demands), 2_000)
        print(f"a start that nobody observes {nobody:6.2f} us")
        print(f"a start that is counted {each:6.2f} us, {(each - nobody) / asked:.1%} of one acquire ({asked:.0f} us)")
        for keys in (1, 1000):
            many = [held_by(str(i) if keys > 1 else "") for i in range(keys)]

            def second(many: list[Any] = many) -> None:
                for each in many:
                    counted.started(each, 1)
                counting.send()

            second()
            limiter.client.config_resetstat()
            telling = measured(second, 20) - len(many) * each
            calls = limiter.client.info("commandstats")["cmdstat_evalsha"]
            print(f"telling, {keys} keys: {telling:.0f} us a second here, {calls['usec_per_call']:.0f} us in the store")
        for what, within in (("a minute", 60.0), ("an hour", 3600.0), ("a day", 86400.0)):
            read_used(limiter, what, within)


def read_used(limiter: Limiter, what: str, within: float) -> None:
    """What is used of limits whose rate is per so many seconds, as ``status`` reads it."""
    names, now = [f"limit{n}" for n in range(1000)], int(time.time())
    for name in names:
        for kind, unit, number in (("seconds", 1, 180), ("minutes", 60, 1440)):
            key = f"{limiter.prefix}:v1:{{{name}}}::{kind}"
            limiter.client.delete(key)
            limiter.client.rpush(key, *[" s1000 p1000"] * (number - 1), f"{now // unit} s1 p1")
    limiter.client.config_resetstat()
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        limiter._asker.drive(recent_use(limiter._asker.core, [(name, within) for name in names]))
        took.append(time.perf_counter() - began)
    calls = limiter.client.info("commandstats")["cmdstat_evalsha"]
    scripts = f"{calls['calls'] / ROUNDS:.0f} scripts of {calls['usec_per_call']:.0f} us"
    print(f"what is used of 1,000 limits, within {what}: {median(took) * 1e3:.0f} ms, {scripts}")


if __name__ == "__main__":
    main()
