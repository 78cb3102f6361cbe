"""Reservations are known by their id; cancel and settle use what the store remembers."""

from __future__ import annotations

import pytest

from celery_ratelimit import Concurrency, ConfigurationError, Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.asking import reply_to
from tests.conftest import START, Clock

from .frozen import us

LIMITS = [
    Limit("10/s", burst=10, name="api"),
    Limit("10/s", name="api", algorithm="fixed_window"),
    Limit("10/s", name="api", algorithm="sliding_window"),
    Limit("10/s", name="api", algorithm="sliding_log"),
    Limit("10/s", burst=10, name="api", refill="interval"),
]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.method)
def test_cancelled_id_may_be_reserved_again_and_is_another(frozen: Limiter, clock: Clock, limit: Limit) -> None:
    for number in range(3):
        clock.set(START + number)
        old = frozen.reserve(limit, id="r", cost=4, horizon=0.0)
        assert old.allowed
        assert frozen.available(limit) == 6
        assert frozen.cancel(limit, id="r", cost=4)
        assert frozen.available(limit) == 10, "it has given its permits back each time"
    clock.set(START + 3)
    new = frozen.reserve(limit, id="r", cost=4, horizon=0.0)
    assert not frozen.settle(old, 0), "it has been given back already"
    assert frozen.available(limit) == 6
    assert frozen.settle(new, 1), "and this one is another, which may be settled still"
    assert frozen.available(limit) == 9


@pytest.mark.parametrize("cost", [1, 9, None])
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.method)
def test_cancel_returns_the_reserved_cost(frozen: Limiter, clock: Clock, limit: Limit, cost: int | None) -> None:
    assert frozen.acquire(limit, cost=5).allowed
    assert frozen.reserve(limit, id="one", horizon=0.0).allowed
    if limit.method == "sliding_log":
        clock.set(START + 1)
    assert frozen.reserve(limit, id="three", cost=3, horizon=0.0).allowed
    assert frozen.cancel(limit, id="one", cost=cost)
    assert frozen.available(limit) == 2
    assert frozen.cancel(limit, id="three", cost=cost)
    assert frozen.available(limit) == 5


def test_reservation_id_belongs_to_its_limits(frozen: Limiter) -> None:
    a, b = Limit("1/s", burst=3, name="a"), Limit("1/s", burst=3, name="b")
    assert frozen.reserve([a], id="r", horizon=0.0).allowed
    with pytest.raises(ConfigurationError, match="another's, of other limits than 'b'"):
        frozen.reserve([a, b], id="r", horizon=0.0)
    with pytest.raises(ConfigurationError, match="of other limits than 'b'"):
        frozen.reserve([b, a], id="r", horizon=0.0)
    assert [frozen.available(limit) for limit in (a, b)] == [2, 3]


def test_reservation_ids_do_not_collide_with_internal_entries(frozen: Limiter) -> None:
    limit = Limit("1/s", burst=100, name="api")
    ids = ["x", "settled x", "\0sx", "\0cx", "\0\0\0sx", "\0\0sx"]
    for n, id in enumerate(ids):
        assert frozen.reserve(limit, id=id, cost=2, horizon=0.0)._granted_at == START, id
        assert frozen.available(limit) == 98 - 2 * n, "each is another reservation"
    for n, id in enumerate(ids):
        assert frozen.cancel(limit, id=id), id
        assert not frozen.cancel(limit, id=id)
        assert frozen.available(limit) == 100 - 2 * len(ids) + 2 * (n + 1)


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "sliding_log", "token_bucket"])
def test_late_call_may_peek_and_reserve(frozen: Limiter, clock: Clock, algorithm: str) -> None:
    limit = Limit("2/s", name="api", algorithm=algorithm)
    wanted = (LimitRequest(limit, "api"),)
    for id in "abcde":
        frozen._asker.ask(wanted, id=id, claim=100)
    clock.set(START + us(0.7))
    for at in (0.7, 1.2, 1.7, 2.1):
        clock.set(START + us(at))
        for id in "abcde":
            reply = reply_to(frozen, "peek", wanted, id)
            assert reply[0] in (0, 1)
            assert frozen.reserve(limit, id=id, horizon=0.0).retry_after >= 0


def test_different_limits_of_one_name_raise(frozen: Limiter) -> None:
    for other in (Concurrency(2, name="api"), Limit("10/s", name="api", burst=2), Limit("1/s", name="api")):
        with pytest.raises(ConfigurationError, match="two limits of one request are named 'api'"):
            frozen.acquire([Limit("10/s", name="api"), other])
    same = [Limit("10/s", name="api"), Limit("10/s", name="api"), Limit("10/s", name="api", cost=1)]
    assert len(frozen.acquire(same).states) == 1, "one that is named twice is paid once"
