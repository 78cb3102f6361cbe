"""Parked tasks leave in order, each at its own slot; in shadow they leave at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import redis

from celery_ratelimit import Concurrency, Limit, Limiter
from celery_ratelimit.backlog.backlog import Backlog, ParkResult
from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.conftest import START, Clock
from tests.parks import EMPTY

from .backlog_steps import API, BUCKET, attend, let_out, message_of, park, publish, take_due
from .frozen import demand


def test_tasks_leave_in_order_each_at_its_own_slot(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    assert frozen._asker.ask((API,)).allowed
    assert [park(parking, f"t{number}") for number in range(25)] == list(range(25))
    assert parking.due(["api", "other"]) == [BUCKET]
    assert take_due(parking) == [(f"t{number}", (number + 1) * 100_000) for number in range(10)]
    assert parking.due(["api"]) == [], "the next one has its turn in 1.1 s"
    assert take_due(parking) == []
    clock.set(START + 300_000)
    assert parking.due(["api"]) == [BUCKET]
    assert take_due(parking) == [("t10", 800_000), ("t11", 900_000), ("t12", 1_000_000)]
    # Each finds its slot again, and has its permit there.
    assert frozen._asker.ask((API,), id="t2").allowed
    assert not frozen._asker.ask((API,), id="t3").allowed
    assert not frozen._asker.ask((API,), id="newcomer").allowed


def test_park_is_idempotent_and_may_require_others_ahead(parking: Backlog) -> None:
    assert park(parking, "a", only_behind=True) == EMPTY
    assert park(parking, "a") == 0
    assert park(parking, "a") == 1, "as often as it likes"
    assert park(parking, "b", only_behind=True) == 1
    assert park(parking, "c", most=2) == ParkResult("full", 2)
    assert park(parking, "c", most=3) == 2
    lot = parking.contents.lot(BUCKET, 0, -1)
    assert [(each.id, each.message) for each in lot.tasks] == [(id, message_of(id)) for id in "abc"]


def test_task_throttled_earlier_keeps_its_place(parking: Backlog, clock: Clock) -> None:
    clock.set(START + 5_000_000)
    park(parking, "late")
    park(parking, "early", copy=2, since=START)
    assert [(each.id, each.copy) for each in let_out(parking, API)] == [("early", 2), ("late", 1)]


def test_tasks_leave_by_their_cost(frozen: Limiter, parking: Backlog) -> None:
    limit = Limit("10/s", burst=10, name="api")
    assert frozen._asker.ask((LimitRequest(limit, "api", "", 10),)).allowed
    for id, cost in (("a", 3), ("b", 5), ("c", 1), ("d", 2)):
        park(parking, id, asked=LimitRequest(limit, "api", "", cost))
    assert take_due(parking, LimitRequest(limit, "api")) == [("a", 300_000), ("b", 800_000), ("c", 900_000)]


@pytest.mark.parametrize("algorithm", ["sliding_log", "fixed_window", "sliding_window"])
def test_tasks_leave_under_counting_algorithms(frozen: Limiter, parking: Backlog, clock: Clock, algorithm: str) -> None:
    asked = LimitRequest(Limit("10/s", name="api", algorithm=algorithm), "api")
    for _ in range(10):
        assert frozen._asker.ask((asked,)).allowed
    park(parking, *[f"t{number}" for number in range(25)], asked=asked)
    started: list[str] = []
    waiting: dict[str, int] = {}
    for step in range(40):
        now = step * 100_000
        clock.set(START + now)
        waiting |= {id: now + wait for id, wait in take_due(parking, asked)}
        for id in [id for id, at in waiting.items() if at <= now]:
            if frozen._asker.ask((asked,), id=id, claim=1.0).allowed:
                started.append(id)
                del waiting[id]
    assert started == [f"t{number}" for number in range(25)]


def test_pause_keeps_tasks_and_a_higher_rate_releases_them(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    assert frozen._asker.ask((API,)).allowed
    park(parking, *[f"t{number}" for number in range(100)])
    frozen.pause("api", 60, force=True)
    assert take_due(parking) == []
    clock.set(START + 500_000)
    assert parking.due(["api"]) == []
    frozen.resume("api", force=True)
    frozen.set_rate("api", "50/s", force=True)
    assert parking.due(["api"]) == [BUCKET]
    assert len(take_due(parking)) == 51, "one now, and the tasks of the next second"


@pytest.mark.parametrize(("workers", "most"), [(0, 1000), (4, 2000)])
def test_tasks_in_flight_are_bounded_by_the_number_of_workers(
    frozen: Limiter, parking: Backlog, workers: int, most: int
) -> None:
    quick = demand("100000/s")
    frozen._asker.ask((quick,))
    for number in range(workers):
        attend(parking, f"w{number}", "a")
    park(parking, *[f"t{number}" for number in range(2100)])
    assert len(let_out(parking, quick)) == most
    assert let_out(parking, quick) == []


def test_tasks_in_flight_are_bounded_with_a_large_burst(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    """What is noted for a slot lies the burst behind it: ten seconds here."""
    asked = demand("2000/s", burst=20_000)
    assert frozen._asker.ask((demand("2000/s", burst=20_000, cost=20_000),)).allowed
    park(parking, *[f"t{number}" for number in range(1500)], asked=asked)
    leaving = let_out(parking, asked)
    assert len(leaving) == 1000
    clock.advance(0.5)
    assert all(frozen._asker.ask((asked,), id=each.id).allowed for each in leaving)
    assert parking.due(["api"]) == [BUCKET]
    assert len(let_out(parking, asked)) == 500


def test_one_script_takes_from_several_backlogs(frozen: Limiter, parking: Backlog, store: redis.Redis) -> None:
    """Of several limits, as far as a script may go; the others are due still."""
    several = [demand("10/s", name=name, key=key) for name in ("api", "other") for key in ("", "x")]
    for asked in several:
        park(parking, *[f"t{number}" for number in range(40)], asked=asked)
    looked = parking.take_due(several, due=True)
    assert [len(each.leaving) for each in looked] == [11, 11, 11, 9], "a lot counts as two"
    assert parking.take_due(several, due=True)[0].leaving == ()
    quick = [demand("10000/s", name="quick", key=key) for key in "xyz"]
    for asked in quick:
        park(parking, *[f"t{number}" for number in range(80)], asked=asked)
    looked = parking.take_due(quick, due=True)
    assert [(len(each.leaving), each.again == 0) for each in looked] == [(48, True)]
    assert sorted(parking.due(["quick"])) == [("quick", key) for key in "xyz"]


def test_slots_of_a_dead_worker_are_given_to_others(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    """A worker was killed with ten countdowns in its memory."""
    asked = LimitRequest(Limit("10/s", name="api", algorithm="sliding_log"), "api")
    for _ in range(10):
        frozen._asker.ask((asked,))
    park(parking, *[f"t{number}" for number in range(40)], asked=asked)
    assert len(take_due(parking, asked)) == 10
    clock.set(START + 4_000_000)
    assert [id for id, _ in take_due(parking, asked)] == [f"t{number}" for number in range(10, 30)]
    assert frozen._asker.ask((asked,), id="t10").allowed


def test_slots_of_a_dead_worker_under_another_algorithm(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    """A worker was killed, another goes on, and a rate of another algorithm was stored."""
    asked = LimitRequest(Limit("20/s", name="api", warmup=2), "api")
    while frozen._asker.ask((asked,)).allowed:
        pass
    park(parking, *[f"t{number}" for number in range(200)], asked=asked)
    let_out(parking, asked)
    clock.advance(1.5)
    let_out(parking, asked)
    clock.advance(0.5)
    frozen.set_rate("api", "100/s", force=True)
    clock.advance(0.5)
    assert let_out(parking, asked)


def test_tasks_of_a_concurrency_limit_return_half_a_second_early(
    frozen: Limiter, parking: Backlog, clock: Clock, store: redis.Redis
) -> None:
    """When a permit will be free is an estimate: a task should be there if it is sooner."""
    asked = LimitRequest(Concurrency(1, name="api"), "api")
    first = frozen._asker.ask((asked,), id="first")
    clock.advance(0.1)
    assert frozen.release(first)
    assert frozen._asker.ask((asked,), id="holder").allowed
    park(parking, *[f"t{number}" for number in range(30)], asked=asked)
    left = take_due(parking, asked)
    slots = store.zrange("ratelimit:v1:{api}::slots", 0, -1, withscores=True)
    assert [(id, max(0, round(at) - clock.us - 500_000)) for id, at in slots] == left
    assert left[-1][1] > 0


def test_few_tasks_return_while_the_lease_time_is_unknown(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    """A returned task is bound to a worker, which may have no process for it when another one has."""
    asked = LimitRequest(Concurrency(5, name="api", lease=60), "api")
    held = [frozen._asker.ask((asked,), id=f"h{index}") for index in range(5)]
    park(parking, *[f"t{index:02}" for index in range(60)], asked=asked)
    come = take_due(parking, asked)
    assert [wait for _, wait in come] == [0] * 25, "whose slots are within half a second, by a guess of 0.1 s each"
    clock.advance(0.2)
    for each in held:
        assert frozen.release(each)
    come = take_due(parking, asked)
    assert come[0] == ("t25", 340_000)
    assert come[-1] == ("t29", 500_000), "within a second, by 0.2 s each"


def test_expired_tasks_leave_at_once_without_a_slot(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    assert frozen._asker.ask((API,)).allowed
    park(parking, *[f"t{number}" for number in range(30)])
    park(parking, "short", expires=START / 1e6 + 2)
    assert len(take_due(parking)) == 10
    clock.set(START + 2_000_000)
    first, *others = take_due(parking)
    assert first == ("short", 0)
    assert [id for id, _ in others] == [f"t{number}" for number in range(10, 20 + 1)]


def test_empty_backlog_leaves_no_keys(store: redis.Redis, parking: Backlog, clock: Clock) -> None:
    park(parking, "a", "b")
    assert [id for id, _ in take_due(parking)] == ["a", "b"]
    for id in ("a", "b"):
        parking.untold.note_acknowledged(BUCKET, id, "t1")
    publish(parking, ("a", 1), ("b", 1))
    clock.set(START + 1_000_000)
    assert take_due(parking) == []
    assert store.keys("ratelimit:*@fleet") == ["ratelimit:v1:{api}::code@fleet"], "not even the memory of copies"


@pytest.mark.parametrize(
    "options",
    [
        {"burst": 10},
        {"algorithm": "fixed_window"},
        {"algorithm": "sliding_window"},
        {"algorithm": "sliding_log"},
        {"algorithm": "leaky_bucket", "capacity": 3},
    ],
)
@pytest.mark.parametrize("stored", [False, True])
def test_worker_with_the_limit_in_shadow_keeps_its_backlog(
    frozen: Limiter, parking: Backlog, clock: Clock, options: dict[str, Any], stored: bool
) -> None:
    """Others may have it in force: an older code, or a recent operator change."""
    limit = Limit("10/h", name="api", **options)
    if stored:
        frozen.set_rate("api", limit, force=True)
        frozen.pause("api", 60, force=True)
        frozen.resume("api", force=True)
    while frozen.acquire(limit).allowed:
        pass
    park(parking, *[f"t{number}" for number in range(20)])
    assert len(let_out(parking, LimitRequest(replace(limit, shadow=True), "api"))) == 20
    clock.advance(1)
    assert not frozen.acquire(limit).allowed


def test_old_slots_delay_no_task_in_shadow(parking: Backlog, clock: Clock) -> None:
    """Tasks without slots are not searched for at each poll before tasks leave."""
    limit = Limit("100/s", name="api")
    park(parking, *[f"t{number}" for number in range(500)])

    def out(polls: int, limit: Limit) -> int:
        looked = [parking.take_due([LimitRequest(limit, "api")])[0] for _ in range(polls)]
        return sum(len(each.leaving) for each in looked)

    in_force = out(3, limit)
    clock.advance(1)
    in_force += out(3, limit)
    assert 160 <= in_force < 500
    clock.advance(1.95)
    assert in_force + out(20, replace(limit, shadow=True)) == 500
