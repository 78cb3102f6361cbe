"""What an operator's questions cost: how long they take, and the longest command in the store.

    python -m benchmarks.command_line [status] [explain] [forecast]

status    1,000 limits and 100,000 keys in use, each limit in every minute of a day; 10,000 tasks parked in the lots of
          1,000 keys; and with a parked task in each of the 100,000
explain   100,000 tasks parked in one lot: the last of them, and one that nobody has
forecast  20 tasks of 400 that are parked behind each other at 10/s, on two real workers: when each was said to start,
          and when it did
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import redis
from celery import Celery

from benchmarks import TASK
from benchmarks.workers import QUEUE, Fleet
from celery_ratelimit import Limit, Limiter, ParkingLots
from celery_ratelimit.app.app_store import limiter_of
from celery_ratelimit.backlog.backlog import Backlog, ToPark, backlog_of
from celery_ratelimit.operations.overview import overview
from celery_ratelimit.testing import embedded_server

LIMITS, KEYS = 1000, 100
#: Times that each question is asked.
RUNS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", choices=[*SCENARIOS, []], metavar="SCENARIO")
    for scenario in parser.parse_args().scenarios or SCENARIOS:
        SCENARIOS[scenario]()


def status() -> None:
    limits = [Limit("1/h", name=f"limit{n}", key="{tenant}" if n % 2 else None) for n in range(LIMITS)]
    with embedded_server() as server, redis.Redis.from_url(server.url) as client:
        app = Celery("many", broker=server.url, set_as_current=False)
        app.conf.update(ratelimit_url=server.url, ratelimit_queues={f"q{n % 20}-{n}": limits[n] for n in range(LIMITS)})
        limiter, parking = limiter_of(app), backlog_of(app)
        for limit in limits:
            for key in [f"t{n}" for n in range(2 * KEYS)] if limit.key else [None]:
                limiter.acquire(limit, key=key)
        for limit in limits:  # as lua/add_counts.lua has left it: something in each minute of a day
            minutes = f"ratelimit:v1:{{{limit.name}}}::minutes"
            client.delete(minutes)
            client.rpush(minutes, *[" s60000 p60000"] * 1439, f"{int(time.time()) // 60} s100 p100")
        print(f"{client.dbsize():,} keys in the store")
        _park(parking, [(limit.name or "", f"t{n}" if limit.key else "", 10) for limit in limits for n in range(1)])
        _ask(client, "status, a lot each", lambda: overview(app))
        _park(parking, [(limit.name or "", f"t{n}", 1) for limit in limits if limit.key for n in range(1, 2 * KEYS)])
        _ask(client, "status, 100,000 lots", lambda: overview(app))


def explain() -> None:
    with embedded_server() as server, redis.Redis.from_url(server.url) as client:
        app = Celery("deep", broker=server.url, set_as_current=False)
        app.conf.update(ratelimit_url=server.url, ratelimit_queues={QUEUE: Limit("1/h", name="deep")})
        _park(backlog_of(app), [("deep", "", 100_000)])
        lots = ParkingLots(app)
        assert lots.explain("deep--99999").place == 99_999
        _ask(client, "explain, the last of 100,000", lambda: lots.explain("deep--99999"))
        _ask(client, "explain, nobody (workers have a second)", lambda: lots.explain("nobody"))


def forecast() -> None:
    with Fleet("lots", rate=10) as fleet:
        Limiter(fleet.redis).set_rate(f"{TASK}.tenant", "10/s", key="one", force=True)
        results = [fleet.sender.send_task(f"{TASK}.tenant", args=[n, "one"], queue=QUEUE) for n in range(400)]
        fleet.start()
        fleet.wait_for_first(20)
        time.sleep(5)
        lots, said = ParkingLots(fleet.sender), {}
        for index in range(100, 300, 10):
            found = lots.explain(results[index].id)
            if found.forecast is None or found.starts_at is None:
                print(f"task {index}: {found.where}, no forecast")
                continue
            said[index] = found
        fleet.wait(lambda: fleet.started() >= 320, 120)
        started = {start.index: start.at for start in fleet.starts()}
    off = []
    for index, found in said.items():
        wait, error = (found.starts_at or 0.0) - found.now, started[index] - (found.starts_at or 0.0)
        band = found.forecast.band
        off.append(abs(error) / band)
        print(f"task {index}: said in {wait:5.1f} s ± {band:.1f} s, was {error:+.2f} s later")
    inside = sum(each <= 1 for each in off)
    print(
        f"{inside} of {len(off)} within the band; the worst at {max(off):.2f} of it, "
        f"median {statistics.median(off):.2f}"
    )


def _park(parking: Backlog, lots: list[tuple[str, str, int]]) -> None:
    for name, key, number in lots:
        for first in range(0, number, 500):
            messages = [_message(f"{name}-{key}-{n}") for n in range(first, min(number, first + 500))]
            parking.park({(name, key): messages})


def _message(id: str) -> ToPark:
    marker = {"queue": QUEUE, "eta": None, "exchange": "", "routing_key": QUEUE}
    headers = {"id": id, "task": "benchmark", "celery-ratelimit-return": marker}
    return ToPark(f"{id}~0@{QUEUE}", 1, json.dumps({"to": QUEUE, "headers": headers}), 1, "t", task=id, queue=QUEUE)


def _ask(client: redis.Redis, what: str, question: Callable[[], Any]) -> None:
    question()
    client.config_set("slowlog-log-slower-than", 1000)
    client.slowlog_reset()
    client.config_resetstat()
    took = []
    for _ in range(RUNS):
        began = time.monotonic()
        question()
        took.append(time.monotonic() - began)
    slow = {entry["duration"] / 1e3: entry["command"][:60] for entry in client.slowlog_get(100)}
    calls = sum(each["calls"] for each in client.info("commandstats").values()) / RUNS
    longest = f"{max(slow):.1f} ms ({slow[max(slow)]!r})" if slow else "below 1 ms"
    print(
        f"{what}: median {statistics.median(took):.3f} s, worst {max(took):.3f} s; {calls:.0f} commands, "
        f"longest {longest}"
    )


SCENARIOS: dict[str, Callable[[], None]] = {"status": status, "explain": explain, "forecast": forecast}

if __name__ == "__main__":
    main()
