"""A worker reports its queues before its last report expires."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit.backlog.fleet_registry import QueueHeartbeat
from celery_ratelimit.backlog.tuning import HEARTBEAT, REST_INTERVAL
from celery_ratelimit.store_calls.store_calls import asked


@pytest.mark.parametrize("busy", [0.0, 1.0, 9.0, 100.0])
def test_heartbeat_never_lapses_when_a_worker_becomes_idle(monkeypatch: pytest.MonkeyPatch, busy: float) -> None:
    """It said so for 6 s, and reported again after 20 s."""
    now, until, reports = 1000.0, 1000.0, 0
    monkeypatch.setattr("time.monotonic", lambda: now)

    def attend(worker: str, queues: Any, given_up: Any, lasts: float) -> frozenset[str]:
        nonlocal until, reports
        until, reports = now + lasts, reports + 1
        return frozenset()

    worker: Any = SimpleNamespace(hostname="w1", consumption=SimpleNamespace(queues=["q"]))
    worker.consumption.return_queue_for = lambda queue: f"{queue}.throttled"
    registry: Any = SimpleNamespace(attend=attend)
    heartbeat = QueueHeartbeat(worker, registry, lambda: None, lambda: None)
    for _ in range(int(busy) + 200):
        asked(heartbeat.report(is_idle=now > 1000.0 + busy))
        assert until > now + 1.0, f"{now - 1000:g} s after its start it counts as dead soon"
        now += 1.0
    assert reports <= busy / HEARTBEAT + 200 / REST_INTERVAL + 3, "a worker at rest reports seldom"
