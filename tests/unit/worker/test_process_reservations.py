"""A process is kept for a permit, not for a turn that another worker may have."""

from __future__ import annotations

import pytest

from tests.unit.worker.gate_bench import Bench


def test_process_is_reserved_only_for_a_granted_permit(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    plain = bench.task("plain")
    bench.tats["r1"] = bench.now + 0.1
    limited = bench.come(bench.task("wait", "r1"))
    for _ in range(2):
        bench.come(plain)
    waits = bench.come(plain)  # for a process, and takes 50 ms
    assert not waits.ends
    bench.tats["r1"] += 0.1  # the turn is another worker's
    bench.run(0.074)  # near enough to it that a process would be kept
    bench.finish()
    assert waits.ends == ["started"]
    bench.come(plain)
    bench.run(0.102)  # near enough to the next one
    bench.finish()
    bench.run(0.0)
    assert [each.ends for each in bench.requests[4:]] == [[]], "it is kept for the permit"
    bench.run(0.025)
    assert limited.ends == ["started"]
