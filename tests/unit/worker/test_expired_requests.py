"""Requests that wait in a worker and expire."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from tests.unit.worker.gate_bench import Bench, Request


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_expired_requests_end_behind_a_request_that_still_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is not looked at otherwise before its turn."""
    task = bench.task("wait", "r1")
    bench.tats["r1"] = bench.now + 1000.0
    patient, expiring = bench.come(task), []
    for seconds in (0, 3600, 0):
        monkeypatch.setattr(Request, "expires", datetime.now(timezone.utc) + timedelta(seconds=seconds))
        expiring.append(bench.come(task))
        expiring[-1].is_revoked = seconds == 0
    asked = len(bench.asked)
    bench.run(1.0)
    assert [request.ends for request in (patient, *expiring)] == [[], ["revoked"], [], ["revoked"]]
    assert len(bench.asked) == asked, "the store is not asked for it"
