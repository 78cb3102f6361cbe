"""A rolling deploy: both versions work on the same queues, each with keys of its own."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import redis

from benchmarks import records
from celery_ratelimit import Limiter
from tests.fleet_of import Fleet, NewFleet, assert_never_over, assert_over, until

TASKS = 60
#: Of each version, a second.
RATE = 10
#: A task that is taken by the other version has no slot there, and may be sent back once more.
MOST_SENT_BACK = 2 * TASKS


@pytest.mark.slow
@pytest.mark.parametrize("task", ["retry", "wait"])
def test_two_key_versions_share_queues_and_lose_no_task(
    new_fleet: NewFleet, limiter: Limiter, store: redis.Redis, tmp_path: Path, task: str
) -> None:
    v0 = tmp_path / "v0"
    with new_fleet(rate=f"{RATE}/s") as fleet:
        fleet.launch()
        fleet.app = "tests.apps.other_version"
        fleet.start()
        store.config_resetstat()
        ids = [fleet.send(task, index).id for index in range(TASKS)]
        seen: set[str] = set()

        def done() -> bool:
            seen.update(key.split(":{")[0] for key in store.scan_iter("ratelimit:*"))
            return started(tmp_path) + started(v0) >= TASKS

        until(done, 20, "the start of every task")
        assert seen == {"ratelimit:v0", "ratelimit:v1"}

        of = {"v1": records.read(tmp_path), "v0": records.read(v0)}
        assert sorted(start.index for starts in of.values() for start in starts) == list(range(TASKS)), "each once"
        # Law 1, of each version: by its permits, one for each body.
        for directory, starts in ((tmp_path, of["v1"]), (v0, of["v0"])):
            permits = records.read(directory / "permits")
            assert sorted(permit.index for permit in permits) == sorted(start.index for start in starts)
            assert_never_over(permits, RATE)
            good = {permit.index: permit.at for permit in permits}
            assert all(good[start.index] <= start.at + 0.002 for start in starts)
            assert len(starts) >= 0.1 * TASKS, "both work"
        both = [permit for directory in (tmp_path, v0) for permit in records.read(directory / "permits")]
        assert_over(both, RATE, burst=2)  # twice the rate: each has its own
        assert fleet.sent_back() <= MOST_SENT_BACK

        if task == "retry":
            index_of = {id: index for index, id in enumerate(ids)}
            sent_back = {
                "v1": {index_of[line.split()[1]] for line in (tmp_path / "signals").read_text().splitlines()},
                "v0": {index_of[line.split()[1]] for line in (v0 / "signals").read_text().splitlines()},
            }
            for one, other in (("v1", "v0"), ("v0", "v1")):
                crossed = sent_back[one] & {start.index for start in of[other]}
                assert crossed, f"some that {one} sent back were started by {other}"
            stored_for_one(limiter, fleet, v0)
        assert "Traceback" not in fleet.log(0) + fleet.log(1)


def stored_for_one(limiter: Limiter, fleet: Fleet, v0: Path) -> None:
    """What is stored for one version says nothing to the other."""
    asked = time.time()
    limiter.pause("tests.apps.fleet.retry", 1.5, force=True)
    fleet.send_each("retry", range(TASKS, TASKS + 40))
    until(lambda: started(fleet.directory) + started(v0) >= TASKS + 40, 15, "the start of every task")
    one, other = [
        [each.at for each in records.read(path / "permits") if each.at > asked] for path in (fleet.directory, v0)
    ]
    assert len(one) + len(other) == 40
    assert all(at >= asked + 1.5 for at in one), "the version that is paused"
    assert any(at < asked + 1.5 for at in other), "the version that is not"


def started(directory: Path) -> int:
    return sum(records.count(directory).values())
