"""A worker without tasks leaves the store alone, and is notified when a task is parked."""

from __future__ import annotations

import hashlib
import json
import time

import pytest
import redis

from celery_ratelimit import Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.store.script import load_source
from tests.fleet_of import NewFleet, until
from tests.parks import park_one

NAME = "tests.apps.fleet.retry"

#: Scripts by what they are called by.
VERBS = {hashlib.sha1(load_source(verb).encode()).hexdigest(): verb for verb in ("heartbeat_queues", "take_due")}


def asked(store: redis.Redis) -> int:
    stats = store.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval", "mget"))


@pytest.mark.parametrize("pool", ["prefork", pytest.param("gevent", marks=pytest.mark.slow)])
def test_idle_worker_leaves_the_store_alone_and_is_notified(
    new_fleet: NewFleet, limiter: Limiter, store: redis.Redis, pool: str
) -> None:
    with new_fleet(rate="20/s") as fleet:
        fleet.start("-P", pool)
        fleet.send_each("retry", range(40))
        fleet.wait_for(40, 20)
        parking = fleet.parking_lots()._backlog
        until(lambda: parking.due([NAME]) is None, 20, "an empty backlog")
        time.sleep(4)  # a few looks more
        store.config_resetstat()
        time.sleep(6)
        assert asked(store) <= 4, "else a worker asks three to four times a second"
        # Another process parks a task of a limit without backlog: the worker looks, and sees that the limit is closed.
        demand = LimitRequest(Limit("1/h", name=NAME), NAME)
        limiter.set_rate(NAME, "1/h", force=True)
        assert limiter._asker.ask((demand,)).allowed
        said: list[str] = []
        with store.monitor() as monitor:
            park_one(parking, demand, "one@celery", json.dumps({"id": "one", "headers": {"id": "one"}}))
            while "take_due" not in said:
                words = monitor.next_command()["command"].split()
                said.append(VERBS.get(words[1].lower(), "") if words[0].lower() == "evalsha" else "")
        assert "heartbeat_queues" in said, "its last heartbeat of queues is long ago"
        lots = f"ratelimit:v1:{{{NAME}}}::due@{parking._fleet}"
        # Without notifications it would look every 15 to 25 seconds.
        until(lambda: store.zcount(lots, (time.time() + 600) * 1e6, "+inf") == 1, 3, "its being looked at")
