"""A limit is switched into shadow and back into force while it is used."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import redis

from celery_ratelimit import Concurrency, ConfigurationError, Limit, Limiter
from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.limits.stored_settings import StoredShadow
from celery_ratelimit.store.keys import config_keys
from tests.conftest import START, Clock

from .backlog_steps import park, take_due
from .frozen import demand
from .test_shadow import LATE, LIMITS, Process, shadow_report

API = demand("10/s")


@pytest.mark.parametrize("name", LIMITS)
def test_uninformed_process_is_granted_and_learns_the_switch(frozen: Limiter, clock: Clock, name: str) -> None:
    limit = LIMITS[name]
    frozen.set_shadow("api", True, force=True)
    frozen._asker.shadows.learn({"api": None})  # as in another process
    for _ in range(50):
        decision = frozen.acquire(limit)
        assert (decision.allowed, decision.retry_after) == (True, 0.0)
        assert decision.states[0].version < 0
        frozen._asker.shadows.learn({"api": None})
    assert frozen.peek(limit).allowed
    assert not frozen.client.exists("ratelimit:v1:{api}::state")
    frozen._asker.shadows.note_decision(decision)
    assert frozen._asker.shadows.has("api", limit)


def test_limit_in_force_again_starts_full(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
    limit, process = LIMITS["token_bucket"], Process(frozen, clock)
    frozen.set_shadow("api", True, force=True)
    for _ in range(5000):
        process.came(limit)
    process.tell()
    clock.advance(LATE)
    assert shadow_report(frozen, limit).longest > 3
    frozen.set_shadow("api", False, force=True)
    assert not store.exists(*[f"ratelimit:v1:{{api}}::{kind}" for kind in ("arrivals", "queues", "ends")])
    assert frozen.acquire(limit).allowed
    assert frozen.acquire(limit).retry_after == pytest.approx(0.01)
    frozen.set_shadow("api", None, force=True)
    frozen.set_shadow("api", True, force=True)
    assert shadow_report(frozen, limit).requests == 0, "a trial begins with nothing"


def test_switch_shows_author_time_and_reason(frozen: Limiter, clock: Clock) -> None:
    assert frozen.set_shadow("api", True, by="ann@host", reason="a trial", force=True)
    assert not frozen.set_shadow("api", True, by="bob@host", force=True), "as it was"
    assert frozen.config(Limit("1/s", name="in code", shadow=True)).shadow
    config = frozen.config("api")
    assert config.shadow
    assert config.stored_shadow == StoredShadow(True, START / 1e6, "ann@host", "a trial")
    assert frozen.set_shadow("api", False)
    assert frozen.set_shadow("api", None)
    assert not frozen.set_shadow("api", None)
    found = [(each.verb, each.by, each.reason, each.before.shown, each.after.shown) for each in frozen.history("api")]
    assert found[0] == ("shadow", "ann@host", "a trial", "", "in shadow")
    assert [each[3:] for each in found[1:]] == [("in shadow", "in force"), ("in force", "")]


def test_rates_and_pauses_change_in_shadow(frozen: Limiter, clock: Clock) -> None:
    limit = API.limit
    frozen.set_rate("api", "1/h", for_=100, force=True)
    frozen.set_shadow("api", True)
    frozen.pause("api", 1000)
    for change in (
        lambda: frozen.set_rate("api", "2/h", version=7),
        lambda: frozen.expire_rate("api", 50),
        lambda: frozen.unset_rate("api"),
        lambda: frozen.resume("api"),
        lambda: frozen.pause("api", 5),
        lambda: clock.advance(10_000),
        lambda: frozen.set_rate("api", "3/h", version=8, key="k", force=True),
    ):
        change()
        frozen._asker.shadows.learn({"api": None})
        for _ in range(3):
            assert frozen._asker.ask([API]).allowed
        assert frozen._asker.ask([demand("10/s", key="k")]).allowed
        assert frozen.config("api").shadow
    assert frozen.config("api").version == 7
    frozen.set_rate("api", limit)
    frozen.set_shadow("api", False)
    assert [frozen._asker.ask([API]).allowed for _ in range(2)] == [True, False]


def test_simulation_includes_pauses_and_rates_of_keys(frozen: Limiter, clock: Clock) -> None:
    paused, process = LIMITS["burst"], Process(frozen, clock)
    frozen.pause("api", 60, force=True)
    process.came(paused)
    tenants = Limit("10/s", name="tenant", key="{t}")
    frozen.set_rate("tenant", Limit("1/h", algorithm="fixed_window"), key="slow", force=True)
    for key in ("slow", "usual") * 2:
        process.came(tenants, key=key)
    process.tell()
    clock.advance(LATE)
    assert shadow_report(frozen, paused).longest == pytest.approx(60)
    assert 1000 < shadow_report(frozen, tenants).longest <= 3600


def test_older_scripts_read_the_same_config(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
    """The numbers, and the note, by the pattern of before."""
    frozen.set_rate("api", "20/s", version=3, force=True)
    key = config_keys("ratelimit", "api", "")[0]
    before = store.get(key)
    frozen.set_shadow("api", True)
    during = store.get(key)
    assert [int(each) for each in during.split("\n")[0].split() if each.isdigit()][:-1] == [
        int(each) for each in before.split("\n")[0].split() if each.isdigit()
    ][:-1]
    assert during.split("\n")[1] == before.split("\n")[1]
    assert during.startswith("03 ")
    store.set(key, during[1:])  # an older version has changed something
    assert frozen.config("api").shadow
    assert store.ttl(key) == -1


def test_every_operation_follows_the_switch(frozen: Limiter, clock: Clock) -> None:
    """Random calls of two limits, with a third in shadow or without it: the same decisions."""
    real = [Limit("10/s", burst=3, name="a"), Limit("40/m", algorithm="sliding_log", name="b")]
    for stored_for in ("code", "store"):
        said: list[list[Any]] = []
        for third in (False, True):
            frozen.client.flushdb()
            clock.set(START)
            numbers, answers = random.Random(5), list[Any]()
            tried = Limit("1/h", name="tried", shadow=stored_for == "code")
            frozen._asker.shadows.learn({"tried": None})
            if stored_for == "store":
                frozen.set_shadow("tried", True, force=True)
            for number in range(300):
                if stored_for == "store":
                    frozen._asker.shadows.learn({"tried": None})
                clock.advance(round(numbers.expovariate(20), 6))
                asked = numbers.choice([real, real[:1], real[1:]])
                asked = [*asked, tried] if third else asked
                verb = numbers.choice(["acquire", "peek", "reserve", "ask"])
                if verb == "reserve":
                    decision = frozen.reserve(asked, id=str(number), horizon=numbers.choice([0, 3]))
                elif verb == "ask":
                    demands = frozen._asker.shadows.split(frozen._reader.demands(asked, None, None))[0]
                    decision = frozen._asker.ask(demands, id=str(number % 7), claim=numbers.choice([0, 30]))
                else:
                    decision = getattr(frozen, verb)(asked)
                states = [state[:5] for state in decision.states if state.name != "tried"]
                answers.append((verb, decision.allowed, decision.retry_after, decision.limited_by, states))
            said.append(answers)
        assert said[0] == said[1]


@pytest.mark.parametrize("by", ["an operator", "the code"])
def test_parked_tasks_leave_at_once_in_shadow(parking: Backlog, frozen: Limiter, clock: Clock, by: str) -> None:
    slow = demand("1/h")
    assert frozen._asker.ask([slow]).allowed
    park(parking, *[f"t{number}" for number in range(100)], asked=slow)
    assert take_due(parking, slow) == []
    if by == "an operator":
        frozen.set_shadow("api", True, force=True)
        frozen._asker.shadows.learn({"api": None})
        assert parking.due(["api"]) == [("api", "")]
    else:
        slow = replace(slow, limit=replace(slow.limit, shadow=True))
        assert parking.wake(slow, 0)[0]
    assert [each for _, each in take_due(parking, slow)] == [0] * 100


@pytest.mark.parametrize(
    ("limit", "on", "says"),
    [
        *(("api", wrong, r"on=.* must be True") for wrong in ("yes", 1, 0, "on")),
        (Concurrency(3, name="gpu"), True, "shadow is for rates"),
        ("unknown", True, "No limit is called"),
    ],
)
def test_impossible_switch_raises(frozen: Limiter, limit: Any, on: Any, says: str) -> None:
    frozen.set_rate("api", "5/s", force=True)
    with pytest.raises(ConfigurationError, match=says):
        frozen.set_shadow(limit, on)


def test_switch_alone_expires_at_its_end(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
    key = config_keys("ratelimit", "api", "")[0]
    frozen.set_shadow("api", True, force=True)
    frozen.pause("api", 5)
    assert store.ttl(key) == store.ttl("ratelimit:v1:{api}::shadow") == -1
    frozen.set_shadow("api", None)
    assert store.ttl(key) > 0
    assert not store.exists("ratelimit:v1:{api}::shadow")
