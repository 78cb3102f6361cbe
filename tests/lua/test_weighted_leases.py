"""A lease may hold several permits: all count, return together, and a request for many is not starved."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import Concurrency, ConfigurationError, ImpossibleRequest, Limit, Limiter
from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.script_calls import LeaseRequests, LeasesToRelease
from celery_ratelimit.testing import EmbeddedServer
from celery_ratelimit.worker.concurrency import release_and_acquire
from tests.conftest import START, Clock
from tests.examples import examples
from tests.parks import park_one

from .frozen import FROZEN_STORE, us

GPU = Concurrency(10, name="gpu", lease=60.0)
LEASES, SLOTS = "ratelimit:v1:{gpu}::leases", "ratelimit:v1:{gpu}::slots"
RATE = LimitRequest(Limit("1/m", name="rate"), "rate")


def places(cost: int, limit: Concurrency = GPU) -> LimitRequest:
    return LimitRequest(limit, "gpu", "", cost)


def ask(limiter: Limiter, id: str, cost: int, *others: LimitRequest, claim: float = 60.0) -> bool:
    return limiter._asker.ask([places(cost), *others], id=id, claim=claim).allowed


def release(limiter: Limiter, id: str, cost: int) -> bool:
    return limiter._asker.release([LeasesToRelease(id, [places(cost)], START)]) == 1


def hand_over(
    limiter: Limiter, *asking: str, cost: int, waiter: str = "", ended: tuple[tuple[str, int], ...] = ()
) -> list[bool]:
    requests = LeaseRequests(asking, 0, us(60.0), waiter, len(asking), False)
    released = [LeasesToRelease(id, [places(each)], START) for id, each in ended]
    return [each.allowed for each in release_and_acquire(limiter._asker, [places(cost)], requests, released)]


# -- How many are held -------------------------------------------------------------------------------------------------


def test_cost_above_the_limit_raises(frozen: Limiter) -> None:
    with pytest.raises(ImpossibleRequest, match="'gpu' can never grant 11"):
        frozen.acquire(GPU, cost=11)
    with pytest.raises(ConfigurationError, match="can never grant 3"):
        Concurrency(2, cost=3)
    with pytest.raises(ConfigurationError, match=r"cost=1.5 is not a whole number"):
        Concurrency(2, cost=1.5)  # type: ignore[arg-type]
    assert frozen.set_rate(GPU, Concurrency(5))
    with pytest.raises(ImpossibleRequest, match=r"'gpu' can never grant 6.*5 at most"):
        frozen.acquire(GPU, cost=6)
    assert frozen.acquire(GPU, cost=5).remaining == 0


def test_call_cost_applies_to_rates_or_else_to_concurrency(frozen: Limiter) -> None:
    tokens, several = Limit("1000/h", burst=1000, name="tokens"), Concurrency(10, name="gpu", cost=3)
    assert frozen.acquire([GPU, Concurrency(20, name="memory")], cost=4).states[0].remaining == 6
    assert [each.remaining for each in frozen.acquire([tokens, GPU], cost=900).states] == [100, 5]
    assert [each.remaining for each in frozen.acquire([tokens, several], cost=50).states] == [50, 2]
    assert frozen.available([tokens, several]) == 2


def test_costs_come_from_limits_and_arguments(frozen: Limiter) -> None:
    by_argument = Concurrency(10, name="gpu", cost="gpus", key="{host}")
    decision = frozen.acquire(by_argument, args={"gpus": 4, "host": "a"})
    assert (decision.remaining, decision.states[0].key) == (6, "a")

    @frozen.limited(Concurrency(10, name="gpu", cost=lambda gpus: gpus))
    def train(gpus: int) -> int:
        with frozen.permit(GPU, cost=2):
            return frozen.available(GPU)

    assert train(5) == 3, "while it runs"
    assert frozen.available(GPU) == 10


def test_stored_concurrency_applies_to_each_key(frozen: Limiter) -> None:
    by_key = Concurrency(10, name="gpu", key="{host}")
    assert frozen.set_rate("gpu", Concurrency(1), force=True)
    assert frozen.acquire(by_key, key="a").allowed
    assert not frozen.acquire(by_key, key="a").allowed
    frozen.pause("gpu", 5, force=True)
    assert not frozen.acquire(by_key, key="b").allowed


# -- A trace against a model -------------------------------------------------------------------------------------------


@dataclass
class Model:
    """Leases without a line: holder, number of permits and end."""

    limit: int
    lease: int
    held: dict[tuple[str, int], int] = field(default_factory=dict)

    def at(self, now: int) -> None:
        self.held = {holder: until for holder, until in self.held.items() if until > now}

    def free(self) -> int:
        return self.limit - sum(cost for _, cost in self.held)

    def acquire(self, id: str, cost: int, now: int) -> bool:
        if (id, cost) not in self.held and cost > self.free():
            return False
        self.held[id, cost] = now + self.lease
        return True

    def renew(self, id: str, cost: int, now: int) -> bool:
        if (id, cost) not in self.held:
            return False
        self.held[id, cost] = max(self.held[id, cost], now + self.lease)
        return True

    def release(self, id: str, cost: int) -> None:
        self.held.pop((id, cost), None)


ACTS = st.tuples(
    st.sampled_from(["acquire"] * 5 + ["renew", "release", "release"]),
    st.sampled_from([0, 1, 1000, 300_000, 999_999, 1_000_000, 1_000_001]),
    st.sampled_from("abcdefgh"),
    st.integers(1, 6),
)


@pytest.fixture(scope="module")
def alone(server: EmbeddedServer) -> Iterator[tuple[Limiter, redis.Redis]]:
    with redis.Redis.from_url(server.url, decode_responses=True) as store:
        yield Limiter(redis.Redis.from_url(server.url), replace_includes={"now": FROZEN_STORE}, counts=False), store


@given(limit=st.integers(1, 9), trace=st.lists(ACTS, max_size=40))
@examples(150)
def test_weighted_leases_match_the_model(
    alone: tuple[Limiter, redis.Redis], limit: int, trace: list[tuple[str, int, str, int]]
) -> None:
    limiter, store = alone
    store.flushall()
    model, now, asked = Model(limit, 1_000_000), START, Concurrency(limit, name="gpu", lease=1.0)
    for verb, after, id, cost in trace:
        now += after
        store.set("test:clock", now)
        model.at(now)
        request = places(min(cost, limit), asked)
        if verb == "acquire":
            decision = limiter._asker.ask([request], id=id)
            assert decision.allowed == model.acquire(id, request.cost, now)
            assert decision.remaining == model.free() >= 0
        elif verb == "renew":
            assert limiter._asker.renew([(request, id)]) == [model.renew(id, request.cost, now)]
        else:
            limiter._asker.release([LeasesToRelease(id, [request], now)])
            model.release(id, request.cost)
        assert limiter.available(asked) == model.free()


# -- Order -------------------------------------------------------------------------------------------------------------


def hold(frozen: Limiter, number: int) -> None:
    for index in range(number):
        assert ask(frozen, f"held {index}", 1)


def left(limiter: Limiter) -> int:
    """Permits that no lease holds; they may be set aside."""
    return limiter.peek(GPU, cost=1).remaining


def test_freed_permits_are_kept_for_the_first_waiter(frozen: Limiter, clock: Clock) -> None:
    hold(frozen, 5)
    assert not ask(frozen, "large", 8)
    clock.advance(0.01)
    assert not ask(frozen, "small", 1), "five are free, and it came later"
    for index in range(2):
        assert release(frozen, f"held {index}", 1)
        clock.advance(0.3)
        assert not ask(frozen, "small", 1)
        assert not ask(frozen, f"newcomer {index}", 1)
        assert not ask(frozen, "large", 8)
    assert release(frozen, "held 2", 1)
    assert not ask(frozen, "small", 1)
    assert ask(frozen, "large", 8)
    assert not ask(frozen, "small", 1), "all are held"
    assert release(frozen, "held 3", 1)
    assert ask(frozen, "small", 1)


def test_request_goes_if_there_are_enough_beside_the_kept_permits(frozen: Limiter) -> None:
    hold(frozen, 8)
    assert not ask(frozen, "large", 3)
    assert release(frozen, "held 0", 1)
    assert release(frozen, "held 1", 1)
    assert ask(frozen, "small", 1), "three are kept, one is left"
    assert not ask(frozen, "next", 1)
    assert ask(frozen, "large", 3)


def test_request_that_waited_before_the_large_one_goes_first(frozen: Limiter, clock: Clock) -> None:
    hold(frozen, 10)
    assert not ask(frozen, "small", 1)
    clock.advance(0.001)
    assert not ask(frozen, "large", 8)
    assert release(frozen, "held 0", 1)
    assert ask(frozen, "small", 1)


def test_first_of_several_large_requests_goes_first(frozen: Limiter, clock: Clock) -> None:
    hold(frozen, 5)
    for id, cost in (("one", 8), ("two", 6), ("three", 7)):
        assert not ask(frozen, id, cost)
        clock.advance(0.001)
    assert release(frozen, "held 0", 1)
    clock.advance(0.5)
    assert not ask(frozen, "two", 6), "six are free"
    assert release(frozen, "held 1", 1)
    assert release(frozen, "held 2", 1)
    assert not ask(frozen, "three", 7)
    assert ask(frozen, "one", 8)
    assert release(frozen, "one", 8)
    assert not ask(frozen, "three", 7)
    assert ask(frozen, "two", 6)


@pytest.mark.parametrize("how", ["gives up", "is late", "asks without a slot"])
def test_permits_are_not_kept_for_absent_requests(frozen: Limiter, clock: Clock, how: str) -> None:
    hold(frozen, 5)
    assert not ask(frozen, "large", 8, claim=0.0 if how == "asks without a slot" else 60.0)
    if how == "gives up":
        frozen._asker.forget([places(8)], id="large")
    if how == "is late":
        clock.advance(10)
    assert ask(frozen, "small", 1)
    assert not ask(frozen, "large", 8)


def long_held(frozen: Limiter, clock: Clock) -> None:
    """Ten minutes, as far as is known."""
    assert ask(frozen, "long", 10)
    for _ in range(20):
        clock.advance(30)
        assert frozen._asker.renew([(places(10), "long")]) == [True]
    assert frozen._asker.release([LeasesToRelease("long", [places(10)], START)])


def test_dead_request_loses_kept_permits_in_seconds(frozen: Limiter, clock: Clock) -> None:
    long_held(frozen, clock)
    hold(frozen, 5)
    clock.advance(1)
    for _ in range(3):
        decision = frozen._asker.ask([places(8)], id="large", claim=3600.0)
        assert not decision.allowed
        clock.advance(0.5)
    assert decision.retry_after <= 1.0, "the first goes on asking"
    assert not ask(frozen, "small", 1)
    clock.advance(4)
    assert ask(frozen, "small", 1), "it has not asked for some seconds"


@pytest.mark.parametrize(
    ("after", "kept"), [(-2_000_001, False), (-2_000_000, True), (2_000_000, True), (2_000_001, False)]
)
def test_permits_are_kept_within_two_seconds_of_the_slot(
    frozen: Limiter, clock: Clock, store: redis.Redis, after: int, kept: bool
) -> None:
    long_held(frozen, clock)
    hold(frozen, 5)
    assert not ask(frozen, "large", 8, claim=3600.0)
    slot = int(store.zscore(SLOTS, "large"))
    assert slot > clock.us + us(10)
    clock.set(slot - us(5))
    assert all(frozen._asker.renew([(places(1), f"held {index}") for index in range(5)]))
    assert not ask(frozen, "next", 8, claim=3600.0), "in some minutes"
    clock.set(slot + after)
    assert ask(frozen, "small", 1) is not kept


def test_first_polling_request_goes_first_with_long_leases(frozen: Limiter, clock: Clock) -> None:
    long_held(frozen, clock)
    hold(frozen, 5)
    for _ in range(2):
        for id, cost in (("one", 8), ("two", 7)):
            assert not ask(frozen, id, cost, claim=3600.0)
            clock.advance(0.4)
    for index in range(2):
        assert release(frozen, f"held {index}", 1)
        assert not ask(frozen, "two", 7, claim=3600.0)
        assert not ask(frozen, f"small {index}", 1, claim=3600.0)
    assert release(frozen, "held 2", 1)
    assert not ask(frozen, "two", 7, claim=3600.0)
    assert ask(frozen, "one", 8, claim=3600.0)


def test_request_waiting_for_another_limit_keeps_no_permits_idle(frozen: Limiter, clock: Clock) -> None:
    assert frozen._asker.ask([RATE]).allowed
    hold(frozen, 4)
    assert not ask(frozen, "large", 8, RATE), "in a minute"
    clock.advance(0.01)
    assert ask(frozen, "small", 1)


def test_entries_of_dead_requests_are_removed(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
    hold(frozen, 5)
    for index in range(20):
        assert not ask(frozen, f"dead {index}", 8)
        clock.advance(0.001)
    clock.advance(20)
    for index in range(6):
        assert ask(frozen, "large", 6) == (index > 0)
        clock.advance(0.2)
        release(frozen, f"held {index}", 1)
    assert not [each for each in store.zrange(LEASES, 0, -1) if each.startswith("\2")]


@pytest.mark.parametrize("seed", range(4))
def test_large_and_small_requests_are_served_in_bounded_time(frozen: Limiter, clock: Clock, seed: int) -> None:
    """Callers that always want to hold 1, 5, 8 or 10 of ten places, for 0.2 s each: none waits for long."""
    luck = random.Random(seed)
    wants = {f"{cost}.{index}": cost for cost in (1, 1, 1, 5, 8, 10) for index in range(2)}
    held: dict[str, int] = {}
    since: dict[str, int] = dict.fromkeys(wants, clock.us)
    number: dict[str, int] = dict.fromkeys(wants, 0)
    longest: dict[str, float] = {}
    for _ in range(400):
        clock.advance(0.02)
        for id in luck.sample(sorted(wants), len(wants)):
            run, cost = f"{id}#{number[id]}", wants[id]
            if id in held:
                if clock.us >= held[id]:
                    assert release(frozen, run, cost)
                    del held[id]
                    number[id] += 1
                    since[id] = clock.us
            elif ask(frozen, run, cost):
                assert sum(wants[each] for each in held) + cost <= 10
                held[id] = clock.us + 200_000
                longest[id] = max(longest.get(id, 0.0), (clock.us - since[id]) / 1e6)
    assert longest.keys() == wants.keys(), "each has had some"
    assert max(longest.values()) < 4.0, longest


# -- Leases that are handed over, and held -----------------------------------------------------------------------------


def test_permits_are_held_for_a_waiting_caller(frozen: Limiter, clock: Clock) -> None:
    assert ask(frozen, "a", 6)
    assert ask(frozen, "b", 4)
    assert hand_over(frozen, "large", cost=8, waiter="@") == [False]
    clock.advance(0.01)
    assert hand_over(frozen, "small", cost=1, ended=(("a", 6),)) == [False], "six are free, and are kept"
    assert left(frozen) == 6
    assert hand_over(frozen, "small", cost=1, ended=(("b", 4),)) == [True], "eight are held for the other one"
    assert left(frozen) == 1
    assert ask(frozen, "newcomer", 1), "and not kept once more"
    assert release(frozen, "newcomer", 1)
    assert hand_over(frozen, "large", cost=8, waiter="@") == [True]
    assert left(frozen) == 1
    assert hand_over(frozen, "next", "third", cost=8, ended=(("large", 8),)) == [True, False], "in one step"
    assert left(frozen) == 1


def test_permits_are_kept_or_held_but_never_both(frozen: Limiter, clock: Clock) -> None:
    assert ask(frozen, "a", 10)
    assert hand_over(frozen, "large", cost=7, waiter="@") == [False]
    assert hand_over(frozen, "small", cost=1, ended=(("a", 10),)) == [True], "seven are held for a second"
    clock.advance(0.999999)
    assert ask(frozen, "second", 1)
    assert left(frozen) == 1
    clock.advance(0.000001)
    assert left(frozen) == 8, "none is held any more"
    assert not ask(frozen, "third", 2), "seven are kept"
    assert ask(frozen, "fourth", 1)
    assert ask(frozen, "large", 7)


def test_held_permits_of_an_absent_caller_are_freed(frozen: Limiter, clock: Clock) -> None:
    assert ask(frozen, "a", 6)
    for _ in range(3):
        assert hand_over(frozen, "large", cost=8, waiter="@") == [False]
        assert hand_over(frozen, "small", cost=1, ended=(("a", 6),)) in ([True], [False])
        release(frozen, "small", 1)
        clock.advance(5)
        assert frozen.available(GPU) == 10
        assert ask(frozen, "a", 6)


def test_parked_weighted_tasks_leave_in_order(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    asked = places(4)
    holder = frozen._asker.ask([places(10)], id="holder")
    for number in range(5):
        park_one(parking, asked, f"t{number}@q", f'{{"id": "t{number}"}}')
        clock.advance(0.001)
    clock.advance(1)
    assert frozen.release(holder)
    (lot,) = parking.take_due([asked])
    assert [each.id for each in lot.leaving] == [f"t{number}@q" for number in range(len(lot.leaving))]
    assert lot.leaving
    granted = [ask(frozen, each.id, 4) for each in lot.leaving]
    assert granted == ([True, True] + [False] * 3)[: len(granted)]


@pytest.mark.parametrize("way", ["acquire", "hand_over"])
def test_random_costs_never_exceed_the_limit(frozen: Limiter, clock: Clock, way: str) -> None:
    luck = random.Random(7)
    held: dict[str, int] = {}
    how: dict[str, Callable[[str, int], bool]] = {
        "acquire": lambda id, cost: ask(frozen, id, cost, claim=luck.choice([0.0, 60.0])),
        "hand_over": lambda id, cost: hand_over(frozen, id, cost=cost, waiter=luck.choice(["", "@"]))[0],
    }
    for number in range(300):
        clock.advance(luck.choice([0.0, 0.001, 0.1, 1.2]))
        id = luck.choice("abcdefghij")
        if id in held and luck.random() < 0.5:
            assert release(frozen, id, held.pop(id))
            continue
        cost = held.get(id) or 1 + number % 10 if number % 3 else 1
        if id not in held and how[way](id, cost):
            held[id] = cost
        assert sum(held.values()) <= 10
        assert frozen._asker.renew([(places(each), holder) for holder, each in held.items()]) == [True] * len(held)
