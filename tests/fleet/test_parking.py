"""The parking lot under real workers: deep backlogs, changes while tasks are parked, fleets that go and come back."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import datetime, timedelta, timezone

import pytest
import redis
from celery.exceptions import TaskRevokedError

from benchmarks.measures import displacement
from celery_ratelimit import Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT
from tests.fleet_of import AGAIN, Fleet, NewFleet, assert_never_over, assert_over, until
from tests.parks import park_one

NAME, BOUNDED = "tests.apps.fleet.retry", "tests.apps.fleet.bounded"


def parked(fleet: Fleet, name: str = NAME) -> int:
    return sum(lot.parked for lot in fleet.parking_lots().lots(name))


def test_an_unlimited_task_passes_a_throttled_backlog(
    new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis
) -> None:
    with new_fleet(rate="5/s") as fleet:
        fleet.send_each("retry", range(200))
        fleet.send("plain", 1000)
        fleet.start(number=2)
        until(lambda: 1000 in {start.index for start in fleet.starts()}, 15, "the unlimited task")
        assert len(fleet.permits()) < 100, "it has passed the half of them at least"
        assert store.hlen("unacked") < 100, "nor does the worker hold it"
        (lot,) = fleet.parking_lots().lots(NAME)
        assert lot.drains_in is None, "who asks does not know the limit, which is in the workers' code"
        assert lot.parked > 20
        assert_never_over(fleet.permits(), 5)
        Limiter.from_url(server.url + PATIENT, quotas={NAME: Limit("5/s", name=NAME)}).set_rate(NAME, "50/s")
        fleet.wait_for_each([*range(200), 1000], 60)
        assert_never_over(fleet.permits(), 50)
        limited = [start for start in fleet.starts() if start.index < 1000]
        assert displacement(limited)[0] <= 10
        assert fleet.sent_back() <= 200 * AGAIN
        until(lambda: not store.hlen("unacked"), 5)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_workers_of_one_queue_go_and_those_of_another_have_the_quota(
    new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis, how: str
) -> None:
    rate, number = 10, 150
    limiter = Limiter.from_url(server.url + PATIENT, quotas={NAME: Limit(f"{rate}/s", name=NAME)})
    # No task goes to another queue meanwhile, however long this takes.
    with new_fleet(rate=f"{rate}/s", ratelimit_orphans_after=3600) as fleet:
        limiter.pause(NAME, 600, force=True)
        fleet.start("-Q", "a")
        fleet.launch("-Q", "b")
        until(lambda: " ready." in fleet.log(1), 20)
        for index in range(number):
            fleet.send("retry", index, queue="a")
            fleet.send("retry", 1000 + index, queue="b")
        until(lambda: parked(fleet) == 2 * number, 30, "all being parked")
        if how == "killed":
            fleet.kill(0)
        else:
            fleet.workers[0].terminate()
            until(lambda: fleet.workers[0].poll() is not None, 20)
        limiter.resume(NAME, force=True)
        gone = _now(store)
        # Who is killed is missed after six seconds.
        settled = gone + (3.0 if how == "stopped" else 9.0)
        until(lambda: len([start for start in fleet.starts() if start.index >= 1000]) == number, 60, "all of b")
        of_b = sorted(permit.at for permit in fleet.permits())
        assert of_b[-1] >= settled, "some have run after it was known"
        assert {start.index for start in fleet.starts()} == set(range(1000, 1000 + number))
        (lot,) = fleet.parking_lots().lots(NAME)
        assert lot.parked >= number - rate * (settled - gone) - rate
        limiter.set_rate(NAME, f"{10 * rate}/s", force=True)
        fleet.launch("-Q", "a")
        fleet.wait_for(2 * number, 60)
        assert sorted(start.index for start in fleet.starts() if start.index < 1000) == list(range(number))
        # In the order of their permits, as the laws are judged. Who is made late by a busy machine loses its slot to
        # those behind it that were let out with it: within a second.
        assert displacement([permit for permit in fleet.permits() if permit.index < 1000])[0] <= 10 * rate
        assert_never_over([permit for permit in fleet.permits() if permit.index >= 1000], rate)


@pytest.mark.slow
def test_heavy_tasks_that_expire_together_all_end(new_fleet: NewFleet, limiter: Limiter, store: redis.Redis) -> None:
    """60 MB; a store has half a second for a reply."""
    with new_fleet(rate="1/h") as fleet:
        fleet.start()
        fleet.send("retry", 0).get(timeout=10)
        limiter.pause(NAME, 600, force=True)
        expires = datetime.now(timezone.utc) + timedelta(seconds=12)
        text = "x" * 200_000
        results = [fleet.send("retry", index, expires=expires, argsrepr="", shadow=text) for index in range(1, 301)]
        until(lambda: parked(fleet) == 300, 12, "all being parked")
        for result in results:
            with pytest.raises(TaskRevokedError):
                result.get(timeout=30)
        assert not list(fleet.parking_lots().lots(NAME))


def test_waiting_tasks_that_are_revoked_or_expire_leave_at_once(new_fleet: NewFleet, store: redis.Redis) -> None:
    """None waits for its slot, which is in minutes: neither parked ones, nor with "wait" those in the worker."""
    stubborn = "tests.apps.fleet.stubborn"
    with new_fleet(rate="6/h") as fleet:
        fleet.start()
        fleet.send_each("wait", [0])
        _, revoked, left = fleet.send_each("retry", range(10, 13))
        now = datetime.now(timezone.utc)
        expired = fleet.send_each("retry", [13], expires=now + timedelta(seconds=6))
        attempt = fleet.send("stubborn", 20)
        waiting = [f"[{each.id}] throttled" for each in (revoked, left, *expired)]
        until(lambda: all(line in fleet.log() for line in waiting) and parked(fleet, stubborn), 20, "their waiting")
        expired += fleet.send_each("wait", range(1, 6), expires=now + timedelta(seconds=8))
        revoked.revoke()
        attempt.revoke()  # the store knows it by another id than that of the first attempt
        for result in (revoked, attempt, *expired):
            with pytest.raises(TaskRevokedError):
                result.get(timeout=10)
        until(lambda: (parked(fleet), parked(fleet, stubborn)) == (1, 0), 10, "their leaving the lots")
        assert [task.id for task in fleet.parking_lots().tasks(NAME)] == [left.id]
        assert not store.exists(f"ratelimit:v1:{{{NAME}}}::slots")
        until(lambda: not store.exists("celery", "unacked"), 10, "their messages being let go")
        assert fleet.started() == 3


def test_people_let_parked_tasks_out_and_throw_them_away(new_fleet: NewFleet, limiter: Limiter) -> None:
    with new_fleet(rate="1/h", ratelimit_quotas={NAME: "1/h"}) as fleet:
        fleet.start()
        results = fleet.send_each("retry", range(6))
        lots = fleet.parking_lots()
        until(lambda: parked(fleet) == 5, 10)
        until(lambda: [lot.drains_in for lot in lots.lots(NAME)] != [None], 20, "a forecast, once the worker is known")
        (lot,) = lots.lots(NAME)
        assert lot.drains_in == pytest.approx(5 * 3600, abs=30), "the first of them in an hour"
        assert lot.oldest == pytest.approx(time.time(), abs=30)
        assert [task.args for task in lots.tasks(NAME, first=1, number=2)] == ["(2,)", "(3,)"]
        assert lots.purge(NAME, ids=[results[1].id, results[2].id]) == 2
        assert lots.release(NAME, ids=[results[4].id]) == 1
        until(lambda: fleet.log().count(f"[{results[4].id}] received") == 2, 10, "it being delivered")
        until(lambda: parked(fleet) == 3, 10, "it being parked again: its limit is closed")
        assert [task.id for task in lots.tasks(NAME)] == [result.id for result in results[3:]], "where it was"
        limiter.reset(Limit("1/h", name=NAME))
        fleet.wait_for(2, 10)
        assert [start.index for start in fleet.starts()] == [0, 3], "the limit is open: the first one may go"
        assert lots.purge(NAME) == 2
        assert not lots.lots(NAME)


@pytest.mark.slow
def test_what_overflows_goes_to_another_queue_as_it_was_sent(new_fleet: NewFleet, store: redis.Redis) -> None:
    with new_fleet(rate="4/s") as fleet:
        results = fleet.send_each("overflowing", range(20))
        fleet.start("-Q", "celery")
        until(lambda: store.llen("later") >= 5, 10, "tasks going to the other queue")
        until(lambda: fleet.started() >= 4, 10)
        until(lambda: store.llen("later") + fleet.started() == 20, 10, "all having gone somewhere")
        assert b"ratelimit" not in str(store.lindex("later", 0)).encode().replace(b"celery_ratelimit", b"")
        # There they wait for their turn, however long.
        fleet.launch("-Q", "later")
        assert sorted(result.get(timeout=20) for result in results) == list(range(20))
        assert_never_over(fleet.permits(), 4)


def test_wait_leaves_a_closed_queue_in_the_broker_and_serves_the_others(
    new_fleet: NewFleet, store: redis.Redis
) -> None:
    """One process and a prefetch of four: without it, the queue that has to wait fills it."""
    with new_fleet(rate="1/5s") as fleet:
        fleet.send_each("wait", range(20), queue="slow")
        fleet.start("-Q", "slow,celery", "-c", "1")
        fleet.wait_for(1, 20)
        until(lambda: store.hlen("unacked") >= 1, 5)
        for number in range(10):
            fleet.send("plain", 100 + number).get(timeout=60)
        assert sum(start.index < 100 for start in fleet.starts()) <= 8, "behind the others ten would take longer"
        assert store.hlen("unacked") <= 8, "what had come in before the limit was known to be closed: two batches"
        fleet.wait_for(13, 20)
        assert_never_over(fleet.permits(), 0.2)
        starts = [start for start in fleet.starts() if start.index < 100]
        assert [start.index for start in starts][:3] == [0, 1, 2]
        assert "Requeuing" not in fleet.log()


def _now(store: redis.Redis) -> float:
    seconds, microseconds = store.time()
    return float(seconds) + microseconds / 1e6


@pytest.mark.slow
def test_one_busy_tenant_beside_many_whose_limits_are_closed(
    new_fleet: NewFleet, limiter: Limiter, store: redis.Redis
) -> None:
    name, number, rate = "tests.apps.fleet.tenant", 500, 20
    limit = Limit("1/h", name=name, key="tenant:{tenant}")
    with new_fleet(rate="1/h") as fleet:
        parking = fleet.parking_lots()._backlog
        for index in range(number):
            asked = LimitRequest(limit, name, f"tenant:{index}")
            assert limiter._asker.ask((asked,)).allowed
            message = json.dumps({"headers": {"id": f"{index}"}})
            park_one(parking, asked, f"{index}@celery", message)
        limiter.set_rate(name, f"{rate}/s", key="tenant:busy", force=True)
        fleet.send_each("tenant", range(120), "busy")
        fleet.start(number=2)
        fleet.wait_for(20, 20)
        lots = f"ratelimit:v1:{{{name}}}::due@{parking._fleet}"
        until(lambda: store.zcount(lots, (_now(store) + 600) * 1e6, "+inf") == number, 20, "all having been looked at")
        before, first = dict(store.zrange(lots, 0, -1, withscores=True)), fleet.started()
        store.config_resetstat()
        fleet.wait_for(first + 50, 20)
        scripts = store.info("commandstats")["cmdstat_evalsha"]["calls"]
        tasks = fleet.started() - first
        fleet.wait_for(120, 40)
        after = dict(store.zrange(lots, 0, -1, withscores=True))
        assert {key: at for key, at in after.items() if key != "tenant:busy"} == {
            key: at for key, at in before.items() if key != "tenant:busy"
        }, "no worker has looked at lots that are closed"
        assert scripts <= 4 * tasks
        assert_over(fleet.permits()[20:], rate / 2)
        assert_never_over(fleet.permits(), rate)


def test_backlog_of_each_key_is_bounded(new_fleet: NewFleet, limiter: Limiter) -> None:
    with new_fleet(rate="1/h") as fleet:
        results = [fleet.send("bounded", index, "ab"[index % 2]) for index in range(2 * 25)]
        fleet.start(number=2)
        beyond = 2 * (25 - 1 - 5)
        until(lambda: sum(result.ready() for result in results) == beyond + 2, 30, "the end of all but the parked ones")
        lots = fleet.parking_lots()
        assert {lot.key: lot.parked for lot in lots.lots(BOUNDED)} == dict.fromkeys(("a", "b"), 5)
        states = Counter(result.state for result in results)
        assert states == {"SUCCESS": 2, "REVOKED": beyond, "PENDING": 2 * 5}
        reason = str(next(result.result for result in results if result.state == "REVOKED"))
        assert reason.endswith(f", and {5} tasks wait already (max_parked)")

        lots.purge(BOUNDED, "a", ids=[lots.tasks(BOUNDED, "a")[0].id])
        another = [fleet.send("bounded", 100 + index, "a") for index in range(2)]
        until(lambda: sum(result.ready() for result in another) == 1, 20, "one more being refused")
        assert {lot.key: lot.parked for lot in lots.lots(BOUNDED)} == dict.fromkeys(("a", "b"), 5)

        limiter.set_rate(BOUNDED, "50/s", force=True)
        fleet.wait_for(2 + 2 * 5, 20)
        until(lambda: not lots.lots(BOUNDED), 20, "the lots being empty")
        counted = Counter(result.state for result in [*results, *another])
        assert counted["SUCCESS"] == 2 + 2 * 5
        assert counted["REVOKED"] == beyond + 1
        assert len(fleet.starts()) == 2 + 2 * 5
