"""Stores of several servers under a fleet at work: a master is lost, a slot moves. No task is, and hardly a permit."""

from __future__ import annotations

import time
from pathlib import Path

import redis

from benchmarks.servers import Cluster, Sentinels
from celery_ratelimit import Limiter
from celery_ratelimit.keys import hash_tag
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, assert_never_over

#: Seconds that a replica may be behind when its master is lost, with room for a machine that does something else.
BEHIND = 0.2


def test_a_lost_master_loses_no_task(
    server: EmbeddedServer, store: redis.Redis, sentinel_store: Sentinels, tmp_path: Path
) -> None:
    rate, tasks = 20, 80
    url = f"{sentinel_store.url}/0?service_name={Sentinels.NAME}"
    with Fleet(server, tmp_path, rate=f"{rate}/s", ratelimit_url=url) as fleet:
        fleet.start(number=2)
        for index in range(tasks):
            fleet.send("retry", index)
            fleet.send("wait", tasks + index)
        before = len(fleet.wait_for(30, 20))
        assert before < 2 * tasks, "the failover comes in the middle"
        sentinel_store.fail_over()
        starts = fleet.wait_for(2 * tasks, 60)
        assert sorted(start.index for start in starts) == list(range(2 * tasks))
        permits = fleet.permits()
        for of_limit in (range(tasks), range(tasks, 2 * tasks)):
            mine = [permit for permit in permits if permit.index in of_limit]
            # docs/stores.md: a new master that knows nothing of a bucket has it full; it knows all but the last moment.
            assert_never_over(mine, rate, burst=1 + 1 + round(rate * BEHIND))
        log = fleet.log(0) + fleet.log(1)
        assert "Traceback" not in log
        assert "ERROR" not in log
        assert "store is back" in log


def test_a_slot_that_moves_loses_no_task_and_no_permit(
    server: EmbeddedServer, store: redis.Redis, cluster_store: Cluster, tmp_path: Path
) -> None:
    rate, tasks = 30, 150
    with Fleet(server, tmp_path, rate=f"{rate}/s", ratelimit_url=cluster_store.url) as fleet:
        for index in range(tasks):
            fleet.send("retry", index)
        fleet.start(number=2)
        tag = hash_tag("tests.apps.fleet.retry")
        for _ in range(3):
            before = len(fleet.wait_for(fleet.started() + 20, 20))
            cluster_store.move_slot(tag, pause=0.05)
        assert before < tasks, "the slot moves in the middle"
        starts = fleet.wait_for(tasks, 40)
        assert sorted(start.index for start in starts) == list(range(tasks))
        assert_never_over(fleet.permits(), rate)
        assert "Traceback" not in fleet.log(0) + fleet.log(1)


def test_limits_of_three_tags_hold_for_a_fleet_on_a_cluster(
    server: EmbeddedServer, store: redis.Redis, cluster_store: Cluster, tmp_path: Path
) -> None:
    """A token bucket of 50/s, a log of 10/s and three places, each in a slot of its own."""
    rate, tasks = 10, 40
    with Fleet(server, tmp_path, rate=f"{rate}/s", ratelimit_url=cluster_store.url) as fleet:
        fleet.start(number=2)
        for index in range(tasks):
            fleet.send("mixed", index)
        starts = fleet.wait_for(tasks, 40)
        assert sorted(start.index for start in starts) == list(range(tasks))
        permits = sorted(permit.at for permit in fleet.permits())
        assert len(permits) == tasks
        # Never more than ten in a second; nor fewer than half of what that allows.
        for first, last in zip(permits, permits[rate:], strict=False):
            assert last - first >= 1.0 - 0.05, "to the accuracy of what a decision takes"
        assert permits[-1] - permits[0] <= 2 * tasks / rate
        assert "Traceback" not in fleet.log(0) + fleet.log(1)


def test_a_cluster_without_one_of_its_nodes_defers_tasks(
    server: EmbeddedServer, store: redis.Redis, cluster_store: Cluster, tmp_path: Path
) -> None:
    with Fleet(server, tmp_path, rate="50/s", ratelimit_url=cluster_store.url) as fleet:
        fleet.start()
        node = cluster_store.nodes[cluster_store.owner(redis.crc.key_slot(b"tests.apps.fleet.retry"))]
        node.freeze()
        try:
            for index in range(20):
                fleet.send("retry", index)
            fleet.send("plain", 1_000).get(timeout=10)
            time.sleep(2)
            assert fleet.started() == 1
        finally:
            node.thaw()
        starts = fleet.wait_for(21, 40)
        assert sorted(start.index for start in starts) == [*range(20), 1_000]
        assert_never_over(fleet.permits(), 50)
        assert Limiter.from_url(cluster_store.url).check_store() == []
