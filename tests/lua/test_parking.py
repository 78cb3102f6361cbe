"""The parking lot: in order, at most once at a time in each place, and harmless wherever a worker dies."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence

import pytest
import redis

from celery_ratelimit import Concurrency, Limit, Limiter
from celery_ratelimit.backlog.backlog import Backlog, ParkResult
from celery_ratelimit.backlog.messages import Parked
from celery_ratelimit.backlog.tuning import PAGE, READ_AT_ONCE, REDELIVERY_LATE, SCANNED_AT_ONCE
from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.conftest import START, Clock
from tests.parks import EMPTY, packed, park_one

from .frozen import demand, expiries, us

BUCKET = ("api", "")
API = demand("10/s")


def message_of(id: str) -> str:
    """As a worker has it: a task's own id is what stands before the queue."""
    return json.dumps({"id": id.partition("@")[0], "headers": {"id": id.partition("@")[0]}})


def park(
    parking: Backlog,
    *ids: str,
    asked: LimitRequest = API,
    copy: int = 1,
    since: int = 0,
    expires: float = 0.0,
    only_behind: bool = False,
    most: int | None = None,
    token: str = "",
) -> int | ParkResult:
    """Parks them, and returns the last answer: what those ahead cost, or why it was not parked."""
    said: int | ParkResult = 0
    for id in ids:
        said = park_one(
            parking,
            asked,
            id,
            message_of(id),
            copy=copy,
            since=since,
            expires=expires,
            only_behind=only_behind,
            most=most,
            token=token,
        )
    return said


def let_out(parking: Backlog, asked: LimitRequest = API) -> list[Parked]:
    """Who leaves, by as many scripts as it takes."""
    leaving: list[Parked] = []
    again: float | None = 0.0
    while again == 0.0:
        (looked,) = parking.take_due([asked])
        leaving, again = [*leaving, *looked.leaving], looked.again
    return leaving


def take_due(parking: Backlog, asked: LimitRequest = API) -> list[tuple[str, int]]:
    """Who leaves, and in how many microseconds they have their turn."""
    return [(each.id, us(each.wait)) for each in let_out(parking, asked)]


def publish(parking: Backlog, *copies: tuple[str, int]) -> None:
    parking.published({BUCKET: [Parked(id, copy, 0, 0.0, "") for id, copy in copies]})


def test_they_leave_in_order_within_the_horizon_each_at_a_slot_of_its_own(
    frozen: Limiter, parking: Backlog, clock: Clock
) -> None:
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


def test_a_lot_in_which_nobody_was_is_due_when_its_worker_says(parking: Backlog, clock: Clock) -> None:
    some = [packed(id, 1, message_of(id), 1) for id in "abc"]
    parking.park({BUCKET: some[:1]}, later={BUCKET: 0.15})
    assert parking.due(["api"]) == []
    clock.set(START + 100_000)
    parking.park({BUCKET: some[1:2]}, later={BUCKET: 0.15})
    clock.set(START + 150_000)
    assert parking.due(["api"]) == [BUCKET], "whoever comes second delays nobody"
    assert [id for id, _ in take_due(parking)] == ["a", "b"]
    parking.park({BUCKET: some[2:]}, later={BUCKET: 0.0})
    assert parking.due(["api"]) == [BUCKET]


def test_what_has_its_place_before_the_first_is_looked_for_at_once(parking: Backlog, clock: Clock) -> None:
    for id, since in (("a", START - 1_000_000), ("b", START - 2_000_000)):
        assert parking.due(["api"]) in (None, [])
        parking.park({BUCKET: [packed(id, 1, message_of(id), 1, since)]}, later={BUCKET: 0.15})
    assert parking.due(["api"]) == [BUCKET]


def test_a_lot_that_is_empty_is_gone(store: redis.Redis, parking: Backlog, clock: Clock) -> None:
    park(parking, "a", "b")
    assert [id for id, _ in take_due(parking)] == ["a", "b"]
    for id in ("a", "b"):
        parking.untold.note_acknowledged(BUCKET, id, "t1")
    publish(parking, ("a", 1), ("b", 1))
    clock.set(START + 1_000_000)
    assert take_due(parking) == []
    assert store.keys("ratelimit:*@fleet") == ["ratelimit:v1:{api}::code@fleet"], (
        "not even the memory of who might have come twice"
    )


def test_parking_is_idempotent_and_only_behind_others_if_that_is_asked(parking: Backlog) -> None:
    assert park(parking, "a", only_behind=True) == EMPTY
    assert park(parking, "a") == 0
    assert park(parking, "a") == 1, "as often as it likes"
    assert park(parking, "b", only_behind=True) == 1
    assert park(parking, "c", most=2) == ParkResult("full", 2)
    assert park(parking, "c", most=3) == 2
    lot = parking.contents.lot(BUCKET, 0, -1)
    assert [(each.id, each.message) for each in lot.tasks] == [(id, message_of(id)) for id in "abc"]


def test_who_was_throttled_before_keeps_its_place(parking: Backlog, clock: Clock) -> None:
    clock.set(START + 5_000_000)
    park(parking, "late")
    park(parking, "early", copy=2, since=START)
    assert [(each.id, each.copy) for each in let_out(parking, API)] == [("early", 2), ("late", 1)]


def test_each_pays_what_it_costs(frozen: Limiter, parking: Backlog) -> None:
    limit = Limit("10/s", burst=10, name="api")
    assert frozen._asker.ask((LimitRequest(limit, "api", "", 10),)).allowed
    for id, cost in (("a", 3), ("b", 5), ("c", 1), ("d", 2)):
        park(parking, id, asked=LimitRequest(limit, "api", "", cost))
    assert take_due(parking, LimitRequest(limit, "api")) == [("a", 300_000), ("b", 800_000), ("c", 900_000)]


@pytest.mark.parametrize("algorithm", ["sliding_log", "fixed_window", "sliding_window"])
def test_other_algorithms_let_them_out_too(frozen: Limiter, parking: Backlog, clock: Clock, algorithm: str) -> None:
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


def test_a_pause_keeps_them_and_a_new_rate_lets_them_out_sooner(
    frozen: Limiter, parking: Backlog, clock: Clock
) -> None:
    assert frozen._asker.ask((API,)).allowed
    park(parking, *[f"t{number}" for number in range(100)])
    frozen.pause("api", 60, force=True)
    assert take_due(parking) == []
    clock.set(START + 500_000)
    assert parking.due(["api"]) == []
    frozen.resume("api", force=True)
    frozen.set_rate("api", "50/s", force=True)
    assert parking.due(["api"]) == [BUCKET]
    assert len(take_due(parking)) == 51, "one now, and those of the next second"


def test_no_more_leave_than_a_worker_can_hold(frozen: Limiter, parking: Backlog) -> None:
    quick = demand("100000/s")
    frozen._asker.ask((quick,))
    park(parking, *[f"t{number}" for number in range(1500)])
    assert len(let_out(parking, quick)) == 1000
    assert let_out(parking, quick) == []


def test_slots_whose_owners_do_not_come_are_given_to_others(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    """A worker was killed with ten countdowns in its memory."""
    asked = LimitRequest(Limit("10/s", name="api", algorithm="sliding_log"), "api")
    for _ in range(10):
        frozen._asker.ask((asked,))
    park(parking, *[f"t{number}" for number in range(40)], asked=asked)
    assert len(take_due(parking, asked)) == 10
    clock.set(START + 4_000_000)
    assert [id for id, _ in take_due(parking, asked)] == [f"t{number}" for number in range(10, 30)]
    assert frozen._asker.ask((asked,), id="t10").allowed


def test_those_that_wait_for_a_place_come_half_a_second_before_their_slots(
    frozen: Limiter, parking: Backlog, clock: Clock, store: redis.Redis
) -> None:
    """When a place will be free is an estimate: somebody is to be there if it is sooner."""
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


def test_the_expired_leave_at_once_and_take_no_slot(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    assert frozen._asker.ask((API,)).allowed
    park(parking, *[f"t{number}" for number in range(30)])
    park(parking, "short", expires=START / 1e6 + 2)
    assert len(take_due(parking)) == 10
    clock.set(START + 2_000_000)
    first, *others = take_due(parking)
    assert first == ("short", 0)
    assert [id for id, _ in others] == [f"t{number}" for number in range(10, 20 + 1)]


def test_those_that_are_picked_leave_and_nobody_else(parking: Backlog, store: redis.Redis) -> None:
    park(parking, "a", "b", "c")
    taken, leaving, left = parking.contents.remove(BUCKET, ["b", "nobody"], purge=False)
    assert (taken, [each.id for each in leaving], left) == (1, ["b"], [])
    assert parking.contents.remove(BUCKET, ["a", "c"], purge=True) == (2, [], [])
    publish(parking, ("b", 1))
    assert list(parking.contents.lots(["api"])) == []


# -- Queues that nobody consumes -----------------------------------------------------------------------------------


def attend(parking: Backlog, worker: str, *queues: str, left: Sequence[str] = ()) -> frozenset[str]:
    return parking.register.attend(worker, queues, left, 6)


NOBODY_AT_A = frozenset("a")


def test_a_queue_is_absent_when_the_last_worker_that_consumed_it_has_gone(
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
    assert attend(parking, "four", "c") == {"a"}, "after a month nobody knows of b"


def test_who_has_nobody_to_run_it_gets_no_slot_and_keeps_its_place(
    frozen: Limiter, parking: Backlog, clock: Clock, store: redis.Redis
) -> None:
    assert frozen._asker.ask((API,)).allowed
    park(parking, *[f"{number}@{queue}" for number in range(30) for queue in "ab"])
    park(parking, "odd@a@b", "odd@b@a", "unknown@c", "none")
    (looked,) = parking.take_due([API], absent=NOBODY_AT_A)
    assert [(each.id, us(each.wait)) for each in looked.leaving] == [
        (f"{number}@b", (number + 1) * 100_000) for number in range(10)
    ]
    (lot,) = parking.contents.lots(["api"])
    assert lot.parked == 54, "whoever is aside is parked"
    assert {each.id for each in parking.contents.lot(BUCKET, 0, -1).tasks} == {
        *[f"{number}@a" for number in range(30)],
        *[f"{number}@b" for number in range(10, 30)],
        *("odd@a@b", "odd@b@a", "unknown@c", "none"),
    }
    assert lot.oldest == START / 1e6
    # Somebody consumes it again: first in, first out.
    clock.advance(1)
    (looked,) = parking.take_due([API], absent=frozenset())
    assert [each.id for each in looked.leaving] == [f"{number}@a" for number in range(10)]
    clock.advance(1)
    (looked,) = parking.take_due([API], absent=frozenset())
    assert [each.id for each in looked.leaving] == [f"{number}@{queue}" for number in range(10, 15) for queue in "ab"]


def test_a_lot_of_nobody_is_left_alone_until_somebody_comes(
    frozen: Limiter, parking: Backlog, clock: Clock, store: redis.Redis
) -> None:
    several = [demand("10/s", key=key) for key in ("", *[f"t{number}" for number in range(600)])]
    for asked in several:
        park(parking, "1@a", "2@a", asked=asked)
    left = list(several)
    while left:
        left = left[len(parking.take_due(left, absent=NOBODY_AT_A)) :]
    left = [demand("10/s", key=bucket[1]) for bucket in parking.due(["api"])]
    while left:
        parking.take_due(left, due=True, absent=NOBODY_AT_A)
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


def test_whoever_is_aside_expires_and_is_taken_out_like_others(
    frozen: Limiter, parking: Backlog, clock: Clock, store: redis.Redis
) -> None:
    park(parking, "short@a", expires=START / 1e6 + 2)
    park(parking, *[f"{number}@a" for number in range(250)])
    while parking.take_due([API], absent=NOBODY_AT_A)[0].again == 0:
        pass
    assert park(parking, "behind@b", only_behind=True) == 251
    assert park(parking, "behind@b", most=3) == 252, "it is there"
    assert park(parking, "full@b", most=252) == ParkResult("full", 252)
    assert parking.copies.arrive(BUCKET, {"7@a": 0}) == {"7@a"}, "still parked"
    clock.advance(2)
    assert parking.due(["api"]) == [BUCKET]
    (looked,) = parking.take_due([API], absent=NOBODY_AT_A)
    assert "short@a" in [each.id for each in looked.leaving]
    assert parking.contents.remove(BUCKET, ["100@a", "nobody@a"], purge=False)[0] == 1
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


def test_many_are_set_aside_in_steps(frozen: Limiter, parking: Backlog, store: redis.Redis) -> None:
    park(parking, *[f"{number}@a" for number in range(1000)], "last@b")
    leaving, steps, again = [], 0, 0.0
    while again == 0.0:
        (looked,) = parking.take_due([API], absent=NOBODY_AT_A)
        leaving, steps, again = [*leaving, *looked.leaving], steps + 1, looked.again
    assert [each.id for each in leaving] == ["last@b"]
    assert 20 <= steps <= 23


# -- Heavy messages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", ["their turn", "expired", "not reported"])
def test_no_reply_is_longer_than_a_connection_can_take(
    frozen: Limiter, parking: Backlog, clock: Clock, why: str
) -> None:
    quick = demand("1000/s")
    several = [quick, demand("1000/s", key="other")]
    for asked in several:
        for number in range(10):
            park_one(
                parking,
                asked,
                f"{number}@q",
                message_of(f"{number}@q") + " " * 200_000,
                copy=1,
                since=0,
                expires=START / 1e6 + 1 if why == "expired" else 0.0,
                only_behind=False,
                most=None,
            )
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


def test_a_message_that_is_longer_than_that_goes_alone(parking: Backlog, clock: Clock) -> None:
    for id in "abc":
        park_one(parking, API, id, "{}" + " " * 2_000_000)
    (looked,) = parking.take_due([API])
    assert ([each.id for each in looked.leaving], looked.again) == (["a"], 0.0)
    taken, leaving, left = parking.contents.remove(BUCKET, ["b", "c"], purge=False)
    assert (taken, [each.id for each in leaving], left) == (1, ["b"], ["c"])
    clock.advance(1)
    assert [number for number, _ in parking.contents.remove_all(BUCKET, purge=True)] == [1]
    park(parking, "d")


def test_heavy_tasks_are_listed_a_few_at_a_time(parking: Backlog) -> None:
    for id in "abcdefg":
        park_one(parking, API, id, "{}" + " " * 200_000)
    assert [each.id for each in parking.contents.lot(BUCKET, 0, -1).tasks] == ["a", "b", "c"]
    assert [each.id for each in parking.contents.lot(BUCKET, 3, -1).tasks] == ["d", "e", "f"]


# -- Which tasks are where -----------------------------------------------------------------------------------------


def everything(steps: Iterable[tuple[int, list[Parked]]]) -> list[str]:
    return [each.id for _, leaving in steps for each in leaving]


def test_a_task_is_found_by_its_own_id_for_as_long_as_it_is_parked(
    frozen: Limiter, parking: Backlog, store: redis.Redis
) -> None:
    keyed = demand("1/h", name="keyed", key="t\n1")
    park(parking, "one@q", "one.1@q", "one@other")
    park(parking, "one@third", "ones@q", asked=keyed)
    assert list(parking.contents.find(["api", "keyed", "empty"], ["one", "nobody"])) == [
        {("api", ""): {"one@q": "one", "one@other": "one"}, ("keyed", "t\n1"): {"one@third": "one"}}
    ]
    assert parking.contents.remove(BUCKET, ["one@q"], purge=True)[0] == 1
    assert list(parking.contents.find(["api"], ["one"])) == [{BUCKET: {"one@other": "one"}}]
    assert len(let_out(parking)) == 2
    assert list(parking.contents.find(["api"], ["one"])) == [{}]
    assert store.zcard("ratelimit:v1:{api}::task_index@fleet") == 0


def test_look_ups_are_bounded(frozen: Limiter, parking: Backlog) -> None:
    park(parking, *[f"{number}@q" for number in range(700)])
    found = list(parking.contents.find(["api", "other"], [str(number) for number in range(700)]))
    assert [len(each[BUCKET]) for each in found] == [100] * 7


@pytest.mark.parametrize("purge", [False, True], ids=["released", "thrown away"])
def test_all_are_taken_out_in_steps_and_each_once(
    frozen: Limiter, parking: Backlog, clock: Clock, store: redis.Redis, purge: bool
) -> None:
    """Those that are let out may be back, at their old places, before the last of them has gone."""
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


def test_a_script_lists_the_keys_of_limits_while_there_is_room(frozen: Limiter, parking: Backlog) -> None:
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


def test_lots_are_listed_in_pages(frozen: Limiter, parking: Backlog, store: redis.Redis) -> None:
    for number in range(450):
        park(parking, "a", asked=demand("1/h", key=f"t{number}"))
    assert sorted(lot.key for lot in parking.contents.lots(["api"])) == sorted(f"t{number}" for number in range(450))
    store.config_resetstat()
    assert len(list(parking.contents.lots(["api"]))) == 450
    assert store.info("commandstats")["cmdstat_evalsha"]["calls"] >= 5


# -- When somebody looks -------------------------------------------------------------------------------------------


def wake(parking: Backlog, asked: LimitRequest, since: int = 0) -> int:
    """Tells the lots that their limit has changed; how many steps that took."""
    steps, more = 0, True
    while more:
        _, more = parking.wake(asked, since)
        steps += 1
    return steps


def closed(frozen: Limiter, parking: Backlog, asked: LimitRequest, id: str = "a") -> None:
    """Somebody is parked, and has been told to wait for long."""
    while frozen._asker.ask((asked,)).allowed:
        pass
    park(parking, id, asked=asked)
    assert take_due(parking, asked) == []


@pytest.mark.parametrize(
    "limit",
    [
        Limit("1/h", name="api"),
        Limit("1/h", name="api", algorithm="sliding_log"),
        Limit("1/h", name="api", algorithm="fixed_window"),
        Limit("1/h", name="api", algorithm="sliding_window"),
        Limit("1/h", name="api", refill="interval"),
    ],
    ids=lambda limit: str(limit.method),
)
def test_a_closed_lot_is_looked_after_when_its_turn_comes_and_no_sooner(
    frozen: Limiter, parking: Backlog, clock: Clock, limit: Limit
) -> None:
    asked = LimitRequest(limit, "api")
    closed(frozen, parking, asked)
    turn = us(frozen.peek(limit).retry_after)
    assert turn >= 3_600_000_000
    clock.set(START + turn - 1_000_001)
    assert parking.due(["api"]) == []
    clock.set(START + turn - 1_000_000)
    assert parking.due(["api"]) == [BUCKET]
    assert [id for id, _ in take_due(parking, asked)] == ["a"]


def test_a_paused_lot_is_looked_after_a_moment_before_the_pause_ends(
    frozen: Limiter, parking: Backlog, clock: Clock
) -> None:
    frozen.pause("api", 60, force=True)
    park(parking, "a")
    assert take_due(parking) == []
    clock.set(START + 58_999_999)
    assert parking.due(["api"]) == []
    clock.set(START + 59_000_000)
    assert parking.due(["api"]) == [BUCKET]
    assert take_due(parking) == [("a", 1_000_000)]


@pytest.mark.parametrize("how", ["settle", "cancel", "forget", "reset", "rate of the key", "end of the key's rate"])
def test_what_is_given_back_is_seen_at_once_and_once(frozen: Limiter, parking: Backlog, clock: Clock, how: str) -> None:
    limit = Limit("10/h", burst=10, name="api", key="{tenant}")
    asked, bucket = LimitRequest(limit, "api", "t"), ("api", "t")
    other = Backlog(frozen, "other", redelivery=3600)
    if how == "end of the key's rate":
        frozen.set_rate(limit, "1/d", key="t", for_=60, force=True)
    if how == "cancel":
        assert frozen.reserve(limit, id="r", key="t", cost=10, horizon=0).allowed
    else:
        decision = frozen.acquire(limit, key="t", cost=10)
    if how == "forget":
        frozen._asker.ask((asked,), id="waits", claim=1e6)
    for each in (parking, other):
        park(each, "a", asked=asked)
        each.due(["api"])
        assert take_due(each, asked) == []
        assert each.due(["api"]) == []
    clock.advance(1)
    if how == "settle":
        assert frozen.settle(decision, 1)
    elif how == "cancel":
        assert frozen.cancel(limit, id="r", key="t", cost=10)
    elif how == "forget":
        frozen._asker.forget((asked,), id="waits")
    elif how == "reset":
        frozen.reset(limit, key="t")
    elif how == "rate of the key":
        frozen.set_rate(limit, "100/s", key="t", force=True)
    else:
        clock.advance(58)
        assert parking.due(["api"]) == []
        clock.advance(1)
    for each in (parking, other):
        assert each.due(["api"]) == [bucket]
        take_due(each, asked)
        if how != "end of the key's rate":
            clock.advance(0.1)
            assert each.due(["api"]) == [], "by each fleet once, whoever of it asks"


def test_a_place_that_is_given_back_is_seen_at_once(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    asked = LimitRequest(Concurrency(1, name="api", lease=60), "api")
    held = frozen._asker.ask((asked,), id="holder")
    clock.advance(30)
    park(parking, "a", asked=asked)
    assert take_due(parking, asked) == [], "held for half a minute by now, so for another one"
    clock.advance(20)
    assert parking.due(["api"]) == []
    assert frozen.release(held)
    assert parking.due(["api"]) == [BUCKET]
    assert take_due(parking, asked) == [("a", 0)]


def test_no_more_come_for_places_than_at_once_until_it_is_known_how_long_they_are_held(
    frozen: Limiter, parking: Backlog, clock: Clock
) -> None:
    """Who comes is bound to a worker, which may have no process for it when another one has."""
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


def test_a_place_whose_holder_is_dead_is_looked_at_when_its_lease_ends(
    frozen: Limiter, parking: Backlog, clock: Clock
) -> None:
    asked = LimitRequest(Concurrency(1, name="api", lease=60), "api")
    frozen._asker.ask((asked,), id="holder")
    clock.advance(50)
    park(parking, "a", asked=asked)
    assert take_due(parking, asked) == []
    clock.advance(10)
    assert parking.due(["api"]) == [BUCKET]
    assert take_due(parking, asked) == [("a", 0)]


def test_a_limit_that_changes_wakes_its_lots_few_at_once_and_many_in_turn(
    frozen: Limiter, parking: Backlog, clock: Clock
) -> None:
    limit = Limit("1/h", name="api", key="{tenant}")

    def demands(number: int) -> list[LimitRequest]:
        return [LimitRequest(limit, "api", f"t{index}") for index in range(number)]

    def looked(number: int) -> None:
        waiting = demands(number)
        while waiting:
            waiting = waiting[len(parking.take_due(waiting)) :]

    for asked in demands(200):
        frozen._asker.ask((asked,))
        park(parking, "a", asked=asked)
    looked(200)
    assert wake(parking, demands(1)[0]) == 1
    assert parking.due(["api"]) == [], "nothing has changed"
    clock.advance(1)
    frozen.set_rate("api", "2/h", force=True)
    assert wake(parking, demands(1)[0]) == 1
    assert len(parking.due(["api"])) == READ_AT_ONCE, "all of them, so many at a time"
    looked(200)
    assert parking.due(["api"]) == []
    for asked in demands(1200)[200:]:
        frozen._asker.ask((asked,))
        park(parking, "a", asked=asked)
    looked(1200)
    since, _ = parking.wake(demands(1)[0], clock.us)
    clock.advance(1)
    frozen.set_rate("api", "3/h", force=True)
    assert wake(parking, demands(1)[0], since) == -(-1200 // SCANNED_AT_ONCE), "so many a script"
    assert wake(parking, demands(1)[0], since) == 1, "by whichever worker"
    assert len(parking.due(["api"])) <= 1
    seen = set()
    for _ in range(24):
        clock.advance(0.1)
        due = parking.due(["api"])
        assert 45 <= len(due) <= 55, "500 a second"
        seen.update(due)
        while due:
            due = due[len(parking.take_due([LimitRequest(limit, *bucket) for bucket in due], due=True)) :]
    assert len(seen) == 1200


def test_another_limit_in_the_code_wakes_the_lots(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    """A worker of the next deploy has another rate, and one of the deploy before is still about."""
    old, new = demand("1/h"), demand("1/m")
    closed(frozen, parking, old)
    clock.advance(1)
    assert wake(parking, old) == 1
    assert parking.due(["api"]) == []
    assert wake(parking, new) == 1
    assert parking.due(["api"]) == [BUCKET]
    (looked,) = parking.take_due([old])  # by the old one, which sees it far away
    assert looked.another
    (looked,) = parking.take_due([new])
    assert looked.another
    (looked,) = parking.take_due([new])
    assert not looked.another


def test_one_script_for_all_that_are_due(frozen: Limiter, parking: Backlog, store: redis.Redis) -> None:
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


def test_the_next_one_may_be_cheaper(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    limit = Limit("10/h", burst=10, name="api")
    frozen._asker.ask((LimitRequest(limit, "api", "", 10),))
    park(parking, "dear", asked=LimitRequest(limit, "api", "", 10))
    park(parking, "cheap", asked=LimitRequest(limit, "api", "", 1))
    assert take_due(parking, LimitRequest(limit, "api")) == []
    clock.set(START + 360_000_000)
    assert parking.due(["api"]) == []
    parking.contents.remove(BUCKET, ["dear"], purge=True)
    assert parking.due(["api"]) == [BUCKET]
    assert take_due(parking, LimitRequest(limit, "api")) == [("cheap", 0)]


# -- A worker dies between two steps -------------------------------------------------------------------------------


def test_parked_but_not_acknowledged_the_broker_brings_it_once_more(parking: Backlog) -> None:
    park(parking, "a")
    # Still parked: the message that comes once more is of no use.
    assert parking.copies.arrive(BUCKET, {"a": 0}) == {"a"}
    assert [each.id for each in let_out(parking, API)] == ["a"]
    publish(parking, ("a", 1))
    # It has left meanwhile: only what came from the lot may run.
    assert parking.copies.arrive(BUCKET, {"a": 1}) == set()
    assert parking.copies.arrive(BUCKET, {"a": 0}) == {"a"}
    assert parking.copies.arrive(BUCKET, {"a": 1}) == set(), "and it may run once more if it is delivered once more"


def test_acknowledged_it_may_come_again_for_other_reasons(parking: Backlog, store: redis.Redis) -> None:
    park(parking, "a")
    parking.untold.note_acknowledged(BUCKET, "a", "t1")
    let_out(parking, API)
    publish(parking, ("a", 1))
    assert parking.copies.arrive(BUCKET, {"a": 1, "b": 0}) == set()
    assert not store.keys("ratelimit:*:valid_copy@fleet")


def test_that_it_is_acknowledged_may_be_told_after_it_has_left(parking: Backlog, store: redis.Redis) -> None:
    park(parking, "a")
    let_out(parking, API)
    assert store.keys("ratelimit:*:valid_copy@fleet")
    parking.untold.note_acknowledged(BUCKET, "a", "t1")
    publish(parking, ("a", 1))
    assert not store.keys("ratelimit:*:valid_copy@fleet")


@pytest.mark.parametrize("was_published", [False, True], ids=["not published", "published, and not reported"])
def test_let_out_and_not_reported_it_is_published_once_more_and_runs_once(
    parking: Backlog, clock: Clock, was_published: bool
) -> None:
    park(parking, "a")
    parking.untold.note_acknowledged(BUCKET, "a", "t1")
    assert [(each.id, each.copy) for each in let_out(parking, API)] == [("a", 1)]
    # Here the worker dies. Another looks after the lot.
    clock.set(START + 9_000_000)
    assert let_out(parking, API) == []
    clock.set(START + 10_000_000)
    assert [(each.id, each.copy) for each in let_out(parking, API)] == [("a", 2)]
    publish(parking, ("a", 2))
    if was_published:
        assert parking.copies.arrive(BUCKET, {"a": 1}) == set()
        assert parking.copies.arrive(BUCKET, {"a": 2}) == {"a"}
        assert parking.copies.arrive(BUCKET, {"a": 1}) == set()
    else:
        assert parking.copies.arrive(BUCKET, {"a": 2}) == set()


def test_one_that_arrives_was_published(parking: Backlog, clock: Clock) -> None:
    park(parking, "a")
    parking.untold.note_acknowledged(BUCKET, "a", "t1")
    let_out(parking, API)  # published, and the worker dies before it says so
    assert parking.copies.arrive(BUCKET, {"a": 1}) == set()
    clock.set(START + 60_000_000)
    assert let_out(parking, API) == []


def test_parked_again_and_not_acknowledged(parking: Backlog) -> None:
    """It came back, its limit was paused, it is parked again as copy 2; copy 1 is delivered once more."""
    park(parking, "a")
    parking.untold.note_acknowledged(BUCKET, "a", "t1")
    let_out(parking, API)
    publish(parking, ("a", 1))
    assert parking.copies.arrive(BUCKET, {"a": 1}) == set()
    park(parking, "a", copy=2, since=START)
    assert parking.copies.arrive(BUCKET, {"a": 1}) == {"a"}
    assert [(each.id, each.copy) for each in let_out(parking, API)] == [("a", 2)]
    publish(parking, ("a", 2))
    assert parking.copies.arrive(BUCKET, {"a": 1}) == {"a"}
    assert parking.copies.arrive(BUCKET, {"a": 2}) == set()


def test_the_one_that_may_run_is_parked_again_under_another_number(parking: Backlog, clock: Clock) -> None:
    """Let out and not reported, so there are two; the first to come finds its limit closed and is parked once more."""
    park(parking, "a")
    let_out(parking, API)
    clock.set(START + 10_000_000)
    assert [(each.id, each.copy) for each in let_out(parking, API)] == [("a", 2)]
    publish(parking, ("a", 2))
    assert parking.copies.arrive(BUCKET, {"a": 0}) == set(), "the user's own message, delivered once more"
    park(parking, "a", copy=1, token="redelivered")
    parking.untold.note_acknowledged(BUCKET, "a", "redelivered")
    assert parking.copies.arrive(BUCKET, {"a": 1}) == {"a"}
    assert parking.copies.arrive(BUCKET, {"a": 2}) == {"a"}
    clock.set(START + 11_000_000)
    assert [(each.id, each.copy) for each in let_out(parking, API)] == [("a", 3)]
    publish(parking, ("a", 3))
    assert parking.copies.arrive(BUCKET, {"a": 0}) == {"a"}
    assert parking.copies.arrive(BUCKET, {"a": 2}) == {"a"}
    assert parking.copies.arrive(BUCKET, {"a": 3}) == set()


def test_what_is_parked_again_is_not_taken_for_what_was_published(parking: Backlog, clock: Clock) -> None:
    """It comes back, and is parked once more, before the worker that published it has said so."""
    park(parking, "a")
    parking.untold.note_acknowledged(BUCKET, "a", "t1")
    let_out(parking, API)
    assert parking.copies.arrive(BUCKET, {"a": 1}) == set()
    park(parking, "a", copy=2, since=START)
    publish(parking, ("a", 1))
    assert parking.copies.arrive(BUCKET, {"a": 1}) == {"a"}
    clock.set(START + 1_000_000)
    assert [(each.id, each.copy) for each in let_out(parking, API)] == [("a", 2)]


def test_what_is_parked_stays_and_what_is_remembered_expires(parking: Backlog, store: redis.Redis) -> None:
    park(parking, "a", "b", expires=START / 1e6 + 3600)
    take_due(parking)
    assert {key.rpartition(":")[2] for key in store.keys("ratelimit:*@fleet")} == {
        f"{kind}@fleet" for kind in ("payloads", "in_flight", "valid_copy", "due", "code")
    }
    (remembered,) = [key for key in store.keys("ratelimit:*@fleet") if "valid_copy" in key]
    assert expiries(store).get(remembered) == START + 7_200_000_000 + us(REDELIVERY_LATE)
    publish(parking, ("a", 1), ("b", 1))


# -- The next look is never later than the next turn ---------------------------------------------------------------


def out_when_due(parking: Backlog, clock: Clock, asked: LimitRequest, absent: Collection[str] = ()) -> list[str]:
    """Who leaves within three seconds, if a lot is looked at when it is due and never else."""
    gone: list[str] = []
    for _ in range(30):
        while parking.due([asked.name]):
            for looked in parking.take_due([asked], due=True, absent=absent):
                gone += [each.id for each in looked.leaving]
                parking.published({looked.bucket: looked.leaving})
        clock.advance(0.1)
    return gone


@pytest.mark.parametrize(("rate", "number", "size"), [("10000/s", 120, 1), ("10/s", 3, 600_000)], ids=["many", "large"])
def test_a_script_that_stops_while_the_others_are_aside_goes_on(
    frozen: Limiter, parking: Backlog, clock: Clock, rate: str, number: int, size: int
) -> None:
    """Whoever was brought back has left, nobody else is in the lot itself, and the script has done enough."""
    asked, ids = demand(rate), [f"{place}@a" for place in range(number)]
    for id in ids:
        text = json.dumps({"id": id, "body": "x" * size})
        park_one(parking, asked, id, text)
    while parking.take_due([asked], absent=NOBODY_AT_A)[0].again == 0:
        pass
    clock.advance(5)
    parking.register.recall("api", None, 0)
    assert out_when_due(parking, clock, asked, frozenset()) == ids


def test_as_many_as_may_have_slots_and_a_burst(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
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


def test_queues_of_which_nobody_has_heard_for_long_do_not_hide_the_others(parking: Backlog, clock: Clock) -> None:
    """As broadcast queues do, of which each start of a worker has another one."""
    for number in range(1050):
        attend(parking, f"w{number}", f"bcast.{number}")
    clock.advance(10)
    attend(parking, "one", "a", "b")
    attend(parking, "one", left=["a"])
    assert "a" in attend(parking, "one", "b")


@pytest.mark.parametrize("key", ["a\0b", "\0", "a\0" + "b" * 200, "%s", "\udc80"])
def test_a_key_of_any_characters_is_found(parking: Backlog, key: str) -> None:
    asked = demand("10/s", key=key)
    park(parking, "t@a", asked=asked)
    assert list(parking.contents.find(["api"], ["t"])) == [{("api", key): {"t@a": "t"}}]
    assert parking.contents.remove(("api", key), ["t@a"], purge=True)[0] == 1
    assert list(parking.contents.find(["api"], ["t"])) == [{}]


def test_slots_of_another_algorithm_whose_owners_do_not_come(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    """A worker was killed, another goes on, and somebody has stored a rate of another algorithm."""
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


def test_more_workers_can_hold_more(parking: Backlog, frozen: Limiter) -> None:
    """Else a rate of 10,000/s would be 1,000 in each look."""
    quick = demand("100000/s")
    frozen._asker.ask((quick,))
    for number in range(4):
        attend(parking, f"w{number}", "a")
    park(parking, *[f"t{number}" for number in range(2100)])
    assert len(let_out(parking, quick)) == 2000
