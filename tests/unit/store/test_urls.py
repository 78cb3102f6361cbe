"""URLs are shown without user, password, query and path."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_ratelimit import AsyncLimiter, ConfigurationError, Limit, Limiter, RateLimitError
from celery_ratelimit.app.app_store import check_store
from celery_ratelimit.app.settings import settings_of
from celery_ratelimit.store.url import SCHEMES
from celery_ratelimit.store.url_text import without_password
from tests.unit.apps import make_app

#: What a test looks for: in no word of ours, nor of redis-py's.
SECRET = "s3cr3t"

#: Characters that end the part of a URL that they stand in, and others; with the secret around them.
pieces = st.lists(st.sampled_from(["/", "#", "?", "@", ":", ";", "&", "=", "%", "[", "]", " ", ",", "é", "\\", SECRET]))
secrets = st.builds(lambda before, after: f"{before}{SECRET}{after}", pieces.map("".join), pieces.map("".join))
schemes = st.sampled_from([*SCHEMES, "memory", "amqp", "http", "redis+", "", "Redis", "rediss+sentinel"])


@st.composite
def urls(draw: Callable[..., Any]) -> str:
    """URLs with a secret in the user, the password, the path or the query, as it is or encoded."""
    write = draw(st.sampled_from([str, quote, lambda text: quote(text, safe="")]))
    scheme, secret = draw(schemes), write(draw(secrets))
    user = draw(st.sampled_from(["", "app"]))
    host = draw(st.sampled_from(["", "127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2"]))
    several = draw(st.sampled_from(["", f";{scheme}://127.0.0.1:3", ";127.0.0.1:3"]))
    tail = draw(st.sampled_from(["", "/0", "/0?db=1", "?service_name=limits"]))
    written = [
        f"{scheme}://{user}:{secret}@{host}{several}{tail}",
        f"{scheme}://{secret}@{host}{several}{tail}",
        f"{scheme}://{secret}:{secret}@{host}{tail}",
        f"{scheme}://{user}:{secret.replace('@', '')}{tail}",  # the host is forgotten
        f"{scheme}://{host}/0?password={secret}",
        f"{scheme}://{host}?password={secret}&service_name=limits",
        f"{scheme}://{host}/0?service_name=limits&sentinel_password={secret}&db=0",
        f"{scheme}://{host}/{secret}",
        f"{scheme}:///run/{secret}",
        f"{scheme}://{user}:{secret}@/run/redis.sock",
        f"{scheme}:{secret}@{host}",
        secret,
    ]
    return str(draw(st.sampled_from(written)))


def shown_by(call: Callable[[], Any]) -> str:
    """The text that a caller sees: the result, or an error with its causes."""
    try:
        return repr(call())
    except RateLimitError as error:
        return "".join(traceback.format_exception(error))


def show(url: str) -> str:
    return f"{without_password(url)} {without_password(repr(url))}"


def acquire(url: str) -> Any:
    limiter = Limiter.from_url(url, socket_connect_timeout=0.01)
    assert SECRET not in repr(limiter)
    return limiter.acquire(Limit("1/s", name="api"))


def acquire_async(url: str) -> Any:
    async def acquire() -> Any:
        async with AsyncLimiter.from_url(url, socket_connect_timeout=0.01) as limiter:
            assert SECRET not in repr(limiter)
            return await limiter.acquire(Limit("1/s", name="api"))

    return asyncio.run(acquire())


def start_app(url: str) -> Any:
    app = make_app("memory://", ratelimit_url=url)
    assert SECRET not in repr(settings_of(app))
    check_store(app)


@pytest.mark.parametrize("call", [show, acquire, acquire_async, start_app])
@given(url=urls())
@example(url=f"sentinel://app:{SECRET}@127.0.0.1:1,127.0.0.1:2/0?service_name=limits")
@example(url=f"redis+cluster://app:{SECRET}@127.0.0.1:1,127.0.0.1:2")
@example(url=f"redis://[{SECRET}]@127.0.0.1:1")
def test_no_text_and_no_error_has_a_secret(call: Callable[[str], Any], url: str) -> None:
    assert SECRET not in shown_by(lambda: call(url)), url


@pytest.mark.parametrize("character", ["/", "#", "?"])
@pytest.mark.parametrize(
    "url",
    [
        "redis://:{}@host:6379/0",
        "rediss://app:{}@host:6379/0",
        "valkey://:{}@host",
        "sentinel://:{}@one:26379;sentinel://two:26379/0?service_name=limits",
        "redis+cluster://:{}@one:6379,two:6379",
        "unix://:{}@/run/redis.sock",
        "redis+socket://:{}@/run/redis.sock",
    ],
)
def test_a_character_that_has_to_be_encoded_is_an_error_that_says_how(url: str, character: str) -> None:
    for kind in (Limiter, AsyncLimiter):
        with pytest.raises(ConfigurationError, match=r"in user and password, write '/' as %2F") as caught:
            kind.from_url(url.format(f"p{character}{SECRET}"))  # type: ignore[attr-defined]
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:secret@host", "redis://**@host"),
        ("sentinel://:secret@one:1;sentinel://two:2/0?service_name=x", "sentinel://**@one:1;two:2/0"),
        ("redis+cluster://user:secret@one:1,two:2", "redis+cluster://**@one:1,two:2"),
        ("unix:///run/redis.sock?db=3", "unix://…"),
        ("redis://[::1]:6379/15", "redis://[::1]:6379/15"),
        ("memory://orders", "memory://orders"),
        ("memory://", "memory://"),
        ("not a url", "…"),
    ],
)
def test_shown_part_of_a_url(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize(
    ("url", "why"),
    [
        *[
            (url, "a store's URL is a text such as 'redis://host:6379/0', not a")
            for url in (None, 5, b"redis://host", ["redis://host"])
        ],
        ("redis://host?socket_timout=1", "there is no option 'socket_timout'; did you mean 'socket_timeout'"),
        ("redis://host/0?db=1&max_conections=5", "'max_conections'; did you mean 'max_connections'"),
        ("sentinel://one?service_name=x&sentinel_pasword=y", "'sentinel_pasword'; did you mean 'sentinel_password'"),
        ("redis+cluster://127.0.0.1:1?require_full_coverag=no", "did you mean 'require_full_coverage'"),
        ("unix:///run/redis.sock?pasword=x", "did you mean 'password'"),
        ("redis://host?ssl_ca_certs=/etc/ca.pem", "ssl_ca_certs is for TLS: begin the URL with rediss://"),
        ("redis://host?colour=red", "there is no option 'colour'"),
        ("redis://host?password=a&s3cr3t=b", "an option that there is not. In a password, write '&' as %26"),
        ("redis://host?socket_timeout=s3cr3t", "socket_timeout must be a number of seconds above 0"),
    ],
)
def test_invalid_url_error_names_the_part(url: Any, why: str) -> None:
    for kind in (Limiter, AsyncLimiter):
        with pytest.raises(ConfigurationError, match=why) as caught:
            kind.from_url(url)  # type: ignore[attr-defined]
        assert SECRET not in str(caught.value)
