"""Of duplicate tasks one waits: which one, at which place, and what becomes of the others."""

from __future__ import annotations

import json
from collections.abc import Collection

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import Limiter
from celery_ratelimit._celery.saved_message import RETURN_HEADER
from celery_ratelimit.backlog.backlog import Backlog, ParkResult, ToPark
from celery_ratelimit.backlog.messages import Parked, read_parcel
from tests.conftest import START, Clock
from tests.examples import examples
from tests.parks import packed

from .backlog_steps import BUCKET, let_out
from .backlog_steps import park_all as park
from .frozen import demand

DAILY = demand("1/d")
SECOND = 1_000_000


def to_park(id: str, alone: str, order: int = 0, *, copy: int = 1, since: int = 0, leaves: int = 0) -> ToPark:
    marker = {"queue": "celery", "eta": None, "exchange": "", "routing_key": "celery"}
    said = {"id": id.partition("@")[0], "headers": {"id": id, RETURN_HEADER: marker}, "to": "celery"}
    said |= {"body": "", "priority": 0, "expires": None, "properties": {}}
    return packed(id, 1, json.dumps(said), copy, since, order=order, unique=alone, leaves=leaves or None)


def close(parking: Backlog) -> None:
    """Use up the limit for a day."""
    parking._limiter._asker.ask([DAILY])


def leave(parking: Backlog, absent: Collection[str] = ()) -> list[Parked]:
    return let_out(parking, DAILY, absent)


def ended(left: list[Parked]) -> dict[str, str]:
    """The tasks that end, and their survivors."""
    return {each.id: each.survivor for each in left if each.survivor}


def waiting(parking: Backlog) -> list[str]:
    return [each.id for each in parking.contents.lot(BUCKET, 0, -1).tasks]


def test_newest_duplicate_takes_the_place_of_the_older_one(parking: Backlog, clock: Clock) -> None:
    close(parking)
    assert park(parking, to_park("a", "n1")) == [0]
    since = parking.contents.lot(BUCKET, 0, -1).tasks[0].since
    clock.advance(1)
    park(parking, to_park("b", "n2"), to_park("c", ""))
    clock.advance(1)
    assert park(parking, to_park("d", "n1")) == [0], "the first of all"
    left = leave(parking)
    assert ended(left) == {"a": "d"}
    assert waiting(parking) == ["d", "b", "c"]
    assert parking.contents.lot(BUCKET, 0, -1).tasks[0].since == since


@pytest.mark.parametrize("which", ["n", "o"])
def test_task_parked_again_counts_as_the_older_duplicate(parking: Backlog, clock: Clock, which: str) -> None:
    close(parking)
    park(parking, to_park("a", f"{which}1"))
    clock.advance(1)
    (again,) = parking.contents.remove(BUCKET, ["a"], purge=False)[1]
    parking.published({BUCKET: [again]})
    park(parking, to_park("b", f"{which}1"))
    clock.advance(1)
    said = park(parking, to_park("a", f"{which}1", copy=again.copy + 1, since=again.since))
    if which == "n":
        assert said == [ParkResult("replaced", survivor="b")]
        assert waiting(parking) == ["b"]
        assert parking.contents.lot(BUCKET, 0, -1).tasks[0].since == again.since, "it has the place of both"
    else:
        assert said == [0]
        assert ended(leave(parking)) == {"b": "a"}
        assert waiting(parking) == ["a"]


def test_refused_park_in_a_full_backlog_replaces_no_task(parking: Backlog, clock: Clock) -> None:
    close(parking)
    park(parking, to_park("x", ""), to_park("a", "n1"), to_park("y", ""))
    assert park(parking, to_park("b", "n1"), most=1) == [ParkResult("full", 1)]
    assert leave(parking) == []
    assert waiting(parking) == ["x", "a", "y"]
    assert park(parking, to_park("b", "n1"), most=2) == [1], "it stands where the other did"
    assert ended(leave(parking)) == {"a": "b"}
    assert park(parking, to_park("c", "n2"), most=3) == [ParkResult("full", 3)]
    assert park(parking, to_park("d", "n2")) == [3], "the one before was not noted"


def test_duplicate_keeps_its_own_priority(parking: Backlog, clock: Clock) -> None:
    close(parking)
    park(parking, to_park("a", "n1", 9), to_park("b", "", 3))
    clock.advance(1)
    park(parking, to_park("c", "n1"), to_park("d", "n1", 9, leaves=200_000))
    assert ended(leave(parking)) == {"a": "c", "c": "d"}
    assert waiting(parking) == ["b", "d"]
    clock.advance(1)
    park(parking, to_park("e", "n1", -255))
    leave(parking)
    assert waiting(parking) == ["e", "b"]


def test_redelivered_duplicate_is_parked_once(parking: Backlog, store: redis.Redis, clock: Clock) -> None:
    """A worker was killed when it had parked, and before it had acknowledged: the message comes once more."""
    close(parking)
    for ahead in range(2):
        assert park(parking, to_park("a", "n1")) == [ahead], "it is there"
    park(parking, to_park("b", "n1"))
    park(parking, to_park("a", "n1"))
    assert waiting(parking) == ["a", "b"], "one that ends, and one that stays"
    assert ended(leave(parking)) == {"a": "b"}
    park(parking, to_park("b", "n1"))
    assert waiting(parking) == ["b"]


def test_replaced_task_leaves_again_until_published(parking: Backlog, clock: Clock) -> None:
    """The worker that was to publish it was killed."""
    close(parking)
    park(parking, to_park("a", "n1"))
    park(parking, to_park("b", "n1"))
    (first,) = leave(parking)
    clock.advance(60)
    (again,) = leave(parking)
    assert (again.id, again.copy) == ("a", first.copy + 1)
    assert ended([again]) == {"a": "b"}
    assert parking.copies.arrive(BUCKET, {"a": again.copy}) == set(), "one of the two ends the task"
    assert parking.copies.arrive(BUCKET, {"a": first.copy}) == {"a"}
    clock.advance(60)
    assert leave(parking) == []


def test_suspended_duplicate_is_replaced(parking: Backlog, clock: Clock) -> None:
    close(parking)
    parking._limiter.reset(DAILY.limit, force=True)
    absent = frozenset({"celery"})
    park(parking, to_park("a@celery", "n1"))
    assert leave(parking, absent) == []
    park(parking, to_park("b@celery", "n1"))
    assert ended(leave(parking, absent)) == {"a@celery": "b"}
    assert waiting(parking) == ["b@celery"]


def test_wrong_index_entry_replaces_no_task(parking: Backlog, store: redis.Redis, clock: Clock) -> None:
    close(parking)
    park(parking, to_park("old", ""))
    park(parking, to_park("a", "n1"))
    store.hset("ratelimit:v1:{api}::unique@fleet", "1", "gone")
    park(parking, to_park("b", "n1"))
    assert leave(parking) == []
    assert waiting(parking) == ["old", "a", "b"]
    store.hset("ratelimit:v1:{api}::unique@fleet", "1", "old")
    park(parking, to_park("c", "n1"))
    assert leave(parking) == [], "what does not say that it is the same waits"


def test_duplicate_ids_may_be_any_text(parking: Backlog, clock: Clock) -> None:
    close(parking)
    for id in ("a-1@celery", 'x"y\\z@celery', "é@celery"):
        park(parking, to_park(id, "n1"))
    left = leave(parking)
    assert set(ended(left)) == {"a-1@celery", 'x"y\\z@celery'}
    assert all(read_parcel(each) for each in left), "it can be read"


@st.composite
def traces(draw: st.DrawFn) -> list[tuple[str, str, int]]:
    which = draw(st.sampled_from("no"))
    acts = st.tuples(
        st.sampled_from(["park"] * 5 + ["leave", "pass"]),
        st.sampled_from([f"{which}1", f"{which}1", f"{which}2", ""]),
        st.sampled_from([0, 0, 3, -9]),
    )
    return draw(st.lists(acts, min_size=1, max_size=40))


@given(trace=traces())
@examples(150)
def test_random_duplicates_keep_one_of_each_and_lose_none(
    store_and_limiter: tuple[redis.Redis, Limiter], trace: list[tuple[str, str, int]]
) -> None:
    store, limiter = store_and_limiter
    store.flushall()
    store.set("test:clock", START)
    parking = Backlog(limiter, "fleet", 3600)
    now, alone_of, ends, gone = START, {}, {}, set()
    for number, (verb, alone, order) in enumerate(trace):
        now += SECOND // 10
        store.set("test:clock", now)
        if verb == "park":
            id = f"t{number}"
            alone_of[id] = alone
            before = [each for each in waiting(parking) if alone and alone_of[each] == alone and each not in ends]
            (said,) = park(parking, to_park(id, alone, order))
            if before and alone[0] == "o":
                assert said == ParkResult("replaced", survivor=before[0])
                ends[id] = before[0]
                gone.add(id)
            elif before:
                ends[before[0]] = id
        elif verb == "pass":
            limiter.reset(DAILY.limit, force=True)
        left = leave(parking) if verb != "park" else []
        for id, by in ended(left).items():
            assert ends[id] == by
        assert all(each.id in ended(left) or each.id not in ends for each in left)
        assert not gone & {each.id for each in left}, "once"
        gone |= {each.id for each in left}
        parking.published({BUCKET: left})
        here = [each for each in waiting(parking) if each not in ends]
        assert {*here, *gone, *ends} == set(alone_of)
        same = [alone_of[each] for each in here if alone_of[each]]
        assert len(same) == len(set(same))
        index = store.hgetall("ratelimit:v1:{api}::unique@fleet")
        assert {f"{alone_of[id][0]}{key}" for key, id in index.items()} == set(same)


@pytest.mark.parametrize("how", ["released", "handed back"])
def test_replaced_suspended_task_taken_out_names_its_survivor(parking: Backlog, clock: Clock, how: str) -> None:
    close(parking)
    park(parking, to_park("a@absent", "n1"))
    leave(parking, frozenset({"absent"}))
    park(parking, to_park("b@celery", "n1"))
    if how == "released":
        (taken,) = parking.contents.remove(BUCKET, ["a@absent"], purge=False)[1]
    else:
        (taken,) = parking.contents.take_for_original_queues(BUCKET, ["absent"])[1]
    parcel = read_parcel(taken)
    assert parcel["headers"]["celery-ratelimit-survivor"] == "b"
    assert waiting(parking) == ["b@celery"]
