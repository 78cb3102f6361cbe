"""The position of a task in a backlog of shares follows the turns of all shares, not arrival."""

from __future__ import annotations

import pytest
import redis

from celery_ratelimit import Limiter
from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.backlog.scripts import weights_text
from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.conftest import Clock

from .test_fair_shares import BUCKET, ids, leave, limit, park, to_park

WEIGHTS = {"t1": 2.0, "t2": 0.5, "t3": 8.0, "t5": 4.0}


def turn(parking: Backlog, id: str, asked: LimitRequest) -> tuple[int, float] | None:
    """About how many tasks are before a task, and the weight of its share."""
    found = parking.contents.position(BUCKET, id, weights_text(asked.limit))
    return None if found.weight is None else (found.before, found.weight)


def test_task_of_a_small_share_has_a_near_position(parking: Backlog) -> None:
    park(parking, *[to_park("big", f"b{number}") for number in range(1000)])
    park(parking, *[to_park("small", f"s{number}") for number in range(3)])
    assert turn(parking, "s1", limit()) == (2, 1.0), "one of its own, and as many of the other share"
    assert turn(parking, "b999", limit()) == (1002, 1.0), "all others"
    assert turn(parking, "s1", limit(weights={"small": 0})) == (0, 0.0), "it has none"
    assert turn(parking, "unknown", limit()) is None


def test_position_uses_stored_weights(frozen: Limiter, parking: Backlog) -> None:
    park(parking, *[to_park(share, f"{share}{number}") for share in "ab" for number in range(50)])
    frozen.set_weight(limit().limit, "a", 4)
    parking.take_due([limit("1/d")])
    forecast = turn(parking, "b9", limit())
    assert forecast is not None
    assert 40 <= forecast[0] <= 50


@pytest.mark.parametrize("shares", [7, 100])
def test_forecast_order_matches_the_real_order(parking: Backlog, clock: Clock, shares: int) -> None:
    """While each share has tasks."""
    messages = [
        to_park(f"t{number % shares}", f"{number}@q", weight=WEIGHTS.get(f"t{number % shares}", 1.0))
        for number in range(1400)
    ]
    asked = limit("1000000/s", burst=1000, weights=WEIGHTS)
    for first in range(0, len(messages), 100):
        park(parking, *messages[first : first + 100])
    told = {f"{number}@q": turn(parking, f"{number}@q", asked) for number in range(0, 70, 5)}
    order: list[str] = []
    while len(order) < len(messages):
        clock.advance(1)
        left = leave(parking, asked, horizon=0)
        parking.published({BUCKET: left})
        order += ids(left)
    for id, forecast in told.items():
        assert forecast is not None
        assert abs(forecast[0] - order.index(id)) <= order.index(id) / 4 + 2 * shares


def test_message_of_a_share_outside_the_index_has_no_position(parking: Backlog, store: redis.Redis) -> None:
    park(parking, to_park("a", "a0@q"))
    store.delete("ratelimit:v1:{api}::shares@fleet")
    assert turn(parking, "a0@q", limit()) is None
    assert parking.contents.lot(BUCKET, 0, -1).tasks[0].share == "a"
