"""What one look at all limits costs: round trips, commands and scripts, seconds where the store is 4 ms away.

    python -m benchmarks.scrape [--limits 500] [--tenants 2000] [--milliseconds 4] [limits] [parked] [tenants] [cluster]

limits    so many limits that have been used, each with its counts
parked    the same, with two parked tasks each
tenants   so many keys of one limit, with ten parked tasks each
cluster   ``parked`` on three masters, as near as they are: most round trips and commands of one of them

A scrape of Prometheus, ``status`` (with the broker's queues, in the same server) and the list of lots. ``cold``: the
store does not know the scripts yet. ``pause``: the longest time for which another client's ``PING`` waited meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from celery import Celery
from redis.connection import AbstractConnection

from benchmarks.command_line import _park
from benchmarks.servers import cluster
from celery_ratelimit import Limit
from celery_ratelimit.app.limiters import limiter_of
from celery_ratelimit.backlog.backlog import backlog_of
from celery_ratelimit.operations.overview import overview
from celery_ratelimit.operations.read_parking_lots import lots_of
from celery_ratelimit.prometheus import Collector
from celery_ratelimit.testing import embedded_server
from tests.far_away import relay

RUNS = 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", type=int, default=500)
    parser.add_argument("--tenants", type=int, default=2000)
    parser.add_argument("--milliseconds", type=float, default=4.0)
    parser.add_argument("scenarios", nargs="*", choices=[*SCENARIOS, []], metavar="SCENARIO")
    options = parser.parse_args()
    for scenario in options.scenarios or SCENARIOS:
        print(f"{scenario}:", flush=True)
        if scenario == "cluster":
            with cluster() as masters, embedded_server() as broker:
                _measure(options, scenario, broker.url, masters.url, masters.clients, lambda seconds: None)
        else:
            with embedded_server() as server, redis.Redis.from_url(server.url) as client, relay(server) as between:
                delay = lambda seconds: setattr(between, "seconds", seconds)  # noqa: E731
                _measure(options, scenario, server.url, between.url, [client], delay)


def _measure(
    options: Any,
    scenario: str,
    broker: str,
    store: str,
    clients: Sequence[redis.Redis],
    delay: Callable[[float], None],
) -> None:
    names = ["tenant"] if scenario == "tenants" else [f"limit{n}" for n in range(options.limits)]
    limits = [Limit("100/m", name=name, key="{tenant}" if scenario == "tenants" else None) for name in names]
    app = Celery("scraped", broker=broker, set_as_current=False)
    app.conf.update(
        ratelimit_url=f"{store}?socket_timeout=30",
        ratelimit_queues={f"queue{n}": limit for n, limit in enumerate(limits)},
    )
    limiter = limiter_of(app)
    for limit in limits:
        limiter.acquire(limit, key="t0" if limit.key else None)
    if scenario == "tenants":
        _park(backlog_of(app), [("tenant", f"t{n}", 10) for n in range(options.tenants)])
    elif scenario != "limits":
        _park(backlog_of(app), [(name, "", 2) for name in names])
    time.sleep(2)  # the counts are written about once a second
    by_name = {str(limit.name): limit for limit in limits}
    looks: dict[str, Callable[[], Any]] = {
        "scrape": lambda: Collector(app)._read_store(),
        "status": lambda: overview(app),
        "lots": lambda: lots_of(app, by_name),
    }
    for name, look in looks.items():
        look()
        trips, commands, scripts = _cost(look, clients)
        longest = _longest(look, clients)
        delay(options.milliseconds / 1000)
        took = [_timed(look) for _ in range(RUNS)]
        with _pings(clients[0]) as pause:
            look()
        for client in clients:
            client.script_flush()
        cold = _timed(look)
        delay(0.0)
        print(
            f"  {name}: {trips} round trips, {commands:,} commands, {scripts:,} scripts; longest {longest}; "
            f"best {min(took):.3f} s, median {statistics.median(took):.3f} s, cold {cold:.3f} s; "
            f"pause {pause[0] * 1e3:.1f} ms",
            flush=True,
        )


def _cost(look: Callable[[], Any], clients: Sequence[redis.Redis]) -> tuple[int, int, int]:
    """Round trips to one node, and its commands and scripts: of the node with most."""
    trips: Counter[int] = Counter()
    send = AbstractConnection.send_packed_command

    def counted(connection: Any, *args: Any, **options: Any) -> Any:
        trips[connection.port] += 1
        return send(connection, *args, **options)

    for client in clients:
        client.config_resetstat()
    AbstractConnection.send_packed_command = counted  # type: ignore[method-assign]
    try:
        look()
    finally:
        AbstractConnection.send_packed_command = send  # type: ignore[method-assign]
    stats = [client.info("commandstats") for client in clients]
    commands = max(sum(each["calls"] for each in of_node.values()) for of_node in stats)
    scripts = max(of_node.get("cmdstat_evalsha", {"calls": 0})["calls"] for of_node in stats)
    return max(trips.values()), commands, scripts


def _longest(look: Callable[[], Any], clients: Sequence[redis.Redis]) -> str:
    """The longest command in the store: the least of some runs, as the machine may be busy."""
    longest = []
    for _ in range(RUNS):
        for client in clients:
            client.config_set("slowlog-max-len", 10_000)
            client.config_set("slowlog-log-slower-than", 100)
            client.slowlog_reset()
        look()
        entries = [(each["duration"], str(each["command"])[:60]) for c in clients for each in c.slowlog_get(10_000)]
        longest.append(max(entries, default=(0, "")))
    for client in clients:
        client.config_set("slowlog-log-slower-than", -1)
    duration, command = min(longest)
    return f"{duration / 1e3:.1f} ms ({command})"


def _timed(look: Callable[[], Any]) -> float:
    began = time.monotonic()
    look()
    return time.monotonic() - began


@contextmanager
def _pings(client: redis.Redis) -> Iterator[list[float]]:
    """The longest wait of another client."""
    worst, over = [0.0], threading.Event()

    def ping() -> None:
        while not over.is_set():
            began = time.monotonic()
            client.ping()
            worst[0] = max(worst[0], time.monotonic() - began)

    thread = threading.Thread(target=ping)
    thread.start()
    try:
        yield worst
    finally:
        over.set()
        thread.join()


SCENARIOS = ("limits", "parked", "tenants", "cluster")

if __name__ == "__main__":
    main()
