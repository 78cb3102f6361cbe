"""When a task of a lot that is shared has its turn: by the turns of all shares, whoever came first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random

import pytest
import redis

from celery_ratelimit import Limiter
from celery_ratelimit.backlog.backlog import Backlog, ToPark
from celery_ratelimit.backlog.backlog_queries import SHARES
from celery_ratelimit.backlog.messages import Turn
from celery_ratelimit.backlog.weights import weights_text
from celery_ratelimit.limiter.demand import Demand
from tests.conftest import Clock

from .test_fair_shares import BUCKET, ids, leave, limit, park, to_park

WEIGHTS = {"t1": 2.0, "t2": 0.5, "t3": 8.0, "t5": 4.0}


def turn(parking: Backlog, id: str, asked: Demand) -> Turn | None:
    return parking.contents.turn(BUCKET, id, weights_text(asked.limit))


def costs_before(order: list[str], costs: Mapping[str, int], id: str) -> int:
    return sum(costs[each] for each in order[: order.index(id)])


def test_one_of_a_small_share_is_soon_behind_a_backlog(parking: Backlog) -> None:
    park(parking, *[to_park("big", f"b{number}") for number in range(1000)])
    park(parking, *[to_park("small", f"s{number}") for number in range(3)])
    assert turn(parking, "s1", limit()) == Turn(3, 3.0, 1.0), "two of the big one, and one of its own"
    assert turn(parking, "b999", limit()) == Turn(1002, 1002.0, 1.0)
    assert turn(parking, "s1", limit(weights={"small": 4})) == Turn(2, 2.0, 4.0)
    assert turn(parking, "s1", limit(weights={"small": 0})) == Turn(0, None, 0.0), "it has none"
    assert turn(parking, "b9", limit(weights={"small": 0})) == Turn(9, 9.0, 1.0), "who is held back is before nobody"
    assert turn(parking, "nobody", limit()) is None


def test_weights_that_are_stored_count(frozen: Limiter, parking: Backlog) -> None:
    park(parking, *[to_park(share, f"{share}{number}") for share in "ab" for number in range(50)])
    frozen.set_weight(limit().limit, "a", 4)
    assert turn(parking, "b9", limit()) == Turn(46, 46.0, 1.0)


@pytest.mark.parametrize("dearest", [1, 20])
@pytest.mark.parametrize("shares", [7, 2 * SHARES + 9])
def test_the_order_in_which_they_leave_is_the_one_that_was_told(
    parking: Backlog, store: redis.Redis, clock: Clock, shares: int, dearest: int
) -> None:
    """A real drain, in permits: twenty tasks are within a tenth, and a second of the rate."""
    random, costs, messages = Random(shares + dearest), dict[str, int](), list[ToPark]()
    for number in range(1500):
        share = f"t{min(random.randrange(shares), random.randrange(shares))}"
        costs[f"{number}@q"] = cost = random.randint(1, dearest)
        messages.append(to_park(share, f"{number}@q", cost=cost, weight=WEIGHTS.get(share, 1.0)))
    asked, rate = limit("100/s", burst=20, weights=WEIGHTS), 100
    for first in range(0, len(messages), 100):
        park(parking, *messages[first : first + 100])
    before = leave(parking, asked, horizon=0)  # some have had theirs
    parking.published({BUCKET: before})
    rest = [id for id in costs if id not in ids(before)]
    told = {id: turn(parking, id, asked) for id in random.sample(rest, 20)}
    fast = limit("1000000/s", burst=1000, weights=WEIGHTS)
    order: list[str] = []
    while len(order) < len(rest):
        clock.advance(1)
        left = leave(parking, fast, horizon=0)
        parking.published({BUCKET: left})
        order += ids(left)
    for id, forecast in told.items():
        assert forecast is not None
        assert forecast.permits is not None
        real = costs_before(order, costs, id)
        assert abs(forecast.permits - real) <= real / 10 + rate
        if dearest == 1:
            assert abs(forecast.permits - real) <= 1, "nothing is guessed"
            assert forecast.tasks == forecast.permits


def test_the_model_of_a_share_says_the_same(parking: Backlog) -> None:
    """Each in its order, by virtual time that begins at 1: the tasks that start before it."""
    costs = {"a": [3, 1, 2, 5, 1], "b": [1, 1, 1, 1, 1, 1, 9, 1], "c": [20, 1]}
    weights = {"a": 2.0, "b": 1.0, "c": 4.0}
    starts: list[tuple[float, str, str, int]] = []
    for share, several in costs.items():
        at = 1.0
        for number, cost in enumerate(several):
            park(parking, to_park(share, f"{share}{number}", cost=cost, weight=weights[share]))
            starts.append((at, share, f"{share}{number}", cost))
            at += cost / weights[share]
    starts.sort()
    asked = limit(weights=weights)
    for number, (_, share, id, _) in enumerate(starts):
        permits = float(sum(cost for *_, cost in starts[:number]))
        assert turn(parking, id, asked) == Turn(number, permits, weights[share])
    assert ids(leave(parking, limit(burst=100, weights=weights), horizon=0)) == [id for _, _, id, _ in starts]


def test_a_message_that_says_a_share_and_is_in_no_index_has_no_turn(parking: Backlog, store: redis.Redis) -> None:
    park(parking, to_park("a", "a0@q"))
    store.delete("ratelimit:v1:{api}::shares@fleet")
    assert turn(parking, "a0@q", limit()) is None
    assert json.loads(parking.contents.lot(BUCKET, 0, -1).tasks[0].message)["share"] == "a"
