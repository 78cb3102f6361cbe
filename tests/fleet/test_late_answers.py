"""The store's reply to a parking call is late or lost: each task runs once."""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest
import redis
from celery.result import AsyncResult

from celery_ratelimit import StoreUnavailable
from celery_ratelimit.testing import embedded_server
from tests.fleet_of import NewFleet, until
from tests.relay import TROUBLES, relay_to

#: How often there is each kind of trouble. ``TEST_TROUBLES=10``: thirty times.
TIMES = int(os.environ.get("TEST_TROUBLES", "1"))
#: What is late is so late.
SECONDS = 3.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice", ["defer", *(pytest.param(choice, marks=pytest.mark.slow) for choice in ("local", "raise"))]
)
def test_late_store_replies_lose_and_repeat_no_task(new_fleet: NewFleet, store: redis.Redis, choice: str) -> None:
    with embedded_server() as limits, relay_to(limits) as relay, redis.Redis.from_url(limits.url) as of_limits:
        conf = {"ratelimit_url": relay.url, "ratelimit_on_store_error": choice}
        with new_fleet(rate="20/s", **conf) as fleet:
            results: list[AsyncResult] = []

            def send(number: int) -> None:
                results.extend([fleet.send("retry", len(results) + index) for index in range(number)])

            def no_task_is_on_its_way() -> bool:
                parked = of_limits.keys("*:parked@*") + of_limits.keys("*:in_flight@*")
                return not parked and not store.exists("celery", "celery.throttled", "unacked")

            fleet.start()
            send(20)
            fleet.wait_for(20, 20)
            for number, how in enumerate(TROUBLES * TIMES):
                relay.trouble(how, after=number % 4, seconds=SECONDS)  # fifty may be parked by five calls
                send(20)
                time.sleep(SECONDS - 0.6)
                send(30)  # so that others are parked when what was late arrives
                until(relay.is_over, 30, "the trouble")
                until(lambda: all(result.ready() for result in results), 40, "every end")
                until(no_task_is_on_its_way, 40, "all tasks having ended")
            ran = Counter(start.index for start in fleet.starts())
            failed = {index for index, result in enumerate(results) if isinstance(result.result, Exception)}
            assert {index: times for index, times in ran.items() if times > 1} == {}
            assert ran.keys() | failed == set(range(len(results)))
            assert not ran.keys() & failed
            assert choice == "raise" or not failed
            assert all(isinstance(results[index].result, StoreUnavailable) for index in failed)
