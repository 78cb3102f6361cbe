"""One convention for keys: a limit takes its own from a call's arguments, and ``key=`` is a bucket as it is shown."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import redis
import requests

from celery_ratelimit import AsyncLimiter, Concurrency, ConfigurationError, Limit, Limiter, Throttled
from celery_ratelimit.transports import AsyncLimitedTransport, LimitedAdapter, LimitedTransport
from tests.conftest import PATIENT
from tests.integration.limiter.either import EitherLimiter

QUOTAS: dict[str, Any] = {
    "stripe": Limit("2/h", burst=2, name="stripe"),
    "tenant": Limit("3/h", burst=3, name="tenant", key="tenant:{tenant_id}"),
    "tokens": Limit("1000/h", burst=1000, name="tokens", cost="tokens"),
    "called": Limit("3/h", burst=3, name="called", key=lambda tenant_id, tokens: f"by {tenant_id}"),
    "places": Concurrency(2, name="places", lease=60),
    "node": Limit("3/h", burst=3, name="node", per_worker=True),
}


def choosing(missing_key: str, name: str = "choosing") -> Limit:
    return Limit("3/h", burst=3, name=name, key="tenant:{tenant_id}", missing_key=missing_key)


def buckets(decision: Any) -> list[tuple[str, str]]:
    return [(state.name, state.key) for state in decision.states]


# -- key= --------------------------------------------------------------------------------------------------------------


def test_key_selects_buckets_of_keyed_limits_alone(either: EitherLimiter) -> None:
    decisions = [either.acquire(["tenant", "stripe"], key=f"tenant:{number}") for number in range(8)]
    assert sum(decision.allowed for decision in decisions) == 2, "all tenants share the quota's two permits"
    assert buckets(decisions[0]) == [("tenant", "tenant:0"), ("stripe", "")]
    either.reset("stripe")
    with either.block(["tenant", "stripe", "places"], key="tenant:7") as decision:
        assert buckets(decision) == [("tenant", "tenant:7"), ("stripe", ""), ("places", "")]


@pytest.mark.parametrize("limits", ["stripe", ["stripe", "places"], QUOTAS["stripe"], "node"])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("acquire", {}),
        ("peek", {}),
        ("permit", {}),
        ("reset", {}),
        ("available", {}),
        ("reserve", {"id": "one", "horizon": 1}),
        ("cancel", {"id": "one"}),
    ],
)
def test_key_without_a_keyed_limit_is_an_error(
    either: EitherLimiter, store: redis.Redis, limits: Any, method: str, options: dict[str, Any]
) -> None:
    with pytest.raises(
        ConfigurationError, match=r"is not kept by key, so there is no bucket '7' of it: leave key= out"
    ):
        getattr(either, method)(limits, key="7", **options)
    assert not store.keys("ratelimit:*")


@pytest.mark.parametrize(
    "method", ["set_rate", "try_set_rate", "pause", "resume", "expire_rate", "unset_rate", "config"]
)
def test_nothing_is_stored_for_a_key_of_a_limit_without_keys(
    either: EitherLimiter, store: redis.Redis, method: str
) -> None:
    more = {"set_rate": ["1/s"], "try_set_rate": ["1/s"], "pause": [5], "expire_rate": [5]}.get(method, [])
    with pytest.raises(ConfigurationError, match="'stripe' is not kept by key"):
        getattr(either, method)("stripe", *more, key="7")
    getattr(either, method)("node", *more, key="@another")  # one bucket of each machine is another's
    assert not store.keys("ratelimit:*{stripe}*")


# -- args= -------------------------------------------------------------------------------------------------------------


def test_each_limit_takes_its_key_and_cost_from_the_arguments(either: EitherLimiter) -> None:
    args = {"tenant_id": 7, "tokens": 500}
    names = ["tokens", "stripe", "tenant", "called", "places"]
    decision = either.acquire(names, args=args)
    assert decision.allowed
    assert buckets(decision) == list(zip(names, ["", "", "tenant:7", "by 7", ""], strict=True))
    assert [state.remaining for state in decision.states] == [500, 1, 2, 2, 1]


def test_arguments_of_a_call_and_of_a_function_name_the_same_bucket(either: EitherLimiter) -> None:
    @either.limited("tenant", max_wait=0)
    def charge(tenant_id: int) -> None: ...

    either.acquire("tenant", args={"tenant_id": 7})
    charge(7)
    assert either.peek("tenant", args={"tenant_id": "7"}).remaining == 1
    assert either.peek("tenant", key="tenant:7").remaining == 1


def test_every_method_reads_arguments(either: EitherLimiter) -> None:
    args = {"tenant_id": 7, "tokens": 400}
    with either.block(["tenant", "tokens"], args=args) as decision:
        assert buckets(decision) == [("tenant", "tenant:7"), ("tokens", "")]
    assert either.peek("tokens", args=args).remaining == 600
    assert either.available("tenant", args=args) == 2
    assert either.reserve("tokens", id="one", horizon=0, args=args).allowed
    assert either.peek("tokens", args=args).remaining == 200
    assert either.cancel("tokens", id="one", args=args)
    either.reset(["tenant", "tokens"], args=args)
    assert either.peek("tenant", args=args).remaining == 3
    assert either.peek("tokens", args=args).remaining == 1000


def test_given_key_and_cost_override_the_arguments(either: EitherLimiter) -> None:
    args = {"tenant_id": 7, "tokens": 400}
    decision = either.acquire(["tenant", "tokens"], args=args, key="tenant:8")
    assert buckets(decision)[0] == ("tenant", "tenant:8")
    assert either.acquire("tokens", args=args, cost=100).remaining == 500


@pytest.mark.parametrize(
    ("limits", "args", "why"),
    [
        ("tenant", {}, r"limit 'tenant': key='tenant:\{tenant_id\}' cannot be filled from the arguments \(none\)"),
        ("tenant", {"tenant": 7}, r"cannot be filled from the arguments tenant: KeyError\('tenant_id'\)"),
        ("tokens", {"tenant_id": 7}, "cost='tokens' is not among the arguments tenant_id"),
        ("tokens", {"tokens": float("nan")}, "limit 'tokens': cost=nan is not a whole number of permits"),
        ("tenant", 7, "args=7 must be a mapping"),
        ("tenant", {7: 7}, "must be a mapping of names"),
        ([], {}, "no limit was named"),
        (choosing("exempt"), None, "limit 'choosing' is kept by key: pass key="),
    ],
)
def test_insufficient_arguments_are_errors(either: EitherLimiter, limits: Any, args: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        either.acquire(limits, args=args)


# -- Functions and transports ------------------------------------------------------------------------------------------


def test_key_template_of_a_function_applies_to_keyed_limits_alone(either: EitherLimiter) -> None:
    charge = either.limited(["tenant", "stripe"], key_template="{user}", max_wait=0)(_charge)
    charge("ann")
    charge("bob")
    with pytest.raises(Throttled, match="'stripe'"):
        charge("eve")
    assert either.peek("tenant", key="ann").remaining == 2
    for limits in ("stripe", ["stripe", "places"]):
        with pytest.raises(ConfigurationError, match="is not kept by key"):
            either.limited(limits, key_template="{user}")(_charge)


def _charge(user: str) -> None: ...


ANSWERS = httpx.MockTransport(lambda _: httpx.Response(200, text="a"))
HOST = Limit("1/h", name="crawl")


@pytest.mark.parametrize(
    ("limit", "key", "expected"),
    [
        (Limit("1/h", name="crawl", key="{host}"), None, "one.example"),
        (Limit("1/h", name="crawl", key="{method} {host}{path}"), None, "GET one.example/a"),
        (Limit("1/h", name="crawl", key="{tenant}"), "{host}", "one.example"),
        (Limit("1/h", name="crawl", key="{tenant}"), lambda request: "me", "me"),
        (HOST, "{host}", "one.example"),  # as it was written before limits of transports had keys of their own
        (HOST, lambda request: httpx.URL(str(request.url)).host, "one.example"),
    ],
)
def test_transport_fills_the_key_from_the_request(limiter: Limiter, limit: Limit, key: Any, expected: str) -> None:
    limited = LimitedTransport(limiter, limit, key_template=key, max_wait=0, transport=ANSWERS)
    with httpx.Client(transport=limited) as client:
        assert client.get("http://one.example/a?b=c").text == "a"
        with pytest.raises(Throttled) as caught:
            client.get("http://one.example/a")
    assert (caught.value.key, caught.value.max_wait) == (expected, 0)
    kept = Limit("1/h", name="crawl", key="{any}")
    assert limiter.peek(kept, key=expected).remaining == 0

    async def awaited(other: AsyncLimiter) -> None:
        transport = AsyncLimitedTransport(other, limit, key_template=key, max_wait=0, transport=ANSWERS)
        async with other, httpx.AsyncClient(transport=transport) as client:
            with pytest.raises(Throttled):
                await client.get("http://one.example/a")

    pool = limiter.client.connection_pool.connection_kwargs
    asyncio.run(awaited(AsyncLimiter.from_url(f"redis://{pool['host']}:{pool['port']}/0{PATIENT}")))
    with requests.Session() as session:
        session.mount("http://", LimitedAdapter(limiter, limit, key_template=key, max_wait=0))
        with pytest.raises(Throttled):
            session.get("http://one.example/a")


def test_given_key_of_a_function_or_transport_names_the_bucket(limiter: Limiter) -> None:
    """``key=`` is the bucket, as everywhere."""

    @limiter.limited(["tenant", "stripe"], key="tenant:7", max_wait=0)
    def charge(order: int) -> None: ...

    charge(1)
    assert limiter.peek("tenant", key="tenant:7").remaining == 2
    transport = LimitedTransport(limiter, ["tenant", "stripe"], key="tenant:7", max_wait=0, transport=ANSWERS)
    with httpx.Client(transport=transport) as client:
        client.get("http://one.example")
    assert limiter.peek("tenant", key="tenant:7").remaining == 1
    with requests.Session() as session:
        session.mount("http://", LimitedAdapter(limiter, "tenant", key="tenant:8{", max_wait=0))
        with pytest.raises(requests.ConnectionError):
            session.get("http://127.0.0.1:1/")
    assert limiter.peek("tenant", key="tenant:8{").remaining == 2


@pytest.mark.parametrize("key", ["{user}", "tenant:{tenant_id}", lambda user: user, 7])
def test_template_passed_as_key_is_an_error(limiter: Limiter, key: Any) -> None:
    says = "must be the bucket's key as it is shown, .* pass key_template="
    with pytest.raises(ConfigurationError, match=says):
        limiter.limited("tenant", key=key)(_charge)
    with pytest.raises(ConfigurationError, match=says):
        LimitedTransport(limiter, "tenant", key=key)
    with pytest.raises(ConfigurationError, match=r"key='a' and key_template=.*: pass one of the two"):
        limiter.limited("tenant", key="a", key_template="{user}")(_charge)
    with pytest.raises(ConfigurationError, match="'stripe' is not kept by key"):
        limiter.limited("stripe", key="a")(_charge)


def test_requests_without_a_key_share_a_bucket(limiter: Limiter) -> None:
    limit = Limit("1/h", name="crawl", key="{host}", missing_key="shared")
    of_header = {"key_template": lambda request: request.headers.get("x-tenant"), "max_wait": 0, "transport": ANSWERS}
    with httpx.Client(transport=LimitedTransport(limiter, limit, **of_header)) as client:
        client.get("http://one.example", headers={"x-tenant": "ann"})
        client.get("http://one.example")
        with pytest.raises(Throttled):
            client.get("http://two.example")
    assert limiter.peek(limit, key="ann").remaining == limiter.peek(limit, key="(missing)").remaining == 0


def test_key_template_of_a_transport_applies_to_keyed_limits_alone(limiter: Limiter) -> None:
    with pytest.raises(ConfigurationError, match="'stripe' is not kept by key"):
        LimitedTransport(limiter, "stripe", key_template="{host}")
    transport = LimitedTransport(limiter, ["stripe", "tenant"], key_template="{host}", max_wait=0, transport=ANSWERS)
    with httpx.Client(transport=transport) as client:
        for host in ("one", "two"):
            client.get(f"http://{host}.example")
        with pytest.raises(Throttled, match="'stripe'"):
            client.get("http://three.example")
    assert limiter.peek("tenant", key="two.example").remaining == 2


@pytest.mark.parametrize("make", [LimitedTransport, LimitedAdapter])
@pytest.mark.parametrize(
    ("limits", "options", "why"),
    [
        ("tenant", {}, "names the argument 'tenant_id', which the transport does not take"),
        ("tenant", {"key_template": "{hots}"}, r"names the argument 'hots', .* \(arguments: host, method, path\)"),
        ("tokens", {}, "takes its cost from a task's arguments"),
        ("strpe", {}, "no quota named 'strpe'"),
    ],
)
def test_transport_that_cannot_fill_its_key_is_an_error_at_once(
    limiter: Limiter, make: Any, limits: Any, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigurationError, match=why):
        make(limiter, limits, **options)


# -- Calls without a key -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [{}, {"tenant_id": None}])
def test_exempt_limit_ignores_calls_without_a_key(either: EitherLimiter, store: redis.Redis, args: Any) -> None:
    exempt = choosing("exempt")
    for _ in range(5):
        decision = either.acquire(exempt, args=args)
        assert (decision.allowed, decision.states, decision.retry_after) == (True, (), 0.0)
        assert not either.settle(decision, 1)
        assert not either.release(decision)
    assert either.peek(exempt, args=args).allowed
    assert either.available(exempt, args=args) > 10**9
    assert either.acquire_up_to(exempt, 7, args=args).permits == 7
    assert either.reserve(exempt, id="one", horizon=1, args=args).allowed
    assert not either.cancel(exempt, id="one", args=args)
    either.charge(exempt, 7, args=args)
    either.reset(exempt, args=args)
    with either.block(exempt, args=args) as decision:
        assert buckets(decision) == []
    assert not store.keys("ratelimit:*{choosing}*")
    assert buckets(either.acquire([exempt, "stripe"], args=args)) == [("stripe", "")]


def test_calls_without_a_key_share_a_bucket_of_a_shared_limit(either: EitherLimiter) -> None:
    shared = choosing("shared")
    granted = [either.acquire(shared, args=args) for args in ({}, {"tenant_id": None}, {}, {})]
    assert [each.allowed for each in granted] == [True] * 3 + [False]
    assert buckets(granted[0]) == [("choosing", "(missing)")]
    assert either.acquire(shared, args={"tenant_id": "ann"}).allowed
    assert either.peek(shared, key="(missing)").remaining == 0, "an operator names it as it is shown"
