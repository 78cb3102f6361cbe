"""acquire_up_to and charge: examples, and traces against the model."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.servers import Cluster
from celery_ratelimit import Concurrency, ConfigurationError, Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT
from tests.examples import examples

from .mixed_world import VERBS, Act, MixedWorld, Play, acts
from .model import Answer, Model

BUCKET = Limit("10/s", burst=10, name="api")
WINDOW = Limit("10/s", algorithm="fixed_window", name="api")
PLACES = Concurrency(10, name="places")


# -- acquire_up_to -----------------------------------------------------------------------------------------------------


def test_acquire_up_to_permits_are_settled_and_released(frozen: Limiter) -> None:
    assert frozen.settle(frozen.acquire_up_to(WINDOW, 7), 2)
    assert frozen.available(WINDOW) == 8
    decision = frozen.acquire_up_to(PLACES, 25)
    assert (decision.permits, frozen.available(PLACES)) == (10, 0)
    assert frozen.renew(decision)
    assert frozen.release(decision)
    assert frozen.available(PLACES) == 10
    assert frozen.acquire(PLACES, cost=8).allowed
    assert frozen.acquire_up_to(PLACES, 5).permits == 2


def test_acquire_up_to_takes_what_the_tightest_limit_has(frozen: Limiter) -> None:
    tight = Limit("3/h", burst=3, name="tight", cost=2)
    decision = frozen.acquire_up_to([BUCKET, PLACES, tight], 8)
    assert decision.permits == 3
    assert [each.remaining for each in decision.states] == [7, 7, 0]
    refused = frozen.acquire_up_to([BUCKET, PLACES, tight], 8)
    assert (refused.permits, refused.limited_by) == (0, "tight")
    assert frozen.available([BUCKET, PLACES]) == 7, "nothing is taken of any"
    assert frozen.acquire(BUCKET).permits == 0, "no other call says so"


def test_acquire_up_to_leaves_the_reserve(server: EmbeddedServer, store: redis.Redis) -> None:
    with redis.Redis.from_url(server.url) as client:
        limiter = Limiter(client, lowest_first=True, counts=False)
        limit = Limit("1/h", burst=10, name="api", priority_reserve={0: 0.5})
        assert limiter.acquire_up_to(limit, 10, priority=9).permits == 5
        assert limiter.acquire_up_to(limit, 10, priority=0).permits == 5


def test_acquire_up_to_follows_stored_limits(frozen: Limiter) -> None:
    frozen.set_rate(BUCKET, Limit("1/h", burst=2))
    decision = frozen.acquire_up_to(BUCKET, 10)
    assert (decision.permits, decision.capacity) == (2, 2)
    frozen.pause(BUCKET, 5)
    assert frozen.acquire_up_to(BUCKET, 10).permits == 0


@pytest.mark.parametrize("permits", [0, -1, 1.5, True, "3", 10**9])
def test_bad_numbers_of_permits_raise(frozen: Limiter, permits: object) -> None:
    for method in (frozen.acquire_up_to, frozen.charge):
        with pytest.raises(ConfigurationError, match="must be a whole number of permits, 1 to"):
            method(BUCKET, permits)  # type: ignore[arg-type]


def test_acquire_up_to_is_one_round_trip_and_counts_its_permits(server: EmbeddedServer, store: redis.Redis) -> None:
    limiter = Limiter.from_url(server.url + PATIENT)
    limit = Limit("10/h", algorithm="sliding_log", name="api")
    limiter.acquire_up_to(limit, 1)
    before = store.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert limiter.acquire_up_to(limit, 100).permits == 9
    assert store.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 1
    limiter.close()
    assert Limiter.from_url(server.url + PATIENT).stats("api")["api"].permits == 10


def test_acquire_up_to_in_shadow_grants_all(frozen: Limiter) -> None:
    shadow = Limit("1/h", name="shadow", shadow=True)
    assert frozen.acquire_up_to(shadow, 7).permits == 7
    assert frozen.acquire_up_to([shadow, WINDOW], 70).permits == 10


def test_acquire_up_to_over_several_hash_slots_raises(cluster_store: Cluster) -> None:
    limiter = Limiter.from_url(cluster_store.url + PATIENT)
    one, two, three = (Limit("5/h", burst=5, name=name) for name in ("{a}.one", "{a}.two", "{b}.three"))
    assert limiter.acquire_up_to([one, two], 9).permits == 5
    with pytest.raises(ConfigurationError, match="several hash slots"):
        limiter.acquire_up_to([one, three], 9)
    limiter.charge([one, three], 2)
    assert (limiter.available(one), limiter.available(three)) == (0, 3)


# -- charge ------------------------------------------------------------------------------------------------------------


def test_charge_of_several_limits_and_keys(frozen: Limiter) -> None:
    by_key = Limit("10/s", burst=10, name="tenant", key="{tenant}")
    frozen.charge([BUCKET, by_key], 4, args={"tenant": "a"})
    assert [frozen.available(by_key, key=key) for key in "ab"] == [6, 10]
    assert frozen.available(BUCKET) == 6


def test_charge_of_a_concurrency_limit_raises(frozen: Limiter) -> None:
    with pytest.raises(ConfigurationError, match="limit 'places': permits of a Concurrency are held, not spent"):
        frozen.charge([BUCKET, PLACES], 4)
    assert frozen.available(BUCKET) == 10


@pytest.mark.parametrize(
    ("limit", "wait"),
    [
        (Limit("10/s", burst=10, name="api"), 1.6),
        (Limit("10/s", algorithm="leaky_bucket", name="api"), 2.5),
        (Limit("10/s", burst=10, name="api", refill="interval"), 2.0),
        (Limit("10/s", algorithm="fixed_window", name="api"), 2.0),
        (Limit("10/s", algorithm="sliding_log", name="api"), 1.0),
    ],
    ids=lambda value: getattr(value, "method", ""),
)
def test_charge_beyond_the_limit_is_paid_by_waiting(frozen: Limiter, limit: Limit, wait: float) -> None:
    frozen.charge(limit, 25)
    assert frozen.peek(limit).retry_after == pytest.approx(wait)


# -- Traces ------------------------------------------------------------------------------------------------------------


def up_to(model: Model, demands: Sequence[LimitRequest], most: int) -> tuple[int, Answer]:
    """The largest number that the model grants."""
    for permits in range(most, 0, -1):
        asked = [replace(demand, cost=permits) for demand in demands]
        if permits > 1 and any(permits > demand.limit.most for demand in demands):
            continue
        before = deepcopy(model.buckets)
        answer = model.acquire(asked)
        if answer.allowed or permits == 1:
            return permits if answer.allowed else 0, answer
        model.buckets = before
    raise AssertionError


def charge(model: Model, demands: Sequence[LimitRequest], permits: int) -> None:
    for demand in demands:
        (view,) = model._views([replace(demand, cost=1)], "")
        view.charge(permits)
        model._write(view)


def without_debt(trace: list[Act]) -> list[Act]:
    """Of a bucket that lends more than it holds ``acquire_up_to`` takes only what is there, and the model all."""

    def plain(demand: LimitRequest) -> LimitRequest:
        limit = replace(demand.limit, debt=0) if isinstance(demand.limit, Limit) and demand.limit.debt else demand.limit
        return replace(demand, limit=limit, cost=min(demand.cost, limit.most))

    return [replace(act, demands=tuple(map(plain, act.demands))) for act in trace]


@given(
    trace=acts(verbs=(*VERBS, *["up_to"] * 5, *["charge"] * 3)).map(without_debt),
    number=st.integers(1, 12),
)
@examples(200)
def test_acquire_up_to_and_charge_match_the_model(world: MixedWorld, trace: list[Act], number: int) -> None:
    play = Play(world)
    limiter = world.limiters[0]
    for step, act in enumerate(trace):
        if act.verb not in ("up_to", "charge"):
            lua, model = play.do(act)
            assert lua == model, f"step {step}: {act}"
            continue
        world.set(world.model.now + (play.wait if act.after is None else act.after))
        limits = [demand.limit for demand in act.demands]
        if act.verb == "up_to":
            decision = limiter.acquire_up_to(limits, number)
            permits, answer = up_to(world.model, act.demands, number)
            assert (decision.permits, Answer.of(decision)) == (permits, answer), f"step {step}: {act}"
            play.wait = answer.wait
        else:
            limiter.charge(limits, number)
            charge(world.model, act.demands, number)
            assert Answer.of(limiter.peek(limits, cost=1)) == world.model.peek(
                [replace(demand, cost=1) for demand in act.demands]
            ), f"step {step}: {act}"
