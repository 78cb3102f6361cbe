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
    assert park(parking, *map(to_park, "vwx"), bucket=OTHER) == ["parked", "parked", "no_room"]
    assert parked(parking) == ["a", "b"]


def test_task_without_or_with_a_larger_bound_is_parked(parking: Backlog) -> None:
    park(parking, *map(to_park, "ab"))
    assert park(parking, to_park("c", None), to_park("d", 4), to_park("e", 4)) == ["parked", "parked", "no_room"]


def test_repeated_park_finds_its_task(parking: Backlog) -> None:
    park(parking, *map(to_park, "ab"))
    assert park(parking, to_park("a"), to_park("b")._replace(attempt=1), to_park("c")._replace(attempt=1)) == [
        *("parked", "parked", "no_room")
    ]
    assert parked(parking) == ["a", "b"]


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


def test_suspended_tasks_count(parking: Backlog) -> None:
    assert parking._limiter._asker.ask([SLOW]).allowed
    park(parking, *[to_park(id)._replace(queue="q") for id in "ab"])
    parking.take_due([SLOW], absent=["q"])
    assert len(parking._limiter.client.zrange("ratelimit:v1:{api}:tenant%3A1:suspended@fleet", 0, -1)) == 2
    assert park(parking, to_park("c")) == ["no_room"]


def test_newest_duplicate_needs_no_room(parking: Backlog) -> None:
    """A replaced task counts until it has left."""
    assert parking._limiter._asker.ask([SLOW]).allowed
    park(parking, to_park("a", unique="n1"), to_park("b", unique="n2"))
    assert park(parking, to_park("c", unique="n3"), to_park("d", unique="n1")) == ["no_room", "parked"]
    (polled,) = parking.take_due([SLOW])
    assert [(each.id, each.survivor) for each in polled.leaving] == [("a", "d")]
    assert parked(parking) == ["d", "b"]
    assert park(parking, to_park("e", unique="n3")) == ["no_room"]


def test_replaced_duplicate_needs_no_room(parking: Backlog) -> None:
    park(parking, to_park("a", unique="o1"), to_park("b"))
    assert park(parking, to_park("c", unique="o1"), to_park("d", unique="o2")) == ["replaced", "no_room"]


def test_bound_of_a_fair_limit_counts_all_shares(parking: Backlog) -> None:
    of_shares = [to_park(id)._replace(share=share) for id, share in zip("abc", ["x", "y", "z"], strict=True)]
    assert park(parking, *of_shares) == ["parked", "parked", "no_room"]
    assert parking.scripts.command("zrange", "ratelimit:v1:{api}:tenant%3A1:turns@fleet", 0, -1)[-2:] == [b"x", b"y"]


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
