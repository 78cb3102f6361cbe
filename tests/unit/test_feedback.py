"""Feedback of upstreams: recorded responses, responses of each client, malformed headers."""

from __future__ import annotations

import math
import random
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import requests
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import ConfigurationError, UpstreamThrottled
from celery_ratelimit.feedback import Feedback, read_headers, read_response

NOW = 1_767_225_600.0
HEADERS = {"Retry-After": "7", "X-RateLimit-Remaining": "3"}
SAID = Feedback(retry_after=7.0, remaining=3, status=429)


class Recorded:
    """One response of ``recorded_responses.txt``."""

    def __init__(self, text: str) -> None:
        self.name, _, status, *lines = [line.strip() for line in text.splitlines()]
        code, _, now = status.partition(" ")
        self.status, self.now = int(code), float(now or NOW)
        headers = [line.partition(":") for line in lines if not line.startswith("->")]
        self.headers = [(name, value.strip()) for name, _, value in headers]
        self.feedback: dict[str, dict[str, Any]] = {}
        for _, unit, *fields in [line.split() for line in lines if line.startswith("->")]:
            pairs = [field.split("=") for field in fields]
            self.feedback[unit] = {name: value == "true" or pytest.approx(float(value)) for name, value in pairs}


RECORDED = (Path(__file__).parent / "recorded_responses.txt").read_text()
RESPONSES = [Recorded(text) for text in RECORDED.strip().split("\n\n")[1:]]


@pytest.mark.parametrize("recorded", RESPONSES, ids=lambda recorded: recorded.name)
def test_recorded_responses_are_read(recorded: Recorded) -> None:
    response = SimpleNamespace(headers=recorded.headers, status_code=recorded.status)
    assert recorded.feedback
    for unit, fields in recorded.feedback.items():
        expected = dict(fields)
        pause = expected.pop("pause", None)
        found = read_response(response, recorded.now, unit=unit)
        assert found == Feedback(status=recorded.status, **expected), unit
        assert found.pause == pause, unit


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1", 1.0),
        ("1.5", 1.5),
        ("1767225660", 60.0),
        ("1767225660.25", 60.25),
        ("1767225660250", 60.25),
        ("1767225660250000", 60.25),
        ("1767225540", 0.0),  # it has passed
        ("12ms", 0.012),
        ("1d1h1m1.5s", 90061.5),
        ("3ns", 3e-9),
        ("7.66s", 7.66),
        ("250µs", 0.00025),
        ("2026-01-01T00:01:00Z", 60.0),
        ("2026-01-01T00:00:00.5Z", 0.5),
        ("2026-01-01T01:01:00.5+01:00", 60.5),
        ("2026-01-01T01:01:00+0100", 60.0),
        ("2026-01-01 00:01", 60.0),
        ("Thu, 01 Jan 2026 00:01:00 GMT", 60.0),
        ("Thursday, 01-Jan-26 00:01:00 GMT", 60.0),
        ("Thu Jan  1 00:01:00 2026", 60.0),
        ("30, 40", 40.0),
        ("30;" + "a" * 997, 30.0),
        *[(text, None) for text in ("", "-1", "soon", "1e3", "inf", "nan", "٣", "0x10", "1 2", "m", "5 s", "--")],
        *[(text, None) for text in ("2026-13-01T00:00:00Z", "0000-00-00T00:00Z", "Thu, 99 Jan 2026", "9" * 31)],
        ("30;" + "a" * 2000, None),
    ],
)
def test_times_in_headers(text: str, seconds: float | None) -> None:
    found = read_headers({"X-RateLimit-Reset": text}, NOW, max_pause=1e9).reset_after
    assert found == (None if seconds is None else pytest.approx(seconds, abs=1e-4 if seconds > 1 else 1e-12))


def test_date_header_overrides_the_local_clock() -> None:
    headers = {"date": "Thu, 01 Jan 2026 00:00:00 GMT", "retry-after": "Thu, 01 Jan 2026 00:00:30 GMT"}
    assert read_headers(headers, NOW + 86400).retry_after == 30.0
    assert read_headers({**headers, "date": "?"}, NOW + 20).retry_after == 10.0


def test_a_refusal_is_known_by_its_status_or_by_a_time() -> None:
    statuses = (200, 202, 301, 400, 403, 404, 429, 500, 503, 529)
    assert [status for status in statuses if Feedback(status=status).is_refusal] == [429]
    refused = [status for status in statuses if Feedback(retry_after=1.0, status=status).is_refusal]
    assert refused == [403, 429, 503, 529]
    assert Feedback(retry_after=1.0, status=202).pause is None, "a result that is polled for"


def test_a_quota_with_nothing_left_is_waited_for_unless_it_refills() -> None:
    assert Feedback(remaining=0, reset_after=9.0, status=200).pause == 9.0
    assert Feedback(remaining=1, reset_after=9.0, status=200).pause is None
    assert Feedback(remaining=0, reset_after=9.0, status=200, refills=True).pause is None
    assert Feedback(remaining=0, reset_after=9.0, retry_after=5.0, status=429).pause == 5.0, "section 7 of the draft"
    assert read_headers({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "0"}, NOW) == Feedback(), "it is renewed"


def test_tightest_of_several_quotas_counts() -> None:
    headers = {"RateLimit": '"a";r=1;t=5, "b";r=9;t=50', "X-RateLimit-Remaining": "4", "X-RateLimit-Reset": "500"}
    assert read_headers(headers, NOW) == Feedback(remaining=1, reset_after=5.0)
    assert read_headers({**headers, "X-RateLimit-Remaining": "1"}, NOW) == Feedback(remaining=1, reset_after=500.0)
    assert read_headers({**headers, "X-RateLimit-Remaining": "?"}, NOW) == Feedback(remaining=1, reset_after=5.0)
    assert read_headers({"X-RateLimit-Remaining": "5, 3"}, NOW) == Feedback(remaining=3)
    assert read_headers({"RateLimit": '"a";r=1;t=5, "b";r=1;t=50'}, NOW) == Feedback(remaining=1, reset_after=50.0)
    assert read_headers({"X-RateLimit-Remaining": "5, -1"}, NOW) == Feedback(), "no quota applies"
    assert read_headers({"X-RateLimit-Limit": "100"}, NOW) == Feedback(), "nothing is known of what is left"
    assert read_headers({"RateLimit": "daily;r=5;t=9"}, NOW) == Feedback(remaining=5, reset_after=9.0)
    shop = {"X-Shopify-Shop-Api-Call-Limit": "32/40", "Retry-After": "0.5"}
    assert read_headers(shop, NOW) == Feedback(retry_after=0.5, remaining=8, limit=40, refills=True)


def test_times_and_numbers_are_capped() -> None:
    ten_years = {"retry-after": "315360000", "x-ratelimit-reset": "315360000"}
    assert read_headers(ten_years, NOW) == Feedback(retry_after=3600.0, reset_after=3600.0)
    assert read_headers(ten_years, NOW, max_pause=60) == Feedback(retry_after=60, reset_after=60)
    most = {"x-ratelimit-remaining": "9" * 20, "x-ratelimit-limit": "9" * 20}
    assert read_headers(most, NOW) == Feedback(remaining=10**15, limit=10**15)


HTTPX = httpx.Response(429, headers=HEADERS, request=httpx.Request("GET", "http://upstream"))
REQUESTS = requests.Response()
REQUESTS.status_code = 429
REQUESTS.headers.update(HEADERS)


def _aws(status: int, code: str) -> dict[str, Any]:
    lower = {name.lower(): value for name, value in HEADERS.items()}
    return {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": lower}}


@pytest.mark.parametrize(
    "response",
    [
        HTTPX,
        httpx.HTTPStatusError("", request=HTTPX.request, response=HTTPX),
        REQUESTS,
        requests.HTTPError(response=REQUESTS),
        SimpleNamespace(headers=HEADERS, status=429),  # aiohttp
        SimpleNamespace(headers=HEADERS, http_status=429),  # stripe
        SimpleNamespace(headers=[(b"retry-after", b"7"), (b"X-RATELIMIT-remaining", b"3")], status=HTTPStatus(429)),
        SimpleNamespace(headers={"Retry-After": 7, "X-RateLimit-Remaining": 3}, status_code=429),
        _aws(429, "TooManyRequestsException"),
        ClientError(_aws(400, "ThrottlingException"), "PutItem"),
        ClientError(_aws(400, "ProvisionedThroughputExceededException"), "PutItem"),
        ClientError(_aws(503, "SlowDown"), "PutObject"),
    ],
    ids=lambda response: type(response).__name__,
)
def test_responses_and_errors_of_any_client(response: Any) -> None:
    assert read_response(response, NOW) == SAID


def test_an_error_of_another_kind_is_no_refusal() -> None:
    assert not read_response(ClientError(_aws(400, "ValidationException"), "PutItem"), NOW).is_refusal
    assert not read_response({"ResponseMetadata": {}}, NOW).is_refusal
    assert read_response(SimpleNamespace(headers=None, status=200), NOW) == Feedback(status=200)


@pytest.mark.parametrize("response", [None, 429, {}, requests.ConnectionError(), ValueError("no")])
def test_object_without_headers_is_an_error(response: Any) -> None:
    with pytest.raises(ConfigurationError, match="has no headers: pass a response"):
        read_response(response, NOW)


# -- Malformed and hostile ---------------------------------------------------------------------------------------------

NAMES = sorted({name.lower() for recorded in RESPONSES for name, _ in recorded.headers})
VALUES = sorted({value for recorded in RESPONSES for _, value in recorded.headers})
ODD = [
    *("", "-1", "0", "-0", "1e999", "inf", "nan", "9" * 400, "-" + "9" * 400, "0x7f", "1_000", "٣٤", "\0", "\r\nx: 1"),
    *('"', '"' * 99, ";" * 99, "," * 99, '"a";r', '"a";r=;t=', '"a";r=-5;t=9', '"\\', "limit=,remaining=-1", "=;=,="),
    *("9" * 30 + "d", "1d" * 99, "0000-00-00T00:00:00Z", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"),
    *("Thu, 01 Jan 99999 00:00:00 GMT", "Mon, 01 Jan 0001 00:00:00 +9999", "Xxx, 1 1 1 1:1:1 1", "a" * 5000, "40/-1"),
]


def check(found: Feedback, max_pause: float) -> None:
    assert found.retry_after is None or 0 < found.retry_after <= max_pause
    assert found.reset_after is None or 0 <= found.reset_after <= max_pause
    assert found.pause is None or 0 < found.pause <= max_pause
    for number in (found.remaining, found.limit):
        assert number is None or (type(number) is int and 0 <= number <= 10**15)
    assert found.limit is None or found.limit >= 0
    assert not any(isinstance(each, float) and math.isnan(each) for each in (found.retry_after, found.reset_after))


def test_malformed_headers_stay_within_bounds() -> None:
    chance = random.Random(36)
    said = 0
    for _ in range(10_000):
        headers = []
        for name, real in chance.choice(RESPONSES).headers:
            value = real if chance.random() < 0.4 else chance.choice(ODD if chance.random() < 0.5 else VALUES)
            for _ in range(chance.choice([0, 0, 1, 3])):  # a character is lost, doubled, or another
                at = chance.randrange(len(value) + 1)
                other = chance.choice(["", value[at : at + 1] * 2, chr(chance.randrange(256))])
                value = value[:at] + other + value[at + 1 :]
            headers.append((name, value))
        max_pause = chance.choice([0.5, 60.0, 3600.0])
        unit = chance.choice(["requests", "tokens", "content-bytes", "daily"])
        status = chance.choice([200, 403, 429, 503, None])
        found = read_response(SimpleNamespace(headers=headers, status=status), NOW, unit=unit, max_pause=max_pause)
        check(found, max_pause)
        said += found != Feedback(status=status)
    assert 2_000 < said < 9_000, "some say something, and some do not"


@given(st.lists(st.tuples(st.sampled_from(NAMES) | st.text() | st.binary(), st.text() | st.binary())))
def test_arbitrary_headers_stay_within_bounds(headers: list[tuple[Any, Any]]) -> None:
    check(read_headers(headers, NOW), 3600.0)


def test_long_headers_are_read_in_linear_time() -> None:
    """An expression that searches again from each quote needs 17 ms for one value, which is 1.7 s for a response."""
    values = ['"' * 999, '"a' * 500, "\\" * 1000, '"\\' * 500, "1d" * 500, "1," * 500, ";=" * 500, "x-ratelimit-" * 83]
    for value in values:
        for name in ("ratelimit", "ratelimit-policy", "retry-after", "x-ratelimit-remaining", value[:100]):
            check(read_headers([(name, value)] * 100, NOW), 3600.0)


def test_upstream_throttled_reads_a_response() -> None:
    dates = {"Date": formatdate(NOW, usegmt=True), "Retry-After": formatdate(NOW + 7, usegmt=True)}
    said = SimpleNamespace(status_code=429, headers=dates)
    for said.status_code in (429, 400):  # the caller says that it is a refusal
        assert UpstreamThrottled.from_response(said, limit="api").retry_after == 7
    assert UpstreamThrottled.from_response(SimpleNamespace(status_code=429, headers={})).retry_after is None
