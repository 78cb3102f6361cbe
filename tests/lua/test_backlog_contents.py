"""Tasks are listed, found, counted by their costs, and removed in bounded steps."""

from __future__ import annotations

import json

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import Limit, Limiter
from celery_ratelimit.backlog.backlog import Backlog, ParkResult
from celery_ratelimit.backlog.messages import Parked
from celery_ratelimit.backlog.tuning import PAGE, PUBLISH_TIMEOUT
from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.conftest import START, Clock
from tests.examples import examples
from tests.parks import park_one

from .backlog_steps import ABSENT_A, API, BUCKET, let_out, message_of, park, publish
from .frozen import demand


def test_removed_tasks_leave_alone(parking: Backlog, store: redis.Redis) -> None:
    park(parking, "a", "b", "c")
    taken, leaving, left = parking.contents.remove(BUCKET, ["b", "unknown"], purge=False)
    assert (taken, [each.id for each in leaving], left) == (1, ["b"], [])
    assert parking.contents.remove(BUCKET, ["a", "c"], purge=True) == (2, [], [])
    publish(parking, ("b", 1))
    assert list(parking.contents.lots(["api"])) == []


@pytest.mark.parametrize("why", ["their turn", "expired", "not reported"])
def test_replies_have_a_bounded_size(frozen: Limiter, parking: Backlog, clock: Clock, why: str) -> None:
    quick = demand("1000/s")
    several = [quick, demand("1000/s", key="other")]
    for asked in several:
        for number in range(10):
            message, expires = message_of(f"{number}@q") + " " * 200_000, START / 1e6 + 1 if why == "expired" else 0.0
            park_one(parking, asked, f"{number}@q", message, expires=expires)
    listed = [[each.id[0] for each in parking.contents.lot(BUCKET, first, -1).tasks] for first in (0, 3)]
    assert listed == [["0", "1", "2"], ["3", "4", "5"]]
    if why == "expired":
        frozen.pause("api", 60, force=True)
        clock.advance(1)
    if why == "not reported":
        for asked in several:
            assert len(let_out(parking, asked)) == 10
        clock.advance(10)
    left = list(several)
    sizes = []
    while left:
        looked = parking.take_due(left, due=True)
        sizes.append(sum(len(each.leaving) for each in looked))
        more = [asked for asked, each in zip(left, looked, strict=False) if each.again == 0.0]
        left = [*left[len(looked) :], *more]
    assert sum(sizes) == 20
    assert max(sizes) == 3, "200 kB each, and no more when half a megabyte is reached"


def test_oversized_message_leaves_alone(parking: Backlog, clock: Clock) -> None:
    for id in "abc":
        park_one(parking, API, id, "{}" + " " * 2_000_000)
    (looked,) = parking.take_due([API])
    assert ([each.id for each in looked.leaving], looked.again) == (["a"], 0.0)
    taken, leaving, left = parking.contents.remove(BUCKET, ["b", "c"], purge=False)
    assert (taken, [each.id for each in leaving], left) == (1, ["b"], ["c"])
    clock.advance(1)
    assert [number for number, _ in parking.contents.remove_all(BUCKET, purge=True)] == [1]
    park(parking, "d")


def test_task_is_found_by_its_id_while_parked(frozen: Limiter, parking: Backlog, store: redis.Redis) -> None:
    keyed = demand("1/h", name="keyed", key="t\n1")
    park(parking, "one@q", "one.1@q", "one@other")
    park(parking, "one@third", "ones@q", asked=keyed)
    assert list(parking.contents.find(["api", "keyed", "empty"], ["one", "unknown"])) == [
        {("api", ""): {"one@q": "one", "one@other": "one"}, ("keyed", "t\n1"): {"one@third": "one"}}
    ]
    assert parking.contents.remove(BUCKET, ["one@q"], purge=True)[0] == 1
    assert list(parking.contents.find(["api"], ["one"])) == [{BUCKET: {"one@other": "one"}}]
    assert len(let_out(parking)) == 2
    assert list(parking.contents.find(["api"], ["one"])) == [{}]
    assert store.zcard("ratelimit:v1:{api}::task_index@fleet") == 0


@pytest.mark.parametrize("key", ["a\0b", "\0", "a\0" + "b" * 200, "%s", "\udc80"])
def test_limit_key_may_be_any_text(parking: Backlog, key: str) -> None:
    asked = demand("10/s", key=key)
    park(parking, "t@a", asked=asked)
    assert list(parking.contents.find(["api"], ["t"])) == [{("api", key): {"t@a": "t"}}]
    assert parking.contents.remove(("api", key), ["t@a"], purge=True)[0] == 1
    assert list(parking.contents.find(["api"], ["t"])) == [{}]


def test_lookups_are_split_into_steps(frozen: Limiter, parking: Backlog) -> None:
    park(parking, *[f"{number}@q" for number in range(700)])
    found = list(parking.contents.find(["api", "other"], [str(number) for number in range(700)]))
    assert [len(each[BUCKET]) for each in found] == [100] * 7


@pytest.mark.parametrize("purge", [False, True], ids=["released", "thrown away"])
def test_remove_all_takes_each_task_once_in_steps(
    frozen: Limiter, parking: Backlog, clock: Clock, store: redis.Redis, purge: bool
) -> None:
    """Released tasks may be parked again, at their old places, before the last one has left."""
    names = [f"t{number:03}@q" for number in range(500)]
    park(parking, *names)
    park(parking, "x@q", "y@q", since=START + 199)  # at one time
    clock.advance(1)
    steps, came = parking.contents.remove_all(BUCKET, purge=purge), -(-502 // PAGE)
    taken, seen = 0, []
    for number, leaving in steps:
        assert number <= PAGE
        taken += number
        seen += leaving
        if not purge:
            parking.published({BUCKET: leaving})
            for each in leaving:
                park(parking, each.id, copy=2, since=each.since)
        clock.advance(0.001)
        park(parking, f"new{taken}@q")
    assert taken == 502
    if purge:
        assert parking.contents.lot(BUCKET, 0, -1).parked == came, "one after each step"
        assert store.zcard("ratelimit:v1:{api}::task_index@fleet") == came
    else:
        assert sorted(each.id for each in seen) == sorted([*names, "x@q", "y@q"])
        assert parking.contents.lot(BUCKET, 0, -1).parked == 502 + came


def test_keys_of_a_limit_are_listed_entirely_or_not(frozen: Limiter, parking: Backlog) -> None:
    """All keys of a limit, or none: the others are read page by page."""
    for name, number in (("a", 2), ("b", 4), ("c", 3)):
        for n in range(number):
            park(parking, "task", asked=demand("1/h", name=name, key=f"t{n}"))

    def listed(most: int) -> dict[str, int]:
        contents = parking.contents
        counts = frozen._asker.drive(contents.asking_counts(["a", "b", "c", "none"], most))
        assert {name: each.lots for name, each in counts.items()} == {"a": 2, "b": 4, "c": 3}
        assert len(set(contents.buckets(counts))) == len(contents.buckets(counts)) == 9
        return {name: len(each.keys) for name, each in counts.items()}

    assert listed(9) == {"a": 2, "b": 4, "c": 3}
    assert listed(5) == {"a": 2, "b": 0, "c": 3}
    assert listed(0) == {"a": 0, "b": 0, "c": 0}


def test_backlogs_are_listed_in_pages(frozen: Limiter, parking: Backlog, store: redis.Redis) -> None:
    for number in range(450):
        park(parking, "a", asked=demand("1/h", key=f"t{number}"))
    assert sorted(lot.key for lot in parking.contents.lots(["api"])) == sorted(f"t{number}" for number in range(450))
    store.config_resetstat()
    assert len(list(parking.contents.lots(["api"]))) == 450
    assert store.info("commandstats")["cmdstat_evalsha"]["calls"] >= 5


@pytest.mark.parametrize(
    "task",
    ["zähler", "日本", "\U0001f40c", 'a "quoted" one', "back\\slash", "ends in \\", "a\nline", "/", "a@b", "\\u0041"],
)
def test_id_that_json_escapes_is_indexed(parking: Backlog, store: redis.Redis, task: str) -> None:
    for id in (task, f"{task}2"):
        message = json.dumps({"id": id, "headers": {"id": id}})
        park_one(parking, API, f"{id}@q", message)
    assert list(parking.contents.find(["api"], [task, task[:-1]])) == [{BUCKET: {f"{task}@q": task}}]
    assert [each.id for each in let_out(parking)] == [f"{task}@q", f"{task}2@q"]
    assert list(parking.contents.find(["api"], [task])) == [{}]
    assert not store.exists("ratelimit:v1:{api}::task_index@fleet")


COSTLY = Limit("100/s", burst=1000, name="api", key="{tenant}")


def park_at(
    parking: Backlog, id: str, cost: int, *, key: str = "", most: int | None = None, expires: float = 0.0
) -> int:
    return park_one(parking, LimitRequest(COSTLY, "api", key, cost), id, message_of(id), expires=expires, most=most)


def test_park_returns_the_cost_ahead(parking: Backlog, store: redis.Redis) -> None:
    assert [park_at(parking, f"{number}@a", 500) for number in range(19)] == [500 * number for number in range(19)]
    assert park_at(parking, "cheap@a", 1) == 9500
    assert park_at(parking, "other@a", 7, key="other") == 0
    assert {lot.key: lot.cost for lot in parking.contents.lots(["api"])} == {"": 9501, "other": 7}
    assert park_at(parking, "late@a", 1, most=9501) == ParkResult("full", 9501)
    assert park_at(parking, "late@a", 1, most=9502) == 9501


TAKEN_OR_PARKED = st.one_of(
    st.tuples(st.just("park"), st.integers(0, 30), st.sampled_from([1, 1, 3, 500])),
    st.tuples(st.just("expiring"), st.integers(0, 30), st.sampled_from([1, 40])),
    st.tuples(st.just("take_due"), st.sampled_from([0, 1]), st.just(0)),
    st.tuples(st.just("pick"), st.integers(0, 30), st.sampled_from([0, 1])),
    st.tuples(st.just("all"), st.just(0), st.sampled_from([0, 1])),
    st.tuples(st.just("publish"), st.just(0), st.just(0)),
    st.tuples(st.just("wait"), st.integers(1, 12), st.just(0)),
)


@examples(60)
@given(steps=st.lists(TAKEN_OR_PARKED, max_size=40))
def test_cost_sum_matches_the_parked_tasks(
    store_and_limiter: tuple[redis.Redis, Limiter], steps: list[tuple[str, int, int]]
) -> None:
    store, limiter = store_and_limiter
    store.flushall()
    store.set("test:clock", START)
    parking = Backlog(limiter, "fleet", redelivery=3600)
    now, left = START, []
    for what, one, two in steps:
        if what == "park":
            park_at(parking, f"{one}@{'ab'[one % 2]}", two)
        elif what == "expiring":
            park_at(parking, f"{one}@{'ab'[one % 2]}", two, expires=now / 1e6 + 1)
        elif what == "take_due":
            (looked,) = parking.take_due([LimitRequest(COSTLY, "api", "", 1)], absent=ABSENT_A if one else ())
            left += looked.leaving
        elif what == "pick":
            left += parking.contents.remove(BUCKET, [f"{one}@{'ab'[one % 2]}"], purge=bool(two))[1]
        elif what == "all":
            left += [each for _, leaving in parking.contents.remove_all(BUCKET, purge=bool(two)) for each in leaving]
        elif what == "publish":
            parking.published({BUCKET: [Parked(each.id, each.copy, 0, 0.0, "") for each in left]})
            left = []
        else:
            now += round(one * PUBLISH_TIMEOUT / 5 * 1e6)
            store.set("test:clock", now)
        lot = parking.contents.lot(BUCKET, 0, -1)
        kept = store.hgetall("ratelimit:v1:{api}::payloads@fleet")
        assert lot.cost == sum(int(kept[each.id].split(" ", 1)[0]) for each in lot.tasks)
        assert lot.parked == len(lot.tasks)
