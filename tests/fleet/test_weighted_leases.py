"""Tasks that hold several permits of a concurrency limit never hold more than there are, and none starves."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from benchmarks import records
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, until

#: Of ``Concurrency(4)``; what each task holds, by its index.
LIMIT = 4
COSTS = [1, 3, 1, 1, 4, 1, 2, 1, 1, 3, 1, 1, 4, 2, 1, 1]


def most_held(starts: list[records.Start]) -> int:
    """The most permits at once: a task notes its index when it begins, and -1 - index when it ends."""
    changes = []
    for start in starts:
        index = start.index if start.index >= 0 else -1 - start.index
        changes.append((start.at, COSTS[index] if start.index >= 0 else -COSTS[index]))
    held = most = 0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return most


@pytest.mark.parametrize(("task", "pool"), [("train", "prefork"), ("patient_train", "threads")])
def test_tasks_never_hold_more_permits_than_the_limit(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, task: str, pool: str
) -> None:
    with Fleet(server, tmp_path) as fleet:
        fleet.start("-P", pool, "-c", "3", number=2)
        for index, cost in enumerate(COSTS):
            fleet.send(task, index, 0.2, cost)
        until(lambda: fleet.started() == 2 * len(COSTS), 40, "the end of every task")
        assert sorted(each.index for each in fleet.starts() if each.index >= 0) == list(range(len(COSTS)))
        assert most_held(fleet.starts()) == LIMIT
        until(lambda: not store.zcount("ratelimit:v1:{gpus}::leases", 1, "+inf"), 20, "the release of every lease")
        assert store.zscore("ratelimit:v1:{gpus}::leases", "\0+") is None


def test_tasks_of_two_concurrency_limits_do_not_deadlock(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    """Each takes all permits of both. With permits set aside for one task in each limit, all stood still."""
    with Fleet(server, tmp_path) as fleet:
        fleet.start("-P", "threads", "-c", "4", number=2)
        for turn in range(3):
            for index in range(16):
                fleet.send("train_in_memory", index, 0.05, LIMIT)
            until(lambda turn=turn: fleet.started() == 2 * 16 * (turn + 1), 20, "the end of every task")
