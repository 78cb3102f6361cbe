"""The store loses keys of a backlog: tasks with a payload still run, and so do later tasks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest
import redis

from celery_ratelimit import Limiter
from celery_ratelimit.backlog.backlog import Backlog, ToPark
from celery_ratelimit.backlog.messages import Bucket
from celery_ratelimit.backlog.unattended_tasks import LostKeyRepair
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limits.rate_limit import Limit
from tests.conftest import Clock
from tests.parks import packed

OF_LOT = (
    *("parked", "payloads", "in_flight", "ack_unconfirmed", "valid_copy"),
    *("expiring", "suspended", "unique", "shares", "turns"),
)
SHARED = ("due", "code", "task_index", "suspended_lots", "costs")
LOST = [*itertools.combinations((*OF_LOT, *SHARED), 1), *itertools.combinations((*OF_LOT, *SHARED), 2)]
ABSENT = frozenset({"absent"})
Lose = Callable[..., None]


def to_park(id: str) -> ToPark:
    said = {"id": id.partition("@")[0], "headers": {"id": id.partition("@")[0]}}
    return packed(id, 2, json.dumps(said), 1, share=id[0])


def run_all(parking: Backlog, clock: Clock, asked: LimitRequest, seconds: int) -> list[str]:
    """What leaves if a lot is looked at when it is due and never else, and all queues have workers."""
    left: list[str] = []
    for _ in range(2 * seconds):
        for name, key in parking.due([asked.name]) or ():
            (looked,) = parking.take_due([LimitRequest(asked.limit, name, key)], due=True)
            left += [each.id for each in looked.leaving]
            parking.published({looked.bucket: looked.leaving})
        clock.advance(0.5)
    return left


def repair_in_steps(parking: Backlog, steps: int = 3) -> tuple[int, int]:
    repair = LostKeyRepair(parking.scripts)
    done = [repair.step("api") for _ in range(steps)]
    return sum(each.again for each in done), sum(each.removed for each in done)


@pytest.fixture(params=["", "tenant"])
def asked(request: pytest.FixtureRequest) -> LimitRequest:
    return LimitRequest(Limit("10/s", name="api", burst=2, fair="who"), "api", request.param)


@pytest.fixture
def lose(store: redis.Redis, asked: LimitRequest) -> Lose:
    def lose(*kinds: str) -> None:
        for kind in kinds:
            key = "" if kind in SHARED else asked.key
            store.delete(f"ratelimit:v1:{{api}}:{key}:{kind}@fleet")

    return lose


@pytest.mark.rows(60)
@pytest.mark.parametrize("kinds", LOST, ids="+".join)
def test_tasks_with_a_payload_run_after_lost_keys(
    parking: Backlog, store: redis.Redis, clock: Clock, asked: LimitRequest, lose: Lose, kinds: tuple[str, ...]
) -> None:
    if asked.key and {"due", "task_index"} <= {*kinds}:
        pytest.skip("such a lot is found when a task is parked there: the next test")
    bucket: Bucket = ("api", asked.key)
    names = [f"{share}{number}@{queue}" for number in range(6) for share in "xy" for queue in ("here", "absent")]
    parking.park({bucket: list(map(to_park, names))})
    (looked,) = parking.take_due([asked], absent=ABSENT, horizon=0.8)
    left = [each.id for each in looked.leaving]
    assert left
    assert store.zcard(f"ratelimit:v1:{{api}}:{asked.key}:suspended@fleet"), "some are leaving, some are set aside"
    lose(*kinds)
    _, removed = repair_in_steps(parking)
    assert (removed > 0) == ("payloads" in kinds)
    left += run_all(parking, clock, asked, 15)
    assert "payloads" in kinds or {*left} == {*names}
    parking.park({bucket: [to_park("z1@here"), to_park("z2@absent")]})
    assert {*run_all(parking, clock, asked, 15)} >= {"z1@here", "z2@absent"}
    assert parking.contents.lot(bucket, 0, -1).parked == 0


def test_next_park_restores_an_unindexed_backlog(
    frozen: Limiter, parking: Backlog, clock: Clock, asked: LimitRequest, lose: Lose
) -> None:
    frozen._asker.ask((asked,))
    parking.park({("api", asked.key): [to_park(f"x{number}@here") for number in range(20)]})
    lose("due", "task_index")
    parking.park({("api", asked.key): [to_park("z@here")]})
    assert len(run_all(parking, clock, asked, 10)) == 21


def test_entries_without_payload_are_counted(
    frozen: Limiter, parking: Backlog, clock: Clock, asked: LimitRequest, lose: Lose
) -> None:
    parking.park({("api", asked.key): [to_park(f"x{number}@here") for number in range(600)]})
    lose("payloads")
    assert repair_in_steps(parking) == (0, 600)
    assert parking.due(["api"]) is None, "and nothing is left of the lot"
    assert list(parking.contents.find(["api"], ["x1"])) == [{}]


def test_many_tasks_are_restored_in_steps_once_each(
    frozen: Limiter, parking: Backlog, store: redis.Redis, asked: LimitRequest, lose: Lose
) -> None:
    for first in range(0, 8000, 1000):
        some = [to_park(f"x{number:04}@here") for number in range(first, first + 1000)]
        parking.park({("api", asked.key): some})
    lose("parked", "task_index")
    repair = LostKeyRepair(parking.scripts)
    done = [repair.step("api").again for _ in range(4)]
    assert sum(done) == 8000
    assert max(done) < 8000, "a step has an end"
    tasks = store.zrange(f"ratelimit:v1:{{api}}:{asked.key}:parked@fleet", 0, -1)
    assert tasks == [f"x{number:04}@here" for number in range(8000)], "in their order"
    assert repair_in_steps(parking) == (0, 0)


def test_restored_task_that_had_left_runs_once(
    frozen: Limiter, parking: Backlog, clock: Clock, asked: LimitRequest, lose: Lose
) -> None:
    bucket = ("api", asked.key)
    parking.park({bucket: [to_park("x@here")]})
    parking.untold.note_acknowledged(bucket, "x@here", "t1")
    (looked,) = parking.take_due([asked])
    assert [each.copy for each in looked.leaving] == [1]
    lose("in_flight")
    assert repair_in_steps(parking) == (1, 0)
    assert run_all(parking, clock, asked, 5) == ["x@here"]
    runs = [copy for copy in (1, 2) if not parking.copies.arrive(bucket, {"x@here": copy})]
    assert runs == [1]


def test_intact_backlog_costs_no_writes(
    frozen: Limiter, parking: Backlog, store: redis.Redis, asked: LimitRequest
) -> None:
    parking.park(
        {("api", asked.key): [to_park(f"x{number}@{'absent' if number % 2 else 'here'}") for number in range(40)]}
    )
    parking.take_due([asked], absent=ABSENT)
    before = {key: store.dump(key) for key in store.keys("ratelimit:*@fleet")}
    assert repair_in_steps(parking) == (0, 0)
    assert {key: store.dump(key) for key in store.keys("ratelimit:*@fleet")} == before
