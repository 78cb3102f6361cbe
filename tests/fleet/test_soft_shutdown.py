"""A soft shutdown: the worker's loop stands still, and tasks end meanwhile."""

from __future__ import annotations

import signal

import pytest

from tests.fleet_of import NewFleet, errors, until


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_soft_shutdown_releases_leases_of_ended_tasks(new_fleet: NewFleet, pool: str) -> None:
    with new_fleet(worker_soft_shutdown_timeout=120.0) as fleet:
        fleet.start("-Q", "first", "-P", pool, "-c", "1")
        fleet.start("-Q", "second", "-P", pool, "-c", "1")
        fleet.send("train", 0, 3.0, 4, queue="first")
        fleet.wait_for(1, 20)
        fleet.send("patient_train", 1, 0.0, 4, queue="second")
        until(lambda: "throttled by limit 'gpus'" in fleet.log(1), 20, "its waiting")
        fleet.workers[0].send_signal(signal.SIGQUIT)
        until(lambda: 1 in [start.index for start in fleet.starts()], 20, "the start of the task that waits")
        assert "Initiating Soft Shutdown" in fleet.log(0)
        assert fleet.workers[0].poll() is None, "it still waits"
        assert not errors(fleet.log(0) + fleet.log(1))
