"""One million keys of one limit: what they take in the store, and whether they are gone after their time.

    python -m benchmarks.million [--keys 1000000]

Each key is asked for once, through the script that decides, in pipelines. The rate is so slow that no key expires
before all are there.
"""

from __future__ import annotations

import argparse
import time

import redis

from celery_ratelimit import Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.store.resp import unbulk
from celery_ratelimit.testing import embedded_server

#: Seconds; longer than it takes to write all.
LIFE = 240
IN_A_PIPELINE = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    keys = parser.parse_args().keys
    limit = Limit(f"1/{LIFE}s", name="tenants", key="tenant:{tenant_id}")
    with embedded_server() as server, redis.Redis.from_url(server.url) as client:
        limiter = Limiter.from_url(server.url)
        core = limiter._asker.core
        limiter.acquire(limit, key="warm-up")
        limiter.reset(limit, key="warm-up")
        before = client.info("memory")["used_memory"]
        began = time.monotonic()
        for first in range(0, keys, IN_A_PIPELINE):
            pipeline = client.pipeline(transaction=False)
            for number in range(first, min(keys, first + IN_A_PIPELINE)):
                demands = (LimitRequest(limit, "tenants", f"tenant:{number}"),)
                of_keys, _, pieces = core.calls.of_script(core.scripts.acquire, demands, ("", 0, 0), None, ())
                pipeline.execute_command("EVALSHA", core.scripts.acquire.digest, of_keys, *unbulk(b"".join(pieces)))
            pipeline.execute()
        took = time.monotonic() - began
        there, used = client.dbsize(), client.info("memory")["used_memory"] - before
        print(f"{there:,} keys in {took:.0f} s: {used / 1e6:.1f} MB, {used / there:.0f} bytes a key")
        assert there == keys, "some expired before all were there: make LIFE longer"
        time.sleep(max(0.0, LIFE - took))
        ended = time.monotonic()
        while client.dbsize() and time.monotonic() - ended < LIFE:
            time.sleep(1)
        left = client.dbsize()
        print(f"{time.monotonic() - ended:.0f} s after the time of the last: {left:,} keys left")


if __name__ == "__main__":
    main()
