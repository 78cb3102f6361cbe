"""HTTP transports report refusals and headers of a server to their limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
import redis
import requests

from celery_ratelimit import Concurrency, ConfigurationError, Limit, Limiter, StoreUnavailable, Throttled
from celery_ratelimit.limiter.response_methods import ReportMethods
from celery_ratelimit.transports import LimitedAdapter, LimitedTransport
from tests.integration.limiter.http_clients import BODY, Client, Upstream, client, running, upstream

__all__ = ["client", "running", "upstream"]

QUOTAS = {
    "api": Limit("100/h", burst=100, name="api"),
    "tokens": Limit("9000/h", burst=9000, name="tokens"),
    "tenant": Limit("100/h", burst=100, name="tenant", key="{path}"),
    "places": Concurrency(3, name="places"),
}


Get = Callable[..., None]


@pytest.fixture
def get(client: Client) -> Get:
    """One call; a call that would wait raises Throttled."""

    def call(url: str, limits: Any = "api", **options: Any) -> None:
        assert client.get(url, limits, max_wait=0, **options) == BODY, "as it came"

    return call


def test_refusal_pauses_the_limit_for_every_process(get: Get, limiter: Limiter, upstream: Upstream) -> None:
    upstream.says(429, Retry_After="300")
    get(upstream.url, on_429="pause")
    assert limiter.config("api").paused == pytest.approx(300, abs=60)
    assert limiter.history("api")[-1].reason == "upstream: status 429"
    with pytest.raises(Throttled, match="'api'"):
        get(upstream.url)
    assert len(upstream.calls) == 1


def test_without_the_options_nothing_is_reported(get: Get, limiter: Limiter, upstream: Upstream) -> None:
    upstream.says(429, Retry_After="300", X_RateLimit_Remaining="0")
    get(upstream.url)
    assert limiter.config("api").paused == 0
    assert limiter.available("api") == 99


def test_on_429_ignores_headers_of_other_responses(get: Get, limiter: Limiter, upstream: Upstream) -> None:
    upstream.says(200, X_RateLimit_Remaining="0", X_RateLimit_Reset="300")
    get(upstream.url, on_429="pause")
    assert limiter.available("api") == 99
    upstream.says(403, X_RateLimit_Remaining="0", X_RateLimit_Reset="300")
    get(upstream.url, on_429="pause")
    assert limiter.available("api") == 98, "a 403 that does not say when to come back is no refusal"


def test_headers_lower_the_remaining_permits(get: Get, limiter: Limiter, upstream: Upstream) -> None:
    upstream.says(200, RateLimit='"default";r=7;t=300')
    get(upstream.url, read_headers=True)
    assert limiter.available("api") == 7
    upstream.says(200, RateLimit='"default";r=0;t=300')
    get(upstream.url, read_headers=True)
    assert limiter.config("api").paused == pytest.approx(300, abs=60)


def test_headers_of_requests_and_tokens_go_to_separate_limits(get: Get, limiter: Limiter, upstream: Upstream) -> None:
    upstream.says(200, x_ratelimit_remaining_requests="50", x_ratelimit_remaining_tokens="700")
    get(upstream.url, ["api", "tokens", "places"], read_headers={"api": "requests", "tokens": "tokens"})
    assert [limiter.available(name) for name in ("api", "tokens", "places")] == [50, 700, 3]
    upstream.says(429, x_ratelimit_remaining_requests="9", x_ratelimit_remaining_tokens="600", Retry_After="300")
    get(upstream.url, ["api", "tokens"], read_headers={"tokens": "tokens"})
    assert [limiter.available(name) for name in ("api", "tokens")] == [49, 0], "the other limit is not reported to"
    assert limiter.config("tokens").paused > 100


def test_refusal_pauses_the_bucket_of_the_request(get: Get, limiter: Limiter, upstream: Upstream) -> None:
    upstream.says(429, Retry_After="300", X_RateLimit_Remaining="4")
    get(f"{upstream.url}/a", "tenant", on_429="pause", max_pause=60)
    assert limiter.config("tenant", key="/a").paused == pytest.approx(60, abs=20)
    assert [limiter.available("tenant", key=key) for key in ("/a", "/b")] == [0, 100]


def test_refusal_pauses_all_limits_of_the_request(get: Get, limiter: Limiter, upstream: Upstream) -> None:
    upstream.says(503, Retry_After="300")
    get(upstream.url, ["api", "places"], on_429="pause")
    assert [limiter.available(name) for name in ("api", "places")] == [0, 0]
    assert limiter.config("places").paused > 100


def test_response_that_changes_nothing_costs_no_store_call(get: Get, upstream: Upstream, store: redis.Redis) -> None:
    def calls() -> int:
        sent: int = store.info("commandstats")["cmdstat_evalsha"]["calls"]
        return sent

    get(upstream.url, read_headers=True)
    costs = []
    for headers in ({}, {"X_RateLimit_Remaining": "4987", "X_RateLimit_Reset": "300"}, {"X_RateLimit_Remaining": "9"}):
        upstream.says(200, **headers)
        before = calls()
        get(upstream.url, on_429="pause", read_headers=True)
        costs.append(calls() - before)
    assert costs == [1, 1, 2]


def test_response_is_returned_when_its_report_fails(
    get: Get, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> Any:
        raise StoreUnavailable("gone")
        yield

    monkeypatch.setattr(ReportMethods, "_report", lost)
    upstream.says(429)
    get(upstream.url, on_429="pause")
    assert len(upstream.calls) == 1


def test_interrupted_report_closes_the_response(
    get: Get, limiter: Limiter, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a task's soft time limit, for example: the connection goes back, and so do the leases."""
    closed: list[str] = []
    for kind, name in ((httpx.Response, "close"), (requests.Response, "close"), (httpx.Response, "aclose")):
        close = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda self, close=close: closed.append("") or close(self))

    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(ReportMethods, "_report", interrupted)
    upstream.says(429)
    with pytest.raises(KeyboardInterrupt):
        get(upstream.url, "places", on_429="pause")
    assert closed
    assert limiter.available("places") == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_429": "stop"}, "on_429='stop' must be 'pause', or None"),
        ({"read_headers": {"token": "tokens"}}, "read_headers: there is no limit 'token' \\(limits: api\\)"),
        ({"max_pause": -1}, "max_pause=-1 must be a number of seconds above 0"),
    ],
)
def test_invalid_options_of_transports_are_errors(limiter: Limiter, options: dict[str, Any], said: str) -> None:
    for transport in (LimitedTransport, LimitedAdapter):
        with pytest.raises(ConfigurationError, match=said):
            transport(limiter, "api", **options)
