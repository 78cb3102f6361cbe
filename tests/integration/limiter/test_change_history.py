"""Every change of a limit is kept: author, time, action, state before and after, reason."""

from __future__ import annotations

import itertools
import multiprocessing
from dataclasses import replace
from typing import Any

import pytest
import redis

from celery_ratelimit import Concurrency, ConfigurationError, Limit, Limiter
from celery_ratelimit.limits.stored_settings import Stored
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT, START, Clock

QUOTAS: dict[str, Any] = {
    "stripe": Limit("100/s", burst=5),
    "tenant": Limit("5/s", key="{tenant}"),
    "gpu": Concurrency(4),
}


@pytest.fixture
def changing(frozen: Limiter) -> Limiter:
    frozen.quotas.update({name: replace(limit, name=name) for name, limit in QUOTAS.items()})
    return frozen


def test_each_change_has_author_time_action_and_reason(changing: Limiter, clock: Clock) -> None:
    changing.set_rate("stripe", "20/s", for_=600, by="ann@host", reason="the upstream is slow")
    clock.advance(1)
    changing.pause("stripe", 30, by="bob@host")
    clock.advance(1)
    changing.resume("stripe", by="bob@host", reason="all is well")
    changing.expire_rate("stripe", 60, by="ann@host")
    changing.unset_rate("stripe", by="ann@host")
    changing.reset("stripe", by="eve@host", reason="a test")
    found = changing.history("stripe")
    start = START / 1e6
    assert [(each.verb, each.by, each.reason, each.at - start) for each in found] == [
        ("set", "ann@host", "the upstream is slow", 0.0),
        ("pause", "bob@host", "", 1.0),
        ("resume", "bob@host", "all is well", 2.0),
        ("expire", "ann@host", "", 2.0),
        ("unset", "ann@host", "", 2.0),
        ("reset", "eve@host", "a test", 2.0),
    ]
    first, paused, resumed, expiring, unset, _ = found
    none = Stored(None, None, None, "")
    rate = Limit("20/s", burst=5, name="stripe")
    assert (first.before, first.after) == (none, Stored(rate, start + 600, None, "20/s, burst 5"))
    assert (paused.before, paused.after) == (first.after, first.after._replace(paused_until=start + 31))
    assert (resumed.before, resumed.after) == (paused.after, first.after)
    assert expiring.after == first.after._replace(until=start + 62)
    assert (unset.before, unset.after) == (expiring.after, none)


def test_command_without_effect_is_not_kept(changing: Limiter) -> None:
    changing.set_rate("stripe", "20/s", version=2)
    assert not changing.set_rate("stripe", "30/s", version=1)
    assert not changing.try_set_rate("stripe", "30/s")
    changing.pause("stripe", 30)
    assert changing.pause("stripe", 20) == 30, "a shorter pause never shortens a longer one"
    assert not changing.unset_rate("gpu")
    assert not changing.resume("gpu")
    assert [each.verb for each in changing.history("stripe")] == ["set", "pause"]
    assert changing.history("gpu") == []


def test_changes_of_keys_are_kept_with_their_limit(changing: Limiter) -> None:
    changing.set_rate("tenant", "50/s", key="é\n7")
    changing.pause("tenant", 5, key="8")
    assert [(each.key, each.verb) for each in changing.history("tenant")] == [("é\n7", "set"), ("8", "pause")]


def test_last_hundred_changes_are_kept_and_expire(changing: Limiter, store: redis.Redis) -> None:
    for number in range(105):
        changing.set_rate("stripe", f"{number + 1}/s")
    assert [each.after.shown for each in changing.history("stripe")] == [
        f"{number + 1}/s, burst 5" for number in range(5, 105)
    ]
    hour = 3_600_000  # what a frozen clock adds
    assert hour < store.pttl("ratelimit:v1:{stripe}::history") <= 365 * 86_400_000 + hour


def test_history_of_an_unknown_limit_is_an_error(changing: Limiter) -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'stripe'"):
        changing.history("strpe")
    assert changing.history("strpe", force=True) == []


@pytest.mark.parametrize("name", ["{a}.b", "a b", "ü", "x" * 200, "a:b\0c"])
def test_history_of_limits_with_odd_names(frozen: Limiter, name: str) -> None:
    frozen.set_rate(name, "5/s", force=True, by="a\nb", reason="\0")
    (change,) = frozen.history(name, force=True)
    assert (change.name, change.by, change.reason, change.after.shown) == (name, "a\nb", "\0", "5/s")


@pytest.mark.parametrize("wrong", [{"by": 5}, {"reason": b"x"}, {"by": "x" * 201}, {"reason": "x" * 201}])
def test_author_and_reason_must_be_texts(changing: Limiter, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="must be a text"):
        changing.pause("stripe", 5, **wrong)


def _change(url: str, start: Any, number: int) -> None:
    with Limiter.from_url(url, quotas=QUOTAS) as limiter:
        limiter.ping()
        start.wait(60)
        limiter.set_rate("stripe", f"{number + 1}/s", by=str(number))


@pytest.mark.slow
def test_changes_by_ten_processes_at_once_are_kept_in_order(
    server: EmbeddedServer, store: redis.Redis, limiter: Limiter
) -> None:
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(10)
    processes = [spawn.Process(target=_change, args=(server.url + PATIENT, start, number)) for number in range(10)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 10
    limiter.quotas["stripe"] = replace(QUOTAS["stripe"], name="stripe")
    found = limiter.history("stripe")
    assert sorted(int(each.by) for each in found) == list(range(10))
    assert [each.at for each in found] == sorted(each.at for each in found)
    for one, next_one in itertools.pairwise(found):
        assert next_one.before == one.after, "each has seen the one before it"
    assert limiter.config("stripe").in_force == found[-1].after.limit
