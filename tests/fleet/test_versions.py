"""A rolling deploy: both versions work on the same queues, each with keys of its own or on the same ones."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest
import redis

from benchmarks import processes, records
from celery_ratelimit import Limiter
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, assert_never_over, assert_over, until
from tests.rabbitmq import Broker

TASKS = 60
#: Of each version, a second.
RATE = 10
#: A task that is taken by the other version has no slot there, and may be sent back once more.
MOST_SENT_BACK = 2 * TASKS


@pytest.mark.slow
@pytest.mark.parametrize("task", ["retry", "wait"])
def test_two_versions_of_the_keys_share_queues_and_lose_nothing(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, task: str
) -> None:
    v0 = tmp_path / "v0"
    with Fleet(server, tmp_path, rate=f"{RATE}/s") as fleet:
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
            stored_for_one(Limiter.from_url(server.url), fleet, v0)
        assert "Traceback" not in fleet.log(0) + fleet.log(1)


def stored_for_one(limiter: Limiter, fleet: Fleet, v0: Path) -> None:
    """What is stored for one version says nothing to the other."""
    asked = time.time()
    limiter.pause("tests.apps.fleet.retry", 1.5, force=True)
    for index in range(TASKS, TASKS + 40):
        fleet.send("retry", index)
    until(lambda: started(fleet.directory) + started(v0) >= TASKS + 40, 15, "the start of every task")
    one, other = [
        [each.at for each in records.read(path / "permits") if each.at > asked] for path in (fleet.directory, v0)
    ]
    assert len(one) + len(other) == 40
    assert all(at >= asked + 1.5 for at in one), "the version that is paused"
    assert any(at < asked + 1.5 for at in other), "the version that is not"


def started(directory: Path) -> int:
    return sum(records.count(directory).values())


# -- An earlier version of this library, with the same keys ------------------------------------------------------------

#: The last one that was deployed before this.
EARLIER = "26778aa"


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole tree as it was, with its scripts where its own code finds them."""
    root = tmp_path_factory.mktemp("earlier")
    archive = root / "archive.zip"
    command = ["git", "-C", str(processes.ROOT), "archive", "-o", str(archive), EARLIER]
    if shutil.which("git") is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip(f"the history of this checkout does not have {EARLIER}")
    shutil.unpack_archive(archive, root)
    shutil.copytree(root / "lua", root / "celery_ratelimit" / "lua")
    return root


def launch_both(fleet: Fleet, earlier: Path) -> None:
    """The first worker is of the earlier version."""
    fleet.root = earlier
    fleet.launch()
    fleet.root = processes.ROOT
    fleet.start()


@pytest.fixture(params=["redis", "rabbitmq"])
def broker_url(request: pytest.FixtureRequest, server: EmbeddedServer) -> str:
    return server.url if request.param == "redis" else str(request.getfixturevalue("broker").url)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["retry", "wait"])
def test_an_earlier_version_and_this_one_share_limits_and_lots(
    server: EmbeddedServer, store: redis.Redis, broker_url: str, earlier: Path, tmp_path: Path, task: str
) -> None:
    """One bucket; what the one has parked the other lets out."""
    with Fleet(server, tmp_path, rate="20/s", broker=broker_url, ratelimit_url=server.url) as fleet:
        launch_both(fleet, earlier)
        ids = [fleet.send(task, index).id for index in range(100)]
        fleet.wait_for(100, 30)
        assert sorted(start.index for start in fleet.starts()) == list(range(100))
        assert sorted(permit.index for permit in fleet.permits()) == list(range(100))
        assert_never_over(fleet.permits(), 20)
        assert not fleet.parking_lots().lots()
        by = [{id for id in ids if f"[{id}] succeeded" in fleet.log(index)} for index in range(2)]
        assert all(len(done) >= 10 for done in by), "both work"
        if task == "retry":
            parked = [{id for id in ids if f"[{id}] throttled" in fleet.log(index)} for index in range(2)]
            assert parked[0] & by[1]
            assert parked[1] & by[0]
        assert "Traceback" not in fleet.log(0) + fleet.log(1)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1], ids=["the earlier one", "this one"])
def test_the_other_version_goes_on_alone(
    server: EmbeddedServer, store: redis.Redis, broker: Broker, earlier: Path, tmp_path: Path, killed: int
) -> None:
    """On RabbitMQ, which hands out at once what the killed worker had. Redis does at its visibility timeout."""
    with Fleet(server, tmp_path, rate="20/s", broker=broker.url, ratelimit_url=server.url) as fleet:
        launch_both(fleet, earlier)
        for index in range(120):
            fleet.send("late", index)
        fleet.wait_for(30, 20)
        fleet.kill(killed)
        until(lambda: {start.index for start in fleet.starts()} == set(range(120)), 40, "every task")
        assert len(fleet.starts()) - 120 <= 4, "what was running, and had just done"
        assert_never_over(fleet.permits(), 20)
        assert not fleet.parking_lots().lots()


@pytest.mark.slow
def test_a_limit_becomes_fair_while_an_earlier_version_parks_and_lets_out_too(
    server: EmbeddedServer, store: redis.Redis, broker_url: str, earlier: Path, tmp_path: Path
) -> None:
    """The earlier one knows nothing of shares: nothing is stranded, and nothing runs twice."""
    shutil.copy(processes.ROOT / "tests" / "apps" / "shares.py", earlier / "tests" / "apps")
    with Fleet(
        server, tmp_path, rate="20/s", broker=broker_url, ratelimit_url=server.url, app="tests.apps.shares"
    ) as fleet:
        fleet.root = earlier
        fleet.launch()

        def parked() -> int:
            return sum(store.zcard(key) for key in store.scan_iter("ratelimit:v1:{both}::parked@*"))

        def send(index: int, tenant: str) -> None:
            fleet.sender.send_task("tests.apps.shares.both", args=[index, tenant])

        for index in range(100):
            send(index, "big")
        until(lambda: parked() >= 40, 20, "an earlier version's backlog")
        fleet.root = processes.ROOT
        fleet.start()
        for index in range(100, 160):
            send(index, ("big", "small")[index % 2])
        fleet.wait_for(160, 60)
        assert sorted(start.index for start in fleet.starts()) == list(range(160))
        assert_never_over(fleet.permits(), 20)
        until(lambda: not parked(), 20, "the end of the lot")
        assert "Traceback" not in fleet.log(0) + fleet.log(1)
