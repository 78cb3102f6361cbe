"""What starts is with its process at once: not when the worker's loop has done everything else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, errors, until

TASKS = 24


@pytest.mark.parametrize("task", ["patient_place", "place"])
def test_no_process_waits_for_the_loop(server: EmbeddedServer, tmp_path: Path, task: str) -> None:
    with Fleet(server, tmp_path, app="tests.apps.pipes") as fleet:
        for index in range(TASKS):
            fleet.send(task, index, 0.05)
        fleet.start("-c", "4")
        fleet.wait_for(2 * TASKS, 30)  # notes of starts, and of ends
        assert (tmp_path / "started").read_text().split() == ["written"] * TASKS


def test_processes_that_end_after_each_task(server: EmbeddedServer, tmp_path: Path) -> None:
    """What was written to one that had ended goes to another."""
    with Fleet(server, tmp_path) as fleet:
        results = [fleet.send("patient_place", index, 0.01) for index in range(TASKS)]
        fleet.start("-c", "4", "--max-tasks-per-child", "1")
        until(lambda: all(result.ready() for result in results), 60, "every end")
        assert Counter(start.index for start in fleet.starts() if start.index >= 0) == Counter(range(TASKS))
        assert errors(fleet.log()) == []
