"""The backlog of a renamed or removed limit, quota or queue is reported, and returns to its queues (law 12)."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_ratelimit import ConfigurationError, Limiter, RateLimitError
from celery_ratelimit.lots import ParkingLots
from tests.fleet_of import Fleet, NewFleet, until
from tests.rabbitmq import Broker
from tests.shop import command_line

PLAIN, RETRY = "tests.apps.fleet.plain", "tests.apps.fleet.retry"
GRACE = 3.0


def deploy(fleet: Fleet, **conf: Any) -> None:
    """What the workers that are started from now on have as settings."""
    fleet.env["TEST_CONF"] = json.dumps({"ratelimit_orphans_after": GRACE, **conf})


def quota(name: str, rate: str) -> dict[str, Any]:
    return {"ratelimit_quotas": {name: rate}, "ratelimit_tasks": {PLAIN: [name]}}


def parked(fleet: Fleet) -> Mapping[str, int]:
    counts: Counter[str] = Counter()
    for lot in ParkingLots(fleet.sender).lots():
        counts[lot.name] += lot.parked
    return counts


@pytest.mark.parametrize(
    ("broker_url", "app", "later"),
    [
        pytest.param("redis", "fleet", quota("stripe_v2", "100/s"), id="renamed"),
        pytest.param("rabbitmq", "fleet", quota("stripe_v2", "100/s"), id="renamed, rabbitmq", marks=pytest.mark.slow),
        # Nothing is limited any more, and no gate would be needed.
        pytest.param("redis", "gate_only", {}, id="removed", marks=pytest.mark.slow),
    ],
    indirect=["broker_url"],
)
def test_backlog_of_a_renamed_or_removed_quota_returns_to_its_queue(
    new_fleet: NewFleet, broker_url: str, app: str, later: dict[str, Any]
) -> None:
    with new_fleet(install=True, app=f"tests.apps.{app}", broker=broker_url) as fleet:
        deploy(fleet, **quota("stripe", "1/h"))
        fleet.start()
        for index in range(40):
            fleet.send("plain", index, priority=index % 3)
        until(lambda: parked(fleet)["stripe"] == 39, 20, "a backlog")
        (lot,) = ParkingLots(fleet.sender).lots()
        assert (lot.name, lot.parked, lot.attended) == ("stripe", 39, True)
        fleet.stop()
        deploy(fleet, **later)
        fleet.start()
        fleet.wait_for_each(range(40), 30)
        log = fleet.log()
        assert "39 tasks are parked for the limit 'stripe', which no worker has had" in log
        assert "39 tasks of the limit 'stripe', which no worker has, are in their queues again: celery" in log
        assert not parked(fleet)


@pytest.mark.slow
def test_rolling_deploy_keeps_the_backlog_of_the_old_quota(new_fleet: NewFleet) -> None:
    with new_fleet(install=True) as fleet:
        deploy(fleet, **quota("stripe", "1/h"))
        fleet.start()
        fleet.send_each("plain", range(10))
        until(lambda: parked(fleet)["stripe"] == 9, 20, "a backlog")
        deploy(fleet, **quota("stripe_v2", "1/h"))
        fleet.start()
        time.sleep(3 * GRACE)
        assert parked(fleet)["stripe"] == 9
        assert "stripe'" not in fleet.log(1)


def test_backlog_of_a_renamed_queue_returns_to_it(new_fleet: NewFleet, store: redis.Redis) -> None:
    """Workers consume another queue under the same quota instead: its tasks go back to it, as they were sent."""
    with new_fleet(install=True) as fleet:
        deploy(fleet, **quota("stripe", "1/h"))
        fleet.start("-Q", "a")
        fleet.send_each("plain", range(10), queue="a")
        until(lambda: parked(fleet)["stripe"] == 9, 20, "a backlog")
        fleet.stop()
        deploy(fleet, **quota("stripe", "100/s"))
        fleet.start("-Q", "b")
        fleet.send("plain", 100, queue="b")
        until(lambda: store.llen("a") == 9, 30, "their being in their queue")
        for message in store.lrange("a", 0, -1):
            headers = json.loads(message)["headers"]
            assert not {"ratelimit", "celery-ratelimit-return"} & headers.keys()
        until(lambda: "are in their queues again: a" in fleet.log(), 10, "the report")
        fleet.env["TEST_CONF"] = "{}"
        fleet.app = "tests.apps.uninstalled"
        fleet.start("-Q", "a")
        fleet.wait_for(11, 20)


@pytest.mark.slow
def test_messages_in_the_old_return_queue_run_after_its_name_changed(new_fleet: NewFleet, broker_url: str) -> None:
    """The name of return queues was changed while messages were in one."""
    with new_fleet(install=True, broker=broker_url) as fleet:
        deploy(fleet, **quota("stripe", "2/s"))
        fleet.start("-c", "1")
        fleet.send_each("plain", range(10))
        fleet.wait_for(2, 20)
        fleet.stop()  # what was back from its lot goes back to the return queue
        deploy(fleet, ratelimit_return_queue="back.{queue}", **quota("stripe", "20/s"))
        fleet.start("-c", "1")
        fleet.wait_for_each(range(10), 30)


def test_drained_tasks_run_after_the_package_was_removed(
    new_fleet: NewFleet, limiter: Limiter, broker_url: str, tmp_path: Path
) -> None:
    """docs/operations.md: stop the workers, drain, start workers without it."""
    with new_fleet(rate="2/s", broker=broker_url) as fleet:
        for index in range(30):
            fleet.send("retry", index, priority=index % 3)
            fleet.send("tenant", 100 + index, f"{index % 3}", headers={"mine": index})
        fleet.start()
        fleet.wait_for(6, 20)
        for name in (RETRY, "tests.apps.fleet.tenant"):
            limiter.pause(name, 3600, force=True)
        until(lambda: sum(parked(fleet).values()) + fleet.started() == 60, 20, "all being parked or started")
        until(lambda: fleet.asked("active") == [], 20, "what started having ended")
        fleet.stop()  # what is just being handed to a process would run twice, as it does without us
        drained = ParkingLots(fleet.sender).drain()
        ran = fleet.started()
        assert drained > 30
        assert not ParkingLots(fleet.sender).lots()
        fleet.app = "tests.apps.uninstalled"
        fleet.start()
        fleet.wait_for_each([*range(30), *range(100, 130)], 20)
        sent = {int(path.stem): json.loads(path.read_text()) for path in tmp_path.glob("*.headers")}
        assert len(sent) == 60 - ran
        for index, headers in sent.items():
            assert not {"ratelimit", "celery-ratelimit-return"} & headers.keys()
            assert index < 100 or headers["mine"] == index - 100


def test_drain_refuses_while_workers_answer(new_fleet: NewFleet) -> None:
    with new_fleet(rate="1/h") as fleet:
        fleet.start()
        fleet.send_each("retry", range(30))
        until(lambda: sum(parked(fleet).values()) == 29, 20, "a backlog")
        lots = ParkingLots(fleet.sender)
        with pytest.raises(RateLimitError, match=r"w0@test .*force=True"):
            lots.drain()
        assert sum(parked(fleet).values()) == 29
        found = command_line(fleet.sender)("drain")
        assert (found.exit_code, "w0@test" in found.output, "--force" in found.output) == (1, True, True)
        assert lots.drain(force=True) >= 29
        fleet.stop()
        fleet.workers.clear()
        lots.drain()
        assert not lots.lots()


def test_drain_returns_tasks_of_killed_workers(new_fleet: NewFleet, broker: Broker) -> None:
    with new_fleet(rate="5/s", broker=broker.url) as fleet:
        fleet.send_each("late", range(40))
        fleet.start()
        fleet.wait_for(8, 20)
        fleet.kill(0)
        fleet.workers.clear()
        until(lambda: not broker.consumers("celery"), 10, "the broker having seen it")
        ParkingLots(fleet.sender).drain()
        fleet.app = "tests.apps.uninstalled"
        fleet.start()
        until(lambda: {start.index for start in fleet.starts()} == set(range(40)), 20, "every task being run")
        twice = [index for index, times in Counter(start.index for start in fleet.starts()).items() if times > 1]
        assert len(twice) <= 2, "what was running in the two processes"


@pytest.mark.parametrize("act", ["lots", "tasks", "release", "purge"])
def test_unknown_limit_name_is_refused_without_force(new_fleet: NewFleet, act: str) -> None:
    with new_fleet(ratelimit_quotas={"stripe": "1/h"}, ratelimit_queues={"emails": "stripe"}) as fleet:
        lots = ParkingLots(fleet.sender)
        with pytest.raises(ConfigurationError, match=r"called 'strpe'.*Did you mean 'stripe'\?.*force=True"):
            getattr(lots, act)("strpe")
        assert not getattr(lots, act)("strpe", force=True)
        assert not getattr(lots, act)("stripe")


def test_parked_tasks_run_after_the_index_was_lost(new_fleet: NewFleet, limiter: Limiter, store: redis.Redis) -> None:
    with new_fleet(rate="50/s") as fleet:
        fleet.env["TEST_CONF"] = json.dumps({"ratelimit_orphans_after": 3.0})
        fleet.start()
        limiter.pause(RETRY, 3600, force=True)
        fleet.send_each("retry", range(60))
        until(lambda: [lot.parked for lot in ParkingLots(fleet.sender).lots(RETRY)] == [60], 20, "a backlog")
        lost = [key for kind in ("due", "parked") for key in store.keys(f"*:{kind}@*")]
        assert len(lost) == 2
        store.delete(*lost)
        limiter.resume(RETRY, force=True)
        fleet.wait_for_each(range(60), 40)
        until(lambda: "The store has lost keys of the limit" in fleet.log(), 5, "the warning")
