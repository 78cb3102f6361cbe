"""Tasks of other packages, which change how a task is called or ends."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from celery_ratelimit import Throttled
from tests.fleet_of import NewFleet, errors, until

APP = "tests.apps.companions"


def test_tasks_of_other_packages_are_limited_and_their_locks_released_when_a_limit_ends_them(
    new_fleet: NewFleet, store: redis.Redis
) -> None:
    """A field of a pydantic model is a key and a cost.

    ``on_throttled_out``, ``on_failure`` or ``after_return`` release a lock, so that the same call is sent again.
    """
    with new_fleet(app=APP, prefix="") as fleet:
        fleet.start("-P", "threads", "-c", "2")
        orders = [("ann", 2), ("ann", 1), ("bob", 3)]
        sent = [fleet.send("modelled", {"tenantId": name, "weight": weight}, 0) for name, weight in orders]
        assert [result.get(timeout=20) for result in sent] == ["ann 2", "ann 1", "bob 3"]
        with pytest.raises(TaskRevokedError, match="throttled by limit"):
            fleet.send("modelled", {"tenantId": "ann"}, 3).get(timeout=20)
        refused = fleet.send("modelled", {"tenantId": "cid", "weight": "heavy"}, 4)
        assert "ValidationError" in repr(refused.get(timeout=20, propagate=False))
        assert fleet.started() == 3

        def call(name: str, index: int) -> AsyncResult:
            """The task that was sent, or the one that has the lock."""
            return fleet.sender.AsyncResult(str(fleet.send("call", name, index).get(timeout=20)))

        for package in ("singleton", "once", "unique"):
            for throttle, state in (("drop", "REVOKED"), ("fail", "FAILURE")):
                name = f"{package}.{throttle}"
                assert call(name, 0).get(timeout=20) == 0
                ended = []
                for _ in range(2):
                    ended.append(call(name, 1))
                    until(lambda ended=ended, state=state: ended[-1].state == state, 20, f"the end of {name}")
                    until(lambda: not list(filter(is_lock, store.scan_iter("*"))), 10, f"the release of {name}'s lock")
                assert ended[0].id != ended[1].id
        assert fleet.started() == 3 + 6


def is_lock(key: str) -> bool:
    return key.startswith(("SINGLETONLOCK_", "qo_", "h-lock:"))


@pytest.mark.slow
def test_on_throttled_out_is_called_once_for_each_ended_task(new_fleet: NewFleet, tmp_path: Path) -> None:
    with new_fleet(app=APP, prefix="") as fleet:
        fleet.start()
        names = ["dropped", "overflowed", "coalesced", "parked", "held", "failed"]
        for result in [fleet.send(name, 0) for name in names]:
            assert result.get(timeout=20) == 0
        dropped, overflowed = (fleet.send(name, 1) for name in names[:2])
        failed = fleet.send("failed", 1)
        oldest = fleet.send("coalesced", 1)
        until(lambda: "parked" in fleet.log(), 10, "its being parked")
        fleet.send("coalesced", 2)
        expire = [fleet.send(name, 1, expires=2) for name in ("parked", "held")]
        revoke = [fleet.send(name, 2) for name in ("parked", "held")]
        until(lambda: all(f"[{each.id}] throttled" in fleet.log() for each in revoke), 10, "both waiting")
        for each in revoke:
            each.revoke()
        for each in (dropped, overflowed, oldest, *expire, *revoke):
            with pytest.raises(TaskRevokedError):
                each.get(timeout=30)
        with pytest.raises(Throttled):
            failed.get(timeout=20)
        ends = [
            *("coalesced 1 coalesced", "dropped 1 dropped", "held 1 expired", "held 2 revoked"),
            *("overflowed 1 dropped", "parked 1 expired", "parked 2 revoked"),
        ]
        for kind in ("hooks", "out"):
            lines = (tmp_path / kind).read_text
            until(lambda lines=lines: len(lines().splitlines()) >= len(ends), 10, kind)
            assert sorted(lines().splitlines()) == ends
        assert not errors(fleet.log())
