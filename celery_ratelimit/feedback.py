"""What an upstream's response says about its rate limits. No I/O, no clock, no HTTP library.

Sources: RFC 9110 (``Retry-After``), draft-ietf-httpapi-ratelimit-headers (its structured fields, and the separate
headers of its older versions), and vendors' dialects: ``docs/feedback.md`` lists them.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from .errors import ConfigurationError, RateLimitError, shown

__all__ = ["LONGEST_RETRY_AFTER", "MAX_PAUSE", "Feedback", "UpstreamThrottled", "read_headers", "read_response"]

#: Seconds. A wrong header stops calls for an hour at most; a right one that asks for more costs one call an hour.
#: No refused call that a task or a caller reports pauses a limit for longer than a day.
MAX_PAUSE, LONGEST_RETRY_AFTER = 3600.0, 86_400.0
#: Permits; numbers in Lua are exact up to 2^53.
_MOST = 10**15
#: Characters of a header's name and of its values that are read.
_LONGEST_NAME, _LONGEST_VALUE = 100, 1000
#: Seconds. A larger number is a time since 1970; from 10^11 on not in seconds, but in milliseconds or less.
_EPOCH, _EPOCH_MS = 1e9, 1e11
#: Statuses that refuse a call for its rate if they say when to come back; 429 always does. 403: GitHub.
_REFUSALS = (403, 503, 529)
#: Headers like Retry-After, and their units in seconds.
_RETRY_AFTER = {"retry-after": 1.0, "x-ratelimit-retry-after": 1.0, "retry-after-ms": 1e-3, "x-ms-retry-after-ms": 1e-3}
#: Codes of AWS errors, whose status may be 400.
_AWS_REFUSAL = re.compile(r".*Throttl.*|SlowDown|TooManyRequestsException|RequestLimitExceeded|.*ThroughputExceeded.*")
_FIELD = re.compile(r"(.*rate-?limit)-(?:(.+)-)?(reset-after|reset|remaining|limit|max)(?:-(.+))?")
_COUNTS = ("limit", "remaining")
_USED = re.compile(r"([0-9]{1,15})/([0-9]{1,15})")
_NUMBER = re.compile(r"-?[0-9]{1,30}(?:\.[0-9]{1,30})?")
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|us|µs|ns|d|h|m|s)")
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_RFC_3339 = re.compile(r"([0-9-]{10})[Tt ]([0-9:]{5,8})(\.[0-9]{1,9})?(?:[Zz]|([+-][0-9]{2}):?([0-9]{2}))?")


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a response says. ``None``: nothing.

    Attributes:
        retry_after: seconds until the next call is welcome, above 0 and at most ``max_pause``.
        remaining: units left of the quota, of several quotas: of the one that has least left.
        limit: units of that quota when it is full.
        reset_after: seconds until that quota is renewed, 0 to ``max_pause``.
        refills: whether that quota refills little by little, and is full after ``reset_after``. Else it is renewed as a
            whole, and ``remaining`` is for all of ``reset_after``.
        status: the HTTP status.
    """

    retry_after: float | None = None
    remaining: int | None = None
    limit: int | None = None
    reset_after: float | None = None
    refills: bool = False
    status: int | None = None

    @property
    def is_refusal(self) -> bool:
        """Whether the upstream refused the call for its rate: status 429, or 403, 503 or 529 with ``retry_after``."""
        return self.status == 429 or (self.status in _REFUSALS and self.retry_after is not None)

    @property
    def pause(self) -> float | None:
        """Seconds without calls that the upstream asks for: ``retry_after`` of a refusal, or until a quota of which
        nothing is left is renewed. ``Retry-After`` goes before the reset (section 7 of the draft).
        """
        if self.is_refusal and self.retry_after is not None:
            return self.retry_after
        return (self.reset_after or None) if self.remaining == 0 and not self.refills else None


#: Values of ``remaining``, ``limit`` and ``reset`` of one quota, and whether it refills little by little.
_Said = tuple[dict[str, list[str]], bool]


def read_headers(headers: Any, now: float, *, unit: str = "requests", max_pause: float = MAX_PAUSE) -> Feedback:
    """Read a response's headers. Whatever is malformed is as if it were not there: no header raises an error.

    Args:
        headers: a mapping of names to values, or pairs of these; text or bytes, names in any case.
        now: seconds since 1970, for headers that are times. The response's own ``Date`` goes before it, so that no
            clock but the upstream's matters.
        unit: the quota to read, by its name in the headers: ``"requests"``, whose headers may have no name;
            ``"tokens"``, ``"input-tokens"``, ``"daily"``, …
        max_pause: seconds; longer times are cut to it.
    """
    found = _by_name(headers)
    if found.keys() <= {"date"}:
        return Feedback()
    dates = [at for text in found.get("date", ()) if (at := _epoch(text)) is not None]
    now, unit = dates[0] if dates else now, unit.lower().replace("_", "-")
    waits = []
    for name, seconds in _RETRY_AFTER.items():
        waits += [at * seconds for text in found.get(name, ()) for at in _times(text, now)]
    longest = min(max(waits, default=0.0), max_pause)
    said = (*_in_fields(found, unit), *_in_lists(found, unit))
    quotas = [quota for fields, refills in said if (quota := _quota(fields, refills, now)) is not None]
    least = min(quotas, key=_tightness, default=Feedback())
    reset_after = None if least.reset_after is None else min(least.reset_after, max_pause)
    return replace(least, retry_after=longest if longest > 0 else None, reset_after=reset_after)


def read_response(response: Any, now: float, *, unit: str = "requests", max_pause: float = MAX_PAUSE) -> Feedback:
    """Read a response's status and headers, or those of an error's response.

    Args:
        response: has ``headers``, and ``status_code``, ``status`` or ``http_status``: of httpx, requests, aiohttp; an
            error that has these, or a ``response`` that has; or a response or ``ClientError`` of botocore.
        now, unit, max_pause: as in :func:`read_headers`.

    Raises:
        ConfigurationError: it has no headers.
    """
    if not hasattr(response, "headers"):
        response = getattr(response, "response", response)
    if isinstance(response, Mapping) and isinstance(found := response.get("ResponseMetadata"), Mapping):
        headers, status = found.get("HTTPHeaders", {}), found.get("HTTPStatusCode")
        if isinstance(error := response.get("Error"), Mapping) and _AWS_REFUSAL.fullmatch(str(error.get("Code"))):
            status = 429
    elif hasattr(response, "headers"):
        headers = response.headers or {}
        statuses = (getattr(response, name, None) for name in ("status_code", "status", "http_status"))
        status = next((each for each in statuses if isinstance(each, int)), None)
    else:
        raise ConfigurationError(f"{shown(response)} has no headers: pass a response, or an error with its response")
    return replace(read_headers(headers, now, unit=unit, max_pause=max_pause), status=status)


class UpstreamThrottled(RateLimitError):
    """Raise it in a task whose upstream has refused a call, usually with status 429: the limit is paused for the fleet,
    and the task goes back to the head of its backlog, neither failed nor retried.

    Outside of a worker it is an ordinary error.

    Args:
        retry_after: seconds for which the upstream wants no calls. ``None``, or 0 and less: it has not said, and the
            pause doubles while calls are refused. A day at most.
        limit: name of the limit to pause. Default: the only one of the task that is no :class:`Concurrency`.
        key: pauses only the bucket of this key, of a limit with keys; ``""``: the whole limit. Default: the task's own
            bucket.

    Raises:
        ConfigurationError: ``retry_after`` is no number, or ``key`` no text.
    """

    def __init__(self, retry_after: float | None = None, limit: str | None = None, key: str | None = None) -> None:
        if retry_after is not None and (type(retry_after) not in (int, float) or math.isnan(retry_after)):
            raise ConfigurationError(f"UpstreamThrottled: retry_after={shown(retry_after)} must be a number of seconds")
        if key is not None and not isinstance(key, str):
            raise ConfigurationError(f"UpstreamThrottled: key={shown(key)} must be a text")
        self.retry_after: float | None = None if retry_after is None else min(retry_after, LONGEST_RETRY_AFTER)
        super().__init__(self.retry_after, limit, key)
        self.limit = limit
        self.key = key

    @classmethod
    def from_response(cls, response: Any, *, limit: str | None = None, key: str | None = None) -> UpstreamThrottled:
        """The error for a response of httpx, requests, aiohttp or botocore, or of any object with ``headers``.

        ``retry_after`` is what :func:`read_response` reads: ``Retry-After``, else until an empty quota is renewed.
        """
        said = read_response(response, time.time(), max_pause=LONGEST_RETRY_AFTER)
        return cls(said.retry_after or said.pause, limit, key)

    def __str__(self) -> str:
        limit = f" under limit {self.limit!r}" if self.limit is not None else ""
        said = "without saying for how long" if self.retry_after is None else f"for {self.retry_after:g} s"
        return f"the upstream has refused the call{limit}, {said}"


def _by_name(headers: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in headers.items() if hasattr(headers, "items") else headers:
        name = _text(name).strip().lower()
        if len(name) <= _LONGEST_NAME and ("limit" in name or "retry-after" in name or name == "date"):
            text = _text(value).strip()
            if len(text) <= _LONGEST_VALUE:
                found.setdefault(name, []).append(text)
    return found


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _in_fields(found: Mapping[str, list[str]], unit: str) -> Iterator[_Said]:
    """The quotas in separate headers, such as ``X-RateLimit-Remaining``: one for each prefix."""
    families: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, values in found.items():
        if match := _FIELD.fullmatch(name):
            family, before, field, after = match.groups()
            named = (before or after or "").replace("_", "-")
            if named == unit or (not named and unit == "requests"):
                field = {"reset-after": "reset", "max": "limit"}.get(field, field)
                families.setdefault((family, named), {}).setdefault(field, []).extend(values)
    for (family, _), fields in families.items():
        # Anthropic says when a quota is full, OpenAI and others with a duration.
        yield fields, family.startswith("anthropic") or any(map(_DURATION.match, fields.get("reset", ())))
    for text in found.get("x-shopify-shop-api-call-limit", ()):
        if unit == "requests" and (match := _USED.fullmatch(text)):
            used, limit = map(int, match.groups())
            yield {"remaining": [str(max(0, limit - used))], "limit": [str(limit)]}, True


def _in_lists(found: Mapping[str, list[str]], unit: str) -> Iterator[_Said]:
    """The quotas in ``RateLimit``: ``"default";r=50;t=30``, or ``limit=100, remaining=50, reset=30`` (draft 7)."""
    policies = dict(_items(found.get("ratelimit-policy", ())))
    together: dict[str, list[str]] = {}
    for name, fields in _items(found.get("ratelimit", ())):
        field, is_field, value = name.partition("=")
        policy = policies.get(name, {})
        if is_field and not name.startswith('"'):
            together[field.strip()] = [value.strip()]
        elif policy.get("qu", "requests").strip('"') == unit and "r" in fields:
            yield {"remaining": [fields["r"]], "limit": [policy.get("q", "")], "reset": [fields.get("t", "")]}, False
    if unit == "requests":
        yield together, False


def _items(values: Any) -> Iterator[tuple[str, dict[str, str]]]:
    """The items of a list of structured fields (RFC 9651), each with its parameters."""
    for text in values:
        for item in _split(text, ","):
            name, *fields = _split(item, ";") or [""]
            yield name.strip(), dict(field.strip().split("=", 1) for field in fields if "=" in field)


def _split(text: str, separator: str) -> list[str]:
    """Split at separators outside of quotes. A quote that is not closed ends with the text."""
    return re.findall(rf'(?:[^{separator}"]|"(?:\\.|[^"\\])*(?:"|\\?$))+', text)


def _quota(fields: Mapping[str, list[str]], refills: bool, now: float) -> Feedback | None:
    """What is said of one quota. ``None``: nothing; a limit of 0 or -1 (Azure) means that none applies."""
    limits, left = ([number for text in fields.get(name, ()) for number in _numbers(text)] for name in _COUNTS)
    times = [at for text in fields.get("reset", ()) for at in _times(text, now)]
    reset = max(times, default=None)
    is_renewed = reset == 0 and min(left, default=1) < 1
    if is_renewed or min(limits, default=1) <= 0 or min(left, default=0) < 0 or not (left or times):
        return None
    remaining = min(int(min(left)), _MOST) if left else None
    return Feedback(None, remaining, min(int(limits[0]), _MOST) if limits else None, reset, refills)


def _tightness(quota: Feedback) -> tuple[float, float]:
    return math.inf if quota.remaining is None else quota.remaining, -(quota.reset_after or 0.0)


def _numbers(text: str) -> list[float]:
    """The numbers in ``100, 100;w=60``, without parameters."""
    parts = [part.partition(";")[0].strip() for part in text.split(",")]
    return [float(part) for part in parts if _NUMBER.fullmatch(part)]


def _times(text: str, now: float) -> list[float]:
    """The seconds from now until each of the times in a header, which a client may have joined: ``30, 30``."""
    whole = _after(text, now)
    found = [_after(part, now) for part in text.split(",")] if whole is None else [whole]
    return [at for at in found if at is not None]


def _after(text: str, now: float) -> float | None:
    """The seconds from now until a time: seconds, seconds or less since 1970, ``6m0s``, RFC 3339, an HTTP date."""
    text = text.partition(";")[0].strip()
    if _NUMBER.fullmatch(text):
        seconds = float(text)
        while seconds >= _EPOCH_MS:
            seconds /= 1000
        if seconds >= _EPOCH:
            return max(0.0, seconds - now)
        return None if text.startswith("-") else seconds
    if text and not _DURATION.sub("", text):
        return sum(float(number) * _UNITS[each] for number, each in _DURATION.findall(text))
    at = _epoch(text)
    return None if at is None else max(0.0, at - now)


def _epoch(text: str) -> float | None:
    """A date as seconds since 1970."""
    try:
        if match := _RFC_3339.fullmatch(text):
            day, time, fraction, hours, minutes = match.groups()
            at = datetime.fromisoformat(f"{day}T{time}{hours or '+00'}:{minutes or '00'}")
            return at.timestamp() + float(fraction or 0)
        at = parsedate_to_datetime(text)
        return (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
