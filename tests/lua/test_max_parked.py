"""`max_parked` bounds the tasks of a backlog; the script that parks them counts."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from celery_ratelimit import Limit, Limiter
from celery_ratelimit.backlog.backlog import Backlog, ParkResult, ToPark
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT, START, Clock
from tests.parks import packed

BUCKET, OTHER = ("api", "tenant:1"), ("api", "tenant:2")
SLOW = LimitRequest(Limit("1/d", name="api", key="{tenant}"), "api", "tenant:1")
CALLERS = 20


def to_park(id: str, most: int | None = 2, *, copy: int = 1, unique: str = "", expires: float = 0.0) -> ToPark:
    return packed(id, 1, json.dumps({"id": id}), copy, unique=unique, expires=expires, max_parked=most)


def park(parking: Backlog, *messages: ToPark, bucket: tuple[str, str] = BUCKET, only_behind: bool = False) -> list[str]:
    return [each.outcome for each in parking.park({bucket: messages}, only_behind=only_behind)[bucket]]


def parked(parking: Backlog) -> list[str]:
    return [each.id for each in parking.contents.lot(BUCKET, 0, -1).tasks]


def test_only_max_parked_tasks_are_parked_per_backlog(parking: Backlog) -> None:
    assert park(parking, *map(to_park, "abcd")) == ["parked", "parked", "no_room", "no_room"]
    assert parking.park({BUCKET: [to_park("e")]}, only_behind=True)[BUCKET] == [ParkResult("no_room", 2)]
    repeated = [to_park("b")._replace(attempt=1), to_park("c")._replace(attempt=1)]
    assert park(parking, to_park("a"), *repeated) == ["parked", "parked", "no_room"], "it finds its task"
    assert park(parking, *map(to_park, "vwx"), bucket=OTHER) == ["parked", "parked", "no_room"]
    assert parked(parking) == ["a", "b"]
    assert park(parking, to_park("f", None), to_park("g", 4), to_park("h", 4)) == ["parked", "parked", "no_room"]


@pytest.mark.parametrize("share", [None, "xy"])
def test_suspended_tasks_of_all_shares_count(parking: Backlog, share: str | None) -> None:
    assert parking._limiter._asker.ask([SLOW]).allowed
    park(parking, *[to_park(id)._replace(queue="q", share=share and share[n]) for n, id in enumerate("ab")])
    assert park(parking, to_park("c")._replace(share=share and "z")) == ["no_room"]
    parking.take_due([SLOW], absent=["q"])
    assert parking._limiter.client.zcard("ratelimit:v1:{api}:tenant%3A1:suspended@fleet") == 2
    assert park(parking, to_park("c")) == ["no_room"]


@pytest.mark.parametrize("purge", [True, False])
def test_released_or_deleted_task_makes_room(parking: Backlog, purge: bool) -> None:
    park(parking, *map(to_park, "ab"))
    assert parking.contents.remove(BUCKET, ["a"], purge=purge)[0] == 1
    assert park(parking, to_park("c"), to_park("d")) == ["parked", "no_room"]


def test_expired_task_makes_room_when_it_leaves(parking: Backlog, clock: Clock) -> None:
    assert parking._limiter._asker.ask([SLOW]).allowed
    park(parking, to_park("a", expires=START / 1e6 + 1), to_park("b"))
    clock.advance(2)
    assert park(parking, to_park("c")) == ["no_room"]
    (polled,) = parking.take_due([SLOW])
    assert [each.id for each in polled.leaving] == ["a"]
    assert park(parking, to_park("c"), to_park("d")) == ["parked", "no_room"]


def test_returned_task_is_parked_again_beyond_the_bound(parking: Backlog) -> None:
    """Its place was taken meanwhile. It counts: while it is there, no new task is parked."""
    park(parking, *map(to_park, "ab"))
    (returned,) = parking.contents.remove(BUCKET, ["a"], purge=False)[1]
    parking.published({BUCKET: [returned]})
    assert park(parking, to_park("c"), to_park("a", copy=returned.copy + 1)) == ["parked", "parked"]
    parking.contents.remove(BUCKET, ["b"], purge=True)
    assert park(parking, to_park("d")) == ["no_room"]
    parking.contents.remove(BUCKET, ["c"], purge=True)
    assert park(parking, to_park("d")) == ["parked"]


def test_surviving_duplicate_needs_no_room(parking: Backlog) -> None:
    """A replaced task counts until it has left; with keep="oldest" the newer one ends."""
    park(parking, to_park("a", unique="o1"), to_park("b"), bucket=OTHER)
    assert park(parking, to_park("c", unique="o1"), to_park("d", unique="o2"), bucket=OTHER) == ["replaced", "no_room"]
    assert parking._limiter._asker.ask([SLOW]).allowed
    park(parking, to_park("a", unique="n1"), to_park("b", unique="n2"))
    assert park(parking, to_park("c", unique="n3"), to_park("d", unique="n1")) == ["no_room", "parked"]
    (polled,) = parking.take_due([SLOW])
    assert [(each.id, each.survivor) for each in polled.leaving] == [("a", "d")]
    assert parked(parking) == ["d", "b"]
    assert park(parking, to_park("e", unique="n3")) == ["no_room"]


def test_concurrent_callers_never_exceed_the_bound(server: EmbeddedServer, store: redis.Redis) -> None:
    """The half of the callers has batches, and lots are emptied meanwhile."""
    most, rounds, together = 7, 30, threading.Barrier(CALLERS)
    seen: list[int] = []

    def call(number: int) -> Counter[str]:
        said: Counter[str] = Counter()
        with redis.Redis.from_url(server.url + PATIENT) as client:
            backlog = Backlog(Limiter(client, counts=False), "fleet", redelivery=3600)
            together.wait()
            for turn in range(rounds):
                batch = [to_park(f"{number}-{turn}-{each}", most) for each in range(1 + number % 2 * 3)]
                said += Counter(park(backlog, *batch))
                tasks = parked(backlog)
                seen.append(len(tasks))
                if turn % 5 == number % 5 and tasks:
                    said["left"] += backlog.contents.remove(BUCKET, tasks[:1], purge=True)[0]
        return said

    with ThreadPoolExecutor(CALLERS) as threads:
        said = sum(threads.map(call, range(CALLERS)), Counter[str]())
    sent = sum(1 + number % 2 * 3 for number in range(CALLERS)) * rounds
    assert max(seen) == most
    assert said["parked"] + said["no_room"] == sent
    assert said["parked"] - said["left"] == store.zcard("ratelimit:v1:{api}:tenant%3A1:parked@fleet") <= most
    assert said["left"] > 0
