"""Stored rates and pauses, through both limiters: in force at once, until their end."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis
import redis.asyncio

from celery_ratelimit import (
    AsyncLimiter,
    Concurrency,
    ConfigurationError,
    ImpossibleRequest,
    Limit,
    Limiter,
    RateLimitError,
)
from celery_ratelimit.limits.any_limit import AnyLimit
from celery_ratelimit.testing import EmbeddedServer
from tests.asking import driven
from tests.conftest import PATIENT, START, Clock

from .frozen import FROZEN_STORE, expiries

API = Limit("10/s", burst=4, debt=2, headroom=0.5)
TENANTS = Limit("10/s", burst=4, name="tenants", key="tenant:{tenant}")
PLACES = Concurrency(2, name="places", lease=60)
QUOTAS = {"api": API, "tenants": TENANTS, "places": PLACES, "other": Limit("10/s", burst=9)}
CONFIG = "ratelimit:v1:{api}::config"
CHANGES = "ratelimit:v1:{api}::changes"
HISTORY = "ratelimit:v1:{api}::history"
HOUR = 3600

#: Ten at most, of every algorithm; leaky bucket and warm-up have their own size.
EACH = {
    "token_bucket": Limit("10/s", burst=10),
    "leaky_bucket": Limit("10/s", algorithm="leaky_bucket", capacity=20),
    "fixed_window": Limit("10/s", algorithm="fixed_window"),
    "sliding_window": Limit("10/s", algorithm="sliding_window", sub_windows=5),
    "sliding_log": Limit("10/s", algorithm="sliding_log"),
    "stepped_bucket": Limit("10/s", burst=10, refill="interval"),
    "warm_up": Limit("10/s", burst=10, warmup=2.0),
}


class Same:
    """A limiter of either kind, called in one way."""

    def __init__(self, limiter: Limiter | AsyncLimiter, run: Callable[[Any], Any]) -> None:
        self.limiter, self._run = limiter, run

    def ask(self, demands: Any, **how: Any) -> Any:
        answer = driven(self.limiter, "ask", demands=demands, **how)
        return self._run(answer) if inspect.isawaitable(answer) else answer

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.limiter, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = method(*args, **kwargs)
            return self._run(answer) if inspect.isawaitable(answer) else answer

        return call


class FrozenTime:
    """A time source whose sleeps move the store's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def monotonic(self) -> float:
        return self._clock.us / 1e6

    def sleep(self, seconds: float) -> None:
        self._clock.advance(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self._clock.advance(seconds)


Make = Callable[..., Same]


@pytest.fixture(params=[Limiter, AsyncLimiter])
def make(request: pytest.FixtureRequest, server: EmbeddedServer, clock: Clock) -> Iterator[Make]:
    """Makes limiters of one kind on the frozen clock, each as another process would have it."""
    loop = asyncio.new_event_loop()
    clients: list[Any] = []

    def limiter(quotas: dict[str, AnyLimit] = QUOTAS, counts: bool = True) -> Same:
        of = redis if request.param is Limiter else redis.asyncio
        clients.append(of.Redis.from_url(server.url))
        made = request.param(clients[-1], quotas=quotas, replace_includes={"now": FROZEN_STORE}, counts=counts)
        made._asker.clock = FrozenTime(clock)
        return Same(made, loop.run_until_complete)

    yield limiter
    for client in clients:
        if request.param is Limiter:
            client.close()
        else:
            loop.run_until_complete(client.aclose())
    loop.close()


@pytest.fixture
def limiter(make: Make) -> Same:
    return make()


def granted(limiter: Same, limits: Any = "api", **options: Any) -> int:
    """How many calls are let in at this moment."""
    count = 0
    while limiter.acquire(limits, **options).allowed:
        count += 1
    return count


# -- Rates -------------------------------------------------------------------------------------------------------------


def test_stored_rate_applies_at_the_next_decision(make: Make, clock: Clock) -> None:
    asking, changing = make({"api": Limit("10/s")}), make({})
    assert granted(asking) == 1
    assert changing.set_rate("api", "1/s")
    assert asking.acquire("api").retry_after == 1.0, "the permit that is missing comes back at the new rate"
    clock.advance(1)
    assert asking.acquire("api").allowed
    assert changing.set_rate("api", "100/s")
    assert asking.acquire("api").retry_after == 0.01
    clock.advance(0.01)
    assert granted(asking) == 1
    assert granted(make({"api": Limit("10/s")})) == 0, "for a new limiter too"


def test_rate_text_keeps_the_options_of_the_code(limiter: Same) -> None:
    assert limiter.set_rate("api", "40/s")
    in_force = replace(API, rate="40/s", name="api")
    assert limiter.config("api").stored == limiter.config("api").in_force == in_force
    state = limiter.peek("api").states[0]
    assert (state.capacity, state.interval) == (4, 0.05), "burst and headroom"
    assert limiter.acquire("api", cost=6).allowed, "and debt"
    assert limiter.set_rate(TENANTS, "40/s")
    assert limiter.config(TENANTS).in_force == replace(TENANTS, rate="40/s")


def test_stored_concurrency_applies_to_held_leases(make: Make) -> None:
    one, other = make(), make()
    held = [one.acquire("places") for _ in range(2)]
    assert not one.acquire("places").allowed
    assert other.set_rate("places", Concurrency(3))
    assert (granted(one, "places"), one.peek("places").capacity) == (1, 3)
    assert other.set_rate("places", Concurrency(1))
    assert one.release(held[0])
    assert not one.acquire("places").allowed, "two are held, and one may be"
    assert other.unset_rate("places")
    assert not one.acquire("places").allowed
    assert one.release(held[1])
    assert granted(one, "places") == 1


def test_stored_rate_and_pause_keep_held_leases_and_the_codes_lease_time(limiter: Same, clock: Clock) -> None:
    """Holders renew every third of the code's ``lease``: a shorter one would run out under them."""
    limiter.set_rate("places", Concurrency(1, lease=1.0))
    assert limiter.config("places").in_force == replace(PLACES, limit=1)
    held = limiter.acquire("places")
    clock.advance(59)
    assert not limiter.acquire("places").allowed
    assert limiter.renew(held)
    limiter.unset_rate("places")
    limiter.pause("places", 3)
    assert limiter.acquire("places").retry_after == 3.0
    assert limiter.renew(held), "a held lease stays"
    assert limiter.release(held)
    clock.advance(3)
    assert granted(limiter, "places") == 2


@pytest.mark.parametrize("stored", [Limit("1/d", name="places"), Limit("1/d", name="places", algorithm="sliding_log")])
def test_stored_rate_for_a_concurrency_limit_is_ignored(make: Make, stored: Limit) -> None:
    assert make({}).set_rate("places", stored, force=True)
    assert granted(make(), "places") == 2
    assert make({}).set_rate("api", Concurrency(1), force=True)
    assert granted(make()) == 4


def test_try_set_rate_stores_only_the_first(limiter: Same, clock: Clock) -> None:
    assert limiter.try_set_rate("api", "20/s", for_=5)
    assert not limiter.try_set_rate("api", "30/s")
    assert limiter.config("api").in_force.rate == "20/s"
    clock.advance(5)
    assert limiter.try_set_rate("api", "30/s")
    limiter.unset_rate("api")
    limiter.pause("api", 1)
    assert limiter.try_set_rate("api", "40/s"), "a pause is no rate"
    assert limiter.config("api").paused == 1.0


# -- Versions ----------------------------------------------------------------------------------------------------------


def test_older_version_never_replaces_a_newer_one(limiter: Same, store: redis.Redis) -> None:
    rates = []
    for version, rate in [(3, "3/s"), (2, "2/s"), (3, "33/s"), (4, "4/s"), (1, "1/s")]:
        rates.append((limiter.set_rate("api", rate, version=version), limiter.config("api").in_force.rate))
    assert rates == [(True, "3/s"), (False, "3/s"), (False, "3/s"), (True, "4/s"), (False, "4/s")]
    assert limiter.config("api").version == limiter.peek("api").states[0].version == 4
    before = store.mget(CONFIG, CHANGES)
    assert not limiter.set_rate("api", "6/s", version=1)
    assert not limiter.try_set_rate("api", "6/s")
    assert not limiter.expire_rate("other", 5)
    assert not limiter.unset_rate("other")
    assert store.mget(CONFIG, CHANGES) == before, "what is refused writes nothing"
    assert store.llen(HISTORY) == 2


@pytest.mark.parametrize("ends", ["unset", "expire", "for_", "by hand"])
def test_version_outlives_its_rate(limiter: Same, store: redis.Redis, clock: Clock, ends: str) -> None:
    assert limiter.set_rate("api", "3/s", version=3, for_=10 if ends == "for_" else None)
    if ends == "unset":
        assert limiter.unset_rate("api")
    elif ends == "expire":
        assert limiter.expire_rate("api", 10)
    elif ends == "by hand":
        assert limiter.set_rate("api", "5/s")
        assert limiter.peek("api").states[0].version == 3
    clock.advance(86_400 * 365)
    assert limiter.config("api").version == 3
    before = limiter.config("api").in_force
    assert not limiter.set_rate("api", "30/s", version=3)
    assert not limiter.set_rate("api", "30/s", version=2)
    assert limiter.config("api").in_force == before
    assert limiter.set_rate("api", "30/s", version=4)
    assert store.pttl(CONFIG) == -1


# -- Ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, 1], ids=["", "version"])
@pytest.mark.parametrize("how", ["for_", "expire", "shorter", "longer"])
def test_rate_ends_at_its_microsecond(limiter: Same, clock: Clock, how: str, version: int | None) -> None:
    """With a version what is stored outlives its end."""
    for name in ("api", "other"):
        lasts = {"for_": 10, "shorter": 100, "longer": 1}.get(how)
        assert limiter.set_rate(name, "1/s", for_=lasts, version=version)
        assert how == "for_" or limiter.expire_rate(name, 10)
    assert limiter.config("api").until == START / 1e6 + 10
    clock.advance(9.999999)
    assert limiter.config("api").in_force.rate == "1/s"
    assert [limiter.acquire(name).states[0].interval for name in ("api", "other")] == [2.0, 1.0]
    clock.advance(0.000001)
    config = limiter.config("api")
    assert (config.in_force, config.stored, config.since, config.until, config.by) == (API, None, 0.0, None, "")
    assert [limiter.acquire(name).states[0].interval for name in ("api", "other")] == [0.2, 0.1]
    assert not limiter.expire_rate("api", 5)
    assert not limiter.unset_rate("api")


# -- What is in force --------------------------------------------------------------------------------------------------


def test_config_shows_code_and_stored_limit(limiter: Same, clock: Clock) -> None:
    config = limiter.config("api")
    assert (config.name, config.key, config.code, config.stored, config.in_force) == ("api", "", API, None, API)
    assert (config.since, config.until, config.by, config.version, config.paused) == (0.0, None, "", 0, 0.0)
    clock.advance(5)
    stored = Limit("30/s", algorithm="sliding_window", sub_windows=3, name="api")
    limiter.set_rate("api", stored, version=7, for_=60, by="Zoë\nand\t{friends}")
    clock.advance(1)
    limiter.pause("api", 4)
    clock.advance(1)
    config = limiter.config("api")
    assert (config.code, config.stored, config.in_force) == (API, stored, stored)
    at = START / 1e6 + 5
    assert (config.since, config.until, config.by) == (at, at + 60, "Zoë\nand\t{friends}")
    assert (config.version, config.paused) == (7, 3.0)
    limiter.set_rate("api", "1/s")
    assert "@" in limiter.config("api").by
    assert limiter.config("unheard of", force=True).in_force is None
    assert limiter.set_rate("unheard of", "40/s", force=True)
    assert limiter.config("unheard of").in_force == Limit("40/s", name="unheard of"), "a plain rate"


COST = Limit("10/s", burst=10, name="api", cost=3, priority_reserve={0: 0.3})


@pytest.mark.parametrize("cost", [3, "tokens"])
def test_limit_in_force_has_the_cost_and_reserve_of_the_code(make: Make, cost: Any) -> None:
    code = replace(COST, cost=cost)
    limiter = make(quotas={"api": code})
    limiter.set_rate("api", "5/s")
    assert limiter.config("api").in_force == replace(code, rate="5/s")
    limiter.set_rate("api", Limit("5/s", algorithm="sliding_log"))
    in_force = limiter.config("api").in_force
    assert (in_force.algorithm, in_force.cost, in_force.priority_reserve) == ("sliding_log", cost, None)
    limiter.set_rate("api", Limit("5/s", burst=2))  # below what a call costs: it says so, and is in force
    in_force = limiter.config("api").in_force
    assert (in_force.burst, in_force.cost, in_force.priority_reserve) == (2, cost, code.priority_reserve)


def test_rate_of_a_key_goes_before_the_rate_of_all(limiter: Same, clock: Clock) -> None:
    assert limiter.set_rate("tenants", Limit("1/s", burst=2), by="all", version=3)
    assert limiter.set_rate("tenants", Limit("1/s", algorithm="sliding_log"), key="a", by="one", version=1)
    assert not limiter.set_rate("tenants", "1/s", key="a", version=1)
    assert [limiter.config("tenants", key=key).version for key in "ab"] == [1, 3]
    assert [limiter.peek("tenants", key=key).states[0].version for key in "ab"] == [1, 3]
    assert [limiter.peek("tenants", key=key).capacity for key in "ab"] == [1, 2]
    assert [granted(limiter, "tenants", key=key) for key in "ab"] == [1, 2]
    assert [limiter.config("tenants", key=key).by for key in "ab"] == ["one", "all"]
    own, stored = limiter.config("tenants", key="a"), Limit("1/s", algorithm="sliding_log", name="tenants")
    assert (own.key, own.code, own.in_force) == ("a", TENANTS, replace(stored, key=TENANTS.key))
    assert limiter.config("tenants").by == "all"
    assert limiter.unset_rate("tenants", key="a")
    assert [limiter.config("tenants", key=key).by for key in "ab"] == ["all", "all"]
    assert limiter.unset_rate("tenants")
    assert limiter.config("tenants", key="a").in_force == TENANTS


def test_decision_shows_the_limits_in_force(limiter: Same) -> None:
    def shown(ask: Callable[..., Any]) -> list[tuple[int, float, int]]:
        return [(state.capacity, state.interval, state.version) for state in ask(["api", "other", "places"]).states]

    assert shown(limiter.peek) == [(4, 0.2, 0), (9, 0.1, 0), (2, 0.0, 0)]
    limiter.set_rate("other", Limit("4/s", burst=7), version=5)
    limiter.set_rate("places", Concurrency(8), version=6)
    assert shown(limiter.peek) == shown(limiter.acquire) == [(4, 0.2, 0), (7, 0.25, 5), (8, 0.0, 6)]
    limiter.set_rate("other", Limit("4/s", algorithm="fixed_window"))
    assert limiter.peek(["other"]).states[0][2::3] == (4, 0.0), "a window's permits do not come back one by one"


def test_available_is_that_of_the_tightest_limit(limiter: Same, clock: Clock) -> None:
    assert limiter.available("api") == 4
    assert limiter.available(["api", "places"]) == 2
    limiter.set_rate("api", Limit("10/s", algorithm="fixed_window"))
    assert limiter.available("api") == 10
    limiter.acquire("api", cost=3)
    assert limiter.available("api") == limiter.available("api") == 7
    limiter.set_rate("tenants", Limit("10/s", burst=6), key="a")
    assert [limiter.available("tenants", key=key) for key in "ab"] == [6, 4]


# -- Pauses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", EACH)
@pytest.mark.parametrize("where", ["code", "store"])
def test_paused_limit_refuses_until_the_end(make: Make, clock: Clock, method: str, where: str) -> None:
    limiter = make({"api": EACH[method] if where == "code" else API})
    if where == "store":
        assert limiter.set_rate("api", EACH[method])
        assert limiter.config("api").in_force == replace(EACH[method], name="api")
        state = limiter.peek("api").states[0]
        assert (state.capacity, state.remaining) == (EACH[method].size, EACH[method].size)
    assert limiter.acquire("api").allowed
    clock.advance(5)
    assert limiter.pause("api", 3) == 3.0
    for _ in range(2):
        for refused in (limiter.acquire("api"), limiter.peek("api")):
            assert (refused.allowed, refused.retry_after, refused.limited_by) == (False, 3.0, "api")
            assert not refused.queue_full
    clock.advance(2.999999)
    assert limiter.acquire("api").retry_after == 0.000001
    clock.advance(0.000001)
    assert limiter.acquire("api").allowed
    assert limiter.config("api").paused == 0.0


def test_shorter_pause_never_shortens_a_pause(limiter: Same, clock: Clock) -> None:
    assert limiter.pause("api", 10) == 10.0
    clock.advance(4)
    assert limiter.pause("api", 1) == 6.0
    assert limiter.acquire("api").retry_after == 6.0
    assert limiter.pause("api", 8) == 8.0
    assert limiter.acquire("api").retry_after == 8.0
    assert limiter.resume("api")
    assert not limiter.resume("api")
    assert limiter.acquire("api").allowed
    assert limiter.pause("api", 1) == 1.0, "what was ended is forgotten"


def test_each_key_is_paused_separately(limiter: Same, clock: Clock) -> None:
    assert limiter.pause("tenants", 10, key="a") == 10.0
    assert [limiter.acquire("tenants", key=key).retry_after for key in "ab"] == [10.0, 0.0]
    assert limiter.pause("tenants", 5) == 5.0
    assert [limiter.acquire("tenants", key=key).retry_after for key in "ab"] == [10.0, 5.0]
    assert [limiter.config("tenants", key=key).paused for key in ("a", "b", None)] == [10.0, 5.0, 5.0]
    assert limiter.resume("tenants", key="a")
    assert [limiter.acquire("tenants", key=key).retry_after for key in "ab"] == [5.0, 5.0], "all are paused still"
    assert limiter.resume("tenants")
    assert all(limiter.acquire("tenants", key=key).allowed for key in "ab")
    limiter.pause("tenants", 20)
    limiter.pause("tenants", 3, key="a")
    assert [limiter.acquire("tenants", key=key).retry_after for key in "ab"] == [20.0, 20.0], "whichever is longer"


def test_pause_and_rate_are_independent(limiter: Same, clock: Clock) -> None:
    limiter.set_rate("api", "30/s", version=2, by="ann")
    limiter.pause("api", 10)
    config = limiter.config("api")
    assert (config.in_force.rate, config.version, config.by, config.paused) == ("30/s", 2, "ann", 10.0)
    limiter.set_rate("api", "40/s")
    assert limiter.acquire("api").retry_after == 10.0
    limiter.unset_rate("api")
    assert limiter.acquire("api").retry_after == 10.0
    limiter.set_rate("api", "50/s", for_=5)
    limiter.set_rate("api", "60/s")
    clock.advance(10)
    assert limiter.acquire("api").allowed
    assert limiter.config("api").in_force.rate == "60/s", "and without the end of the rate before it"


def test_waiting_call_sleeps_through_a_pause(limiter: Same, clock: Clock) -> None:
    limiter.pause("api", 20)
    refused = limiter.acquire("api", max_wait=19)
    assert (refused.allowed, refused.retry_after, clock.us) == (False, 20.0, START)
    assert limiter.acquire("api", max_wait=21).allowed
    assert clock.us == START + 20_000_000


# -- Mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        (Limit("10/s", burst=2), 2),
        (Limit("10/s", burst=1, debt=1), 2),
        (Limit("2/s", algorithm="fixed_window"), 2),
        (Limit("2/s", algorithm="sliding_log"), 2),
        (Limit("2/s", algorithm="sliding_window"), 2),
        (Limit("10/s", algorithm="leaky_bucket"), 1),
        (Limit("10/s", burst=2, refill="interval"), 2),
        (Limit("10/s", burst=2, warmup=1.0), 2),
    ],
    ids=lambda each: each.method if isinstance(each, Limit) else "",
)
def test_cost_above_the_stored_size_raises(limiter: Same, limit: Limit, most: int) -> None:
    limiter.set_rate("api", limit)
    for ask in (
        limiter.acquire,
        limiter.peek,
        lambda *limits, **cost: limiter.acquire(*limits, **cost, max_wait=100),
        lambda *limits, **cost: limiter.reserve(*limits, **cost, id="r", horizon=1e6),
    ):
        with pytest.raises(ImpossibleRequest, match=f"'api' can never grant 3 permits at once: it holds {most}") as it:
            ask(["other", "api"], cost=3)
        assert (it.value.limit, it.value.cost, it.value.capacity) == ("api", 3, most)
    assert limiter.available("other") == 9, "nothing was taken"
    assert limiter.acquire("api", cost=most).allowed
    limiter.unset_rate("api")
    limiter.reset("api")
    assert limiter.acquire("api", cost=3).allowed


@pytest.mark.parametrize(
    ("said", "call"),
    [
        ("cannot read the rate '5 per fortnight'", lambda it: it.set_rate("api", "5 per fortnight")),
        ("cannot read the rate ''", lambda it: it.try_set_rate("api", "")),
        ("limit 'api': 5 is neither a rate, such as '100/s', nor a Limit", lambda it: it.set_rate("api", 5)),
        ("limit 'api': None is neither a rate", lambda it: it.try_set_rate("api", None)),
        ("'places' is places: 2 at once in the code: a stored", lambda it: it.set_rate("places", "5/s")),
        ("'places' is places: 2 at once in the code: a stored", lambda it: it.try_set_rate(PLACES, Limit("5/s"))),
        ("'api' is api: 10/s, burst 4 in the code: a stored", lambda it: it.set_rate("api", Concurrency(5))),
        *(
            (
                f"limit 'api': version={bad!r} must be a whole number",
                lambda it, bad=bad: it.set_rate("api", "5/s", version=bad),
            )
            for bad in (0, -1, True, False, 1.5, "2", 2**53)
        ),
        *(
            (f"{what}={bad!r} must be a number of seconds above 0", lambda it, bad=bad, call=call: call(it, bad))
            for bad in (0, -1, 0.0, True, "5", None, float("nan"))
            for what, call in (
                ("for_", lambda it, bad: it.set_rate("api", "5/s", for_=bad)),
                ("seconds", lambda it, bad: it.expire_rate("api", bad)),
                ("seconds", lambda it, bad: it.pause("api", bad)),
            )
            if what != "for_" or bad is not None
        ),
        *(
            (r"Limit\('1/s'\) has no name, so nothing can be stored for it", call)
            for call in (
                lambda it: it.set_rate(Limit("1/s"), "5/s"),
                lambda it: it.try_set_rate(Limit("1/s"), "5/s"),
                lambda it: it.expire_rate(Limit("1/s"), 5),
                lambda it: it.unset_rate(Limit("1/s")),
                lambda it: it.config(Limit("1/s")),
                lambda it: it.pause(Limit("1/s"), 5),
                lambda it: it.resume(Limit("1/s")),
            )
        ),
    ],
)
def test_mistakes_raise_and_change_nothing(
    limiter: Same, store: redis.Redis, said: str, call: Callable[[Same], Any]
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        call(limiter)
    assert not list(store.scan_iter("ratelimit:*"))


# -- In the store ------------------------------------------------------------------------------------------------------


def test_workers_are_told_of_ends_to_come_and_not_of_past_ones(limiter: Same, store: redis.Redis, clock: Clock) -> None:
    start = clock.us

    def told() -> list[float]:
        """When the limit has changed last, and when the rates of its keys end, in seconds."""
        return [(int(at) - start) / 1e6 for at in str(store.get("ratelimit:v1:{tenants}::changes")).split()]

    for key, lasts in ("a", 10), ("b", 30):
        limiter.set_rate("tenants", "5/s", key=key, for_=lasts)
    assert told() == [0, 10, 30]
    clock.advance(20)
    limiter.set_rate("tenants", "6/s", key="c", for_=5)
    assert told() == [20, 30, 25]


def test_operator_settings_stay_and_everything_else_expires(limiter: Same, store: redis.Redis, clock: Clock) -> None:
    def ttl(key: str) -> float | None:
        """Seconds; None: it stays. Every key that has none by the frozen clock has none by the server's either."""
        expires = expiries(store).get(key)
        assert (expires is None) == (store.pttl(key) == -1)
        return None if expires is None else (expires - clock.us) / 1e6

    limiter.set_rate("api", "5/s")
    assert (ttl(CONFIG), ttl(CHANGES)) == (None, HOUR)
    limiter.expire_rate("api", 10_000)
    assert (ttl(CONFIG), ttl(CHANGES)) == (10_000 + HOUR, 10_000 + HOUR), "until waiting requests have come"
    limiter.pause("api", 20_000)
    assert ttl(CONFIG) == 20_000 + HOUR
    limiter.unset_rate("api")
    assert ttl(CONFIG) == 20_000 + HOUR
    limiter.resume("api")
    assert ttl(CONFIG) == HOUR
    limiter.pause("api", 7)
    assert ttl(CONFIG) == 7 + HOUR
    limiter.set_rate("api", "5/s", for_=3)
    assert ttl(CONFIG) == 7 + HOUR, "whichever ends last"
    limiter.set_rate("api", "5/s", version=1, for_=3)
    assert ttl(CONFIG) is None, "a version is never forgotten"
    limiter.set_rate("tenants", "5/s", key="a")
    limiter.resume("api")
    limiter.acquire(["api", "places"])
    limiter.acquire("tenants", key="a")
    limiter.reserve("other", id="r", horizon=1)
    eternal = {key for key in store.scan_iter("ratelimit:*") if store.pttl(key) == -1}
    assert eternal == {CONFIG, "ratelimit:v1:{tenants}:a:config"}
    limiter.set_rate("other", "5/s", for_=3)
    limiter.pause("other", 2)
    clock.advance(3 + HOUR)
    limiter.acquire("other")
    assert not store.exists("ratelimit:v1:{other}::config"), "what has ended is gone"


# -- Scripts -----------------------------------------------------------------------------------------------------------


def test_stored_algorithm_costs_no_extra_round_trip(make: Make, store: redis.Redis, clock: Clock) -> None:
    def scripts_run() -> list[int]:
        stats = store.info("commandstats")
        return [stats.get(f"cmdstat_{verb}", {}).get("calls", 0) for verb in ("evalsha", "eval")]

    asking = make(counts=False)
    make(counts=False).set_rate("api", Limit("100/s", algorithm="sliding_log"))
    store.script_flush()
    asking.acquire("api")
    store.config_resetstat()
    for cost in (1, 1, 2):
        asking.acquire("api", cost=cost)
    assert scripts_run() == [3, 0]
    make(counts=False).unset_rate("api")
    store.config_resetstat()
    for _ in range(3):
        make(counts=False).acquire("api")
    assert scripts_run() == [3, 0], "nor in another process, nor when the code's limit holds again"


@pytest.mark.parametrize(("stored", "code"), [(API, PLACES), (PLACES, API)])
def test_stored_limit_of_another_kind_than_the_code_is_shown_and_not_in_force(
    server: EmbeddedServer, store: redis.Redis, stored: AnyLimit, code: AnyLimit
) -> None:
    before, limiter = (
        Limiter.from_url(server.url + PATIENT, quotas={"a": replace(it, name="a")}) for it in (stored, code)
    )
    before.set_rate("a", replace(stored, name="a"))
    config = limiter.config("a")
    assert config.in_force == limiter.quotas["a"]
    assert str(config.stored) == str(before.quotas["a"])
    assert not config.shadow
    assert limiter.acquire("a").capacity == code.size
    limiter.unset_rate("a")
    assert limiter.config("a").stored is None


def test_algorithm_of_a_newer_version_raises(make: Make, store: redis.Redis, clock: Clock) -> None:
    limiter = make()
    limiter.set_rate("api", Limit("1/s", algorithm="sliding_log"), version=7)
    numbers, _, note = store.get(CONFIG).partition("\n")
    said = {**json.loads(note), "limit": {"rate": "1/s", "algorithm": "quantum_bucket", "spin": 3}}
    store.set(CONFIG, f"{numbers.replace('sliding_log', 'quantum_bucket')}\n{json.dumps(said)}")
    for ask in (limiter.acquire, limiter.peek, limiter.available):
        with pytest.raises(RateLimitError, match="algorithm 'quantum_bucket', which this version of celery_ratelimit"):
            ask("api")
        with pytest.raises(RateLimitError, match="quantum_bucket"):
            ask(["other", "api"])
    with pytest.raises(ConfigurationError, match=r"limit 'api' is stored as .*quantum_bucket.* cannot read"):
        limiter.config("api")
    assert not list(store.scan_iter("ratelimit:*:state")), "nothing was taken"
    assert limiter.acquire("other").allowed
    assert not limiter.set_rate("api", "5/s", version=7)
    assert limiter.set_rate("api", "5/s"), "a change by hand mends it"
    assert limiter.acquire("api").allowed
    assert limiter.config("api").version == 7
