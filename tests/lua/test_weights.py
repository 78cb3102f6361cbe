"""Weights that are changed while tasks wait."""

from __future__ import annotations

import pytest
import redis

from celery_ratelimit import ConfigurationError, Limit, Limiter
from celery_ratelimit.backlog.backlog import Backlog
from tests.conftest import START, Clock

from .test_fair_shares import BUCKET, FAIR, TURNS, ids, leave, limit, park, to_park


def set_weight(limiter: Limiter, key: str, weight: float | None) -> bool:
    return limiter.set_weight(FAIR.limit, key, weight, by="me")


def test_stored_weight_overrides_the_code_until_removed(frozen: Limiter, parking: Backlog) -> None:
    code = limit(weights={"a": 0.5})
    park(parking, *[to_park(share, f"{share}{number}") for number in range(300) for share in "ab"])
    assert set_weight(frozen, "a", 4)
    (looked,) = parking.take_due([code])
    assert abs(sum(id[0] == "a" for id in ids(looked.leaving)[:30]) - 24) <= 1
    assert set_weight(frozen, "a", None)
    assert not set_weight(frozen, "a", None)
    (looked,) = parking.take_due([code])
    assert abs(sum(id[0] == "a" for id in ids(looked.leaving)[:30]) - 10) <= 1


def test_changed_weight_applies_to_later_turns(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    park(parking, *[to_park(share, f"{share}{number}") for number in range(300) for share in "ab"])
    set_weight(frozen, "a", 0.001)
    first = ids(leave(parking, limit("20/s"), horizon=0.5))
    assert [id for id in first if id[0] == "a"] == ["a0"]
    set_weight(frozen, "a", 1)
    clock.advance(0.5)
    assert abs(sum(id[0] == "a" for id in ids(leave(parking, limit("20/s"), horizon=0.5))) - 5) <= 1


def test_weight_0_holds_tasks_back_until_changed(frozen: Limiter, parking: Backlog) -> None:
    set_weight(frozen, "a", 0)
    park(parking, *[to_park("a", f"a{number}") for number in range(5)])
    assert parking.due(["api"]) == [BUCKET], "a limit that has one bucket is touched by the change"
    assert leave(parking) == []
    assert parking.due(["api"]) == []
    set_weight(frozen, "a", 1)
    assert parking.wake(FAIR, 0) == (START, False)
    assert parking.due(["api"]) == [BUCKET]
    assert len(leave(parking)) == 5


@pytest.mark.parametrize("back", [None, 2.0])
def test_many_held_back_tasks_all_leave(frozen: Limiter, parking: Backlog, back: float | None) -> None:
    """Of more changes than the store remembers one by one."""
    names = [f"t{number}" for number in range(150)]
    for name in names:
        set_weight(frozen, name, 0)
    park(parking, *[to_park(name, f"{name}@q") for name in names], to_park("free", "free@q"))
    assert ids(leave(parking)) == ["free@q"]
    for name in names:
        set_weight(frozen, name, back)
    assert sorted(ids(leave(parking))) == sorted(f"{name}@q" for name in names)


def test_backlog_is_woken_once_per_change(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    park(parking, *[to_park("a", f"a{number}") for number in range(5)])
    set_weight(frozen, "a", 3)
    parking.due(["api"])
    leave(parking, limit("1/s"))
    parking.wake(limit("1/s"), START)
    assert parking.due(["api"]) == []
    parking.wake(limit("1/s"), START - 1)
    assert parking.due(["api"]) == [BUCKET]


def test_stored_weight_shows_author_and_time(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
    code = limit(weights={"gold": 4, "silver": 2}).limit
    frozen.set_weight(code, "gold", 7, by="me")
    clock.advance(2)
    frozen.set_weight(code, "é " * 100, 0, by="you")
    found = frozen.weights(code)
    assert {key: (each.weight, each.code, each.stored, each.by) for key, each in found.items()} == {
        "gold": (7.0, 4.0, 7.0, "me"),
        "silver": (2.0, 2.0, None, ""),
        "é " * 100: (0.0, 1.0, 0.0, "you"),
    }
    assert [each.since for each in found.values()] == [START / 1e6, 0.0, START / 1e6 + 2]


def test_bad_names_weights_and_limits_raise(limiter: Limiter) -> None:
    limiter.quotas["stripe"] = FAIR.limit
    with pytest.raises(ConfigurationError, match="stripe"):
        limiter.set_weight("strip", "a", 1)
    limiter.set_weight("strip", "a", 1, force=True)
    for wrong in (-1, float("nan"), float("inf"), True, "4", 0.0001, 2_000_000):
        with pytest.raises(ConfigurationError, match=r"weight .* of 'a' must be 0"):
            limiter.set_weight(FAIR.limit, "a", wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="key=7 must be a text"):
        limiter.set_weight(FAIR.limit, 7, 1)  # type: ignore[arg-type]
    limiter.set_rate("plain", "5/s", force=True)
    with pytest.raises(ConfigurationError, match="is not fair"):
        limiter.set_weight(Limit("5/s", name="plain"), "a", 1)


def test_changed_weights_keep_the_bucket(frozen: Limiter, parking: Backlog, store: redis.Redis) -> None:
    code = limit("10/s", burst=5)
    assert all(frozen.acquire(code.limit).allowed for _ in range(5))
    set_weight(frozen, "a", 3)
    assert not frozen.acquire(limit("10/s", burst=5, weights={"a": 2}).limit).allowed
    assert not store.exists(TURNS)
