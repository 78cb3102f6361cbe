"""The total cost of parked tasks, counted as tasks come and leave by any way."""

from __future__ import annotations

import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import Limit, Limiter
from celery_ratelimit.backlog.backlog import Backlog, ParkResult
from celery_ratelimit.backlog.messages import Parked
from celery_ratelimit.backlog.tuning import PUBLISH_TIMEOUT
from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.conftest import START
from tests.examples import examples
from tests.parks import park_one

from .backlog_steps import ABSENT_A, BUCKET, message_of

LIMIT = Limit("100/s", burst=1000, name="api", key="{tenant}")


def park(parking: Backlog, id: str, cost: int, *, key: str = "", most: int | None = None, expires: float = 0.0) -> int:
    return park_one(parking, LimitRequest(LIMIT, "api", key, cost), id, message_of(id), expires=expires, most=most)


def costs(parking: Backlog) -> dict[str, int]:
    return {lot.key: lot.cost for lot in parking.contents.lots(["api"])}


def test_park_returns_the_cost_ahead(parking: Backlog, store: redis.Redis) -> None:
    assert [park(parking, f"{number}@a", 500) for number in range(19)] == [500 * number for number in range(19)]
    assert park(parking, "cheap@a", 1) == 9500
    assert park(parking, "other@a", 7, key="other") == 0
    assert costs(parking) == {"": 9501, "other": 7}
    assert park(parking, "late@a", 1, most=9501) == ParkResult("full", 9501)
    assert park(parking, "late@a", 1, most=9502) == 9501


STEP = st.one_of(
    st.tuples(st.just("park"), st.integers(0, 30), st.sampled_from([1, 1, 3, 500])),
    st.tuples(st.just("expiring"), st.integers(0, 30), st.sampled_from([1, 40])),
    st.tuples(st.just("take_due"), st.sampled_from([0, 1]), st.just(0)),
    st.tuples(st.just("pick"), st.integers(0, 30), st.sampled_from([0, 1])),
    st.tuples(st.just("all"), st.just(0), st.sampled_from([0, 1])),
    st.tuples(st.just("publish"), st.just(0), st.just(0)),
    st.tuples(st.just("wait"), st.integers(1, 12), st.just(0)),
)


@examples(60)
@given(steps=st.lists(STEP, max_size=40))
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
            park(parking, f"{one}@{'ab'[one % 2]}", two)
        elif what == "expiring":
            park(parking, f"{one}@{'ab'[one % 2]}", two, expires=now / 1e6 + 1)
        elif what == "take_due":
            (looked,) = parking.take_due([LimitRequest(LIMIT, "api", "", 1)], absent=ABSENT_A if one else ())
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
