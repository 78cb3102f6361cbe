"""Where no gate is, ``before_start`` of the base class asks: still never over, and a task never pays twice."""

from __future__ import annotations

from pathlib import Path

import redis

from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, assert_never_over


def test_a_worker_without_the_gate_holds_the_limit(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    with Fleet(server, tmp_path, rate="20/s", app="tests.apps.no_gate") as fleet:
        fleet.start(number=2)
        results = [fleet.send("retry", index) for index in range(60)]
        assert [result.get(timeout=30) for result in results] == list(range(60))
        assert len(fleet.permits()) == fleet.started() == 60
        assert_never_over(fleet.permits(), 20)
        assert "Traceback" not in fleet.log(0) + fleet.log(1)
