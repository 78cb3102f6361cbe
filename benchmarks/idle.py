"""What idle workers ask the store for: commands a second and worker.

    python -m benchmarks.idle [--seconds 120] [--limits 1 40] [--workers 2]

The store has a server of its own. A minute after the last task nobody waits, comes back or is parked.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Mapping

import redis

from benchmarks.workers import Fleet
from celery_ratelimit.testing import embedded_server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--limits", type=int, nargs="+", default=[1, 40])
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    for limits in options.limits:
        sent = commands(limits, options.workers, options.seconds)
        each = {name: round(calls / options.seconds / options.workers, 3) for name, calls in sorted(sent.items())}
        print(f"{limits} limits: {sum(each.values()):.2f} commands a second and idle worker: {each}", flush=True)


def commands(limits: int, workers: int, seconds: float) -> Mapping[str, int]:
    """How often each command was sent by all workers; not what scripts call."""
    with (
        embedded_server() as server,
        redis.Redis.from_url(server.url, decode_responses=True) as store,
        Fleet("idle", rate=5, workers=workers) as fleet,
    ):
        fleet.env = {"BENCH_STORE": server.url, "BENCH_LIMITS": str(limits)}
        fleet.send(range(20))  # some of them are parked
        fleet.start()
        fleet.wait_for_first(20)
        time.sleep(30)
        sent: Counter[str] = Counter()
        until = time.monotonic() + seconds
        with store.monitor() as monitor:
            while time.monotonic() < until:
                if monitor.connection.can_read(timeout=0.2):
                    seen = monitor.next_command()
                    sent[seen["command"].split()[0].lower()] += seen["client_type"] != "lua"
        return +sent


if __name__ == "__main__":
    main()
