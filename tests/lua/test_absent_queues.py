"""Which queues a fleet consumes. Tasks of other queues are suspended, and leave when a worker consumes the queue."""

from __future__ import annotations

import json

import pytest
import redis

from celery_ratelimit import Limiter
from celery_ratelimit.backlog.backlog import Backlog, ParkResult
from celery_ratelimit.backlog.tuning import SCANNED_AT_ONCE
from tests.conftest import START, Clock
from tests.parks import park_one

from .backlog_steps import ABSENT_A, API, BUCKET, attend, let_out, park
from .frozen import demand, us

#: How long the workers' reports last.
IDLE, BUSY = 50.0, 6.0


def test_queue_is_absent_when_its_last_worker_has_gone(
    frozen: Limiter, parking: Backlog, clock: Clock, store: redis.Redis
) -> None:
    assert attend(parking, "one", "a", "b") == set()
    assert attend(parking, "two", "b") == set()
    assert attend(parking, "three", "a") == set()
    assert attend(parking, "one", left=["a", "b"]) == set(), "others do"
    assert attend(parking, "three", left=["a"]) == {"a"}
    assert attend(parking, "two", "b") == {"a"}
    clock.advance(5.9)
    assert attend(parking, "four", "c") == {"a"}
    clock.advance(0.1)
    assert attend(parking, "four", "c") == {"a", "b"}, "it was killed, or hangs"
    assert attend(parking, "three", "a") == {"b"}
    clock.advance(30 * 86_400 - 1)
    assert attend(parking, "four", "c") == {"a", "b"}
    clock.advance(2)
    assert attend(parking, "four", "c") == {"a"}, "b is forgotten after a month"


def test_queues_of_old_workers_do_not_hide_absent_ones(parking: Backlog, clock: Clock) -> None:
    """As broadcast queues do, of which each start of a worker has another one."""
    for number in range(1050):
        attend(parking, f"w{number}", f"bcast.{number}")
    clock.advance(10)
    attend(parking, "one", "a", "b")
    attend(parking, "one", left=["a"])
    assert "a" in attend(parking, "one", "b")


def test_killed_worker_does_not_remove_the_queue_of_an_idle_worker(parking: Backlog, clock: Clock) -> None:
    attend(parking, "idle", "a", lasts=IDLE)
    attend(parking, "busy", "a", lasts=BUSY)
    clock.advance(BUSY + 1)
    assert attend(parking, "another", "b") == set()
    clock.advance(IDLE)
    assert attend(parking, "another", "b") == {"a"}


@pytest.mark.parametrize("lasts", [BUSY, 0.0])
def test_idle_worker_keeps_its_queue_when_another_leaves(parking: Backlog, clock: Clock, lasts: float) -> None:
    attend(parking, "idle", "a", lasts=IDLE)
    attend(parking, "leaves", lasts=lasts, left=["a"])
    clock.advance(BUSY + 1)
    assert attend(parking, "another", left=["a"]) == set()


def test_worker_that_becomes_busy_is_missed_sooner(parking: Backlog, clock: Clock) -> None:
    attend(parking, "one", "a", lasts=IDLE)
    attend(parking, "one", "a", lasts=BUSY)
    clock.advance(BUSY)
    assert attend(parking, "another", "b") == {"a"}


def test_fleet_size_counts_workers_with_recent_heartbeats(parking: Backlog, clock: Clock) -> None:
    """Not their queues, and not workers that others have replaced."""
    for number in range(20):
        attend(parking, f"killed{number}", *"abcdefghij", lasts=IDLE)
    clock.advance(IDLE / 2)
    attend(parking, "ends", "a")
    attend(parking, "new", "a")
    attend(parking, "ends", lasts=0.0, left=["a"])
    attend(parking, "new", "a")
    assert parking.register.workers == 1
    attend(parking, "another")
    assert parking.register.workers == 2


def test_tasks_of_absent_queues_get_no_slot_and_keep_their_places(
    frozen: Limiter, parking: Backlog, clock: Clock, store: redis.Redis
) -> None:
    assert frozen._asker.ask((API,)).allowed
    park(parking, *[f"{number}@{queue}" for number in range(30) for queue in "ab"])
    park(parking, "odd@a@b", "odd@b@a", "unknown@c", "none")
    (looked,) = parking.take_due([API], absent=ABSENT_A)
    assert [(each.id, us(each.wait)) for each in looked.leaving] == [
        (f"{number}@b", (number + 1) * 100_000) for number in range(10)
    ]
    (lot,) = parking.contents.lots(["api"])
    assert lot.parked == 54, "suspended tasks count as parked"
    assert {each.id for each in parking.contents.lot(BUCKET, 0, -1).tasks} == {
        *[f"{number}@a" for number in range(30)],
        *[f"{number}@b" for number in range(10, 30)],
        *("odd@a@b", "odd@b@a", "unknown@c", "none"),
    }
    assert lot.oldest == START / 1e6
    # The queue is consumed again: first in, first out.
    clock.advance(1)
    (looked,) = parking.take_due([API], absent=frozenset())
    assert [each.id for each in looked.leaving] == [f"{number}@a" for number in range(10)]
    clock.advance(1)
    (looked,) = parking.take_due([API], absent=frozenset())
    assert [each.id for each in looked.leaving] == [f"{number}@{queue}" for number in range(10, 15) for queue in "ab"]


def test_backlogs_of_absent_queues_are_not_due_until_consumed(
    frozen: Limiter, parking: Backlog, clock: Clock, store: redis.Redis
) -> None:
    several = [demand("10/s", key=key) for key in ("", *[f"t{number}" for number in range(600)])]
    for asked in several:
        park(parking, "1@a", "2@a", asked=asked)
    left = list(several)
    while left:
        left = left[len(parking.take_due(left, absent=ABSENT_A)) :]
    left = [demand("10/s", key=bucket[1]) for bucket in parking.due(["api"])]
    while left:
        parking.take_due(left, due=True, absent=ABSENT_A)
        left = [demand("10/s", key=bucket[1]) for bucket in parking.due(["api"])]
    clock.advance(86_400)
    assert parking.due(["api"]) == []
    after, offset = parking.register.recall("api", None, 0)
    assert (offset, after) == (SCANNED_AT_ONCE, sorted(asked.key for asked in several)[SCANNED_AT_ONCE - 1])
    assert parking.register.recall("api", after, offset) == (None, 601)
    seen = []
    gone: dict[str, list[str]] = {}
    for _ in range(14):
        due = [demand("10/s", key=bucket[1]) for bucket in parking.due(["api"])]
        seen += [asked.key for asked in due]
        while due:
            looked = parking.take_due(due, due=True)
            for each in looked:
                gone.setdefault(each.bucket[1], []).extend(parked.id for parked in each.leaving)
            due = due[len([each for each in looked if each.again]) :]
        clock.advance(0.1)
    assert all(ids == ["1@a", "2@a"] for ids in gone.values())
    assert len(set(seen)) == 601
    assert not store.exists("ratelimit:v1:{api}::suspended_lots@fleet")


def test_suspended_tasks_expire_and_are_removed_like_others(
    frozen: Limiter, parking: Backlog, clock: Clock, store: redis.Redis
) -> None:
    park(parking, "short@a", expires=START / 1e6 + 2)
    park(parking, *[f"{number}@a" for number in range(250)])
    while parking.take_due([API], absent=ABSENT_A)[0].again == 0:
        pass
    assert park(parking, "behind@b", only_behind=True) == 251
    assert park(parking, "behind@b", most=3) == 252, "it is there"
    assert park(parking, "full@b", most=252) == ParkResult("full", 252)
    assert parking.copies.arrive(BUCKET, {"7@a": 0}) == {"7@a"}, "still parked"
    clock.advance(2)
    assert parking.due(["api"]) == [BUCKET]
    (looked,) = parking.take_due([API], absent=ABSENT_A)
    assert "short@a" in [each.id for each in looked.leaving]
    assert parking.contents.remove(BUCKET, ["100@a", "unknown@a"], purge=False)[0] == 1
    assert list(parking.contents.find(["api"], ["101", "100"])) == [{BUCKET: {"101@a": "101"}}]
    clock.advance(1)
    taken = sum(number for number, _ in parking.contents.remove_all(BUCKET, purge=True))
    assert parking.contents.lot(BUCKET, 0, -1).parked == 0
    assert taken >= 230
    assert not store.exists("ratelimit:v1:{api}::suspended@fleet")
    clock.advance(20)
    let_out(parking)
    clock.advance(20)
    parking.published({BUCKET: let_out(parking)})
    assert not [key for key in store.keys("ratelimit:*@fleet") if "suspended" in key]


def test_many_tasks_are_suspended_in_steps(frozen: Limiter, parking: Backlog, store: redis.Redis) -> None:
    park(parking, *[f"{number}@a" for number in range(1000)], "last@b")
    leaving, steps, again = [], 0, 0.0
    while again == 0.0:
        (looked,) = parking.take_due([API], absent=ABSENT_A)
        leaving, steps, again = [*leaving, *looked.leaving], steps + 1, looked.again
    assert [each.id for each in leaving] == ["last@b"]
    assert 20 <= steps <= 23


@pytest.mark.parametrize(("rate", "number", "size"), [("10000/s", 120, 1), ("10/s", 3, 600_000)], ids=["many", "large"])
def test_script_stopped_at_its_budget_is_continued(
    parking: Backlog, clock: Clock, rate: str, number: int, size: int
) -> None:
    """The resumed tasks have left, no other task is in the backlog, and the script is at its budget."""
    asked, ids = demand(rate), [f"{place}@a" for place in range(number)]
    for id in ids:
        park_one(parking, asked, id, json.dumps({"id": id, "body": "x" * size}))
    while parking.take_due([asked], absent=ABSENT_A)[0].again == 0:
        pass
    clock.advance(5)
    parking.register.recall("api", None, 0)
    gone: list[str] = []
    for _ in range(30):
        while parking.due(["api"]):
            for looked in parking.take_due([asked], due=True):
                gone += [each.id for each in looked.leaving]
                parking.published({looked.bucket: looked.leaving})
        clock.advance(0.1)
    assert gone == ids
