"""Started bodies, the store's counts and the exporter's counts agree after a worker was killed."""

from __future__ import annotations

import time

import pytest
import redis
from celery import Celery
from prometheus_client import CollectorRegistry

from celery_ratelimit import Limiter, RateLimitedTask
from celery_ratelimit.counts.counter import PAUSE
from celery_ratelimit.prometheus import collector
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import NewFleet, until

NAME = "tests.apps.fleet.retry"
TASKS, RATE = 5000, 400
#: Seconds that a busy worker may be late with what it tells once a second.
LATE = 0.5


@pytest.mark.slow
# A process that has imported the fleet's app has its tasks, of the same names, in each app.
@pytest.mark.filterwarnings("ignore:Task name:celery.exceptions.CeleryWarning")
def test_counts_agree_with_started_tasks_after_a_worker_was_killed(
    new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis
) -> None:
    options = {"visibility_timeout": 6, "unacked_restore_throttle": 1}
    rate = f"{RATE}/s"
    app = Celery("reads", broker=server.url, set_as_current=False)

    @app.task(base=RateLimitedTask, limits=rate, name=NAME)
    def retry(index: int) -> None: ...

    with new_fleet(rate=rate, broker_transport_options=options) as fleet:
        fleet.send_each("retry", range(TASKS))
        fleet.start(number=2)
        fleet.wait_for(TASKS // 3, 60)
        killed_at = time.time()
        fleet.kill(1)

        def others_are_done() -> bool:
            waits = store.llen("celery") + store.hlen("unacked") + fleet.parked()
            return waits == 0 and fleet.started() > TASKS * 0.9

        until(others_are_done, 120, "the end of all tasks")
        limiter = Limiter.from_app(app)
        registry = CollectorRegistry()
        registry.register(collector(app))

        def counted() -> int:
            return limiter.stats(NAME, totals=True, force=True)[NAME].started

        before = -1
        while counted() != before:  # the live workers have reported everything
            before = counted()
            time.sleep(2 * PAUSE)

        starts = fleet.starts()
        last_second = [each for each in starts if killed_at - PAUSE - LATE <= each.at <= killed_at + LATE]
        exported = sum(
            registry.get_sample_value("celery_ratelimit_requests_total", {"limit": NAME, "result": result}) or 0
            for result in ("acquired", "waited")
        )
        stats = limiter.stats(NAME, force=True)[NAME]
        assert exported == stats.started == sum(number for _, number in stats.waits) == stats.permits
        assert sum(each.started for each in stats.minutes) == stats.started
        print("bodies", len(starts), "counted", stats.started, "in the last second", len(last_second))
        # Of what the killed worker has counted and not told, and of what it has counted and its processes not begun.
        assert -len(last_second) <= stats.started - len(starts) <= 8, (stats.started, len(starts), len(last_second))
        assert len(starts) > TASKS * 0.98
        assert {user.name for user in stats.users} == {NAME, "celery"}
