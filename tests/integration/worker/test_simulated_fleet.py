"""Many gates on real scripts and a simulated clock, as in the benchmark of a large fleet."""

from __future__ import annotations

from collections import Counter

from benchmarks.simulated import excess
from benchmarks.simulation import EPOCH, simulated

WORKERS, RATE, TASKS = 12, 120, 600
#: Store operations a permit, at the most, of a fleet whose lot has just begun to fill: it is 2.7.
MOST_ASKED = 3.0


def test_parked_tasks_start_once_and_never_early() -> None:
    with simulated(workers=WORKERS, processes=2, rate=RATE, seconds=0.05) as fleet:
        for index in range(TASKS):
            fleet.world.at(fleet.world.now + 2 + index / RATE / 1.5, lambda index=index: fleet.send(index))
        fleet.world.run(lambda: len(fleet.started) >= TASKS, EPOCH + 60)
        asked, started = fleet.asked(), fleet.started
    assert {"park", "take_due", "filter_copies_and_acquire"} <= set(+asked)
    assert Counter(start.index for start in started) == dict.fromkeys(range(TASKS), 1)
    assert excess(sorted(start.permit_at for start in started), RATE) < 1e-3
    assert all(start.at >= start.permit_at - 1e-6 for start in started)
    assert asked.total() / TASKS < MOST_ASKED, asked
