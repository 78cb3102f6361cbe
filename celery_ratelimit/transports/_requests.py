"""An adapter of requests that takes a permit for every call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter

from ..feedback import MAX_PAUSE
from ..limiter.limit_request import Limits, leased
from ..limiter.limiter import Limiter
from .per_request import PerRequest, RequestKey
from .reports import ResponseReports

__all__ = ["LimitedAdapter"]


class LimitedAdapter(HTTPAdapter):
    """Takes a permit for every request, then sends it.

    >>> session = requests.Session()
    >>> session.mount("https://api.stripe.com/", LimitedAdapter(limiter, "stripe"))

    Every request counts, also each request of a redirect. A lease of a :class:`Concurrency` limit is held until the
    body has been read; with ``stream=True`` only until the head of the response has come.

    Args:
        limiter: acquires the permits.
        limits: as in :meth:`Limiter.acquire`.
        key: the bucket of every request, as in :meth:`Limiter.acquire`.
        key_template: replaces the limits' own keys: a template over ``host``, ``method`` and ``path``, or a callable
            that gets the prepared request. Limits without keys stay single buckets. If no limit has a key, it applies
            to the :class:`Limit` objects.
        cost: permits that a request takes. Default: each limit's own cost.
        max_wait: seconds that a request may wait for its slot; ``None``, the default: for ever. The timeouts of
            requests do not include this time, ``Response.elapsed`` does.
        on_429, read_headers, max_pause: as of :class:`~celery_ratelimit.transports.LimitedTransport`.
        options: of ``requests.adapters.HTTPAdapter``.

    Raises:
        ConfigurationError: an unknown quota, or a key that a request does not have.
        Throttled: by every call of the session whose slot is further away than ``max_wait``. Not a
            ``requests.RequestException``.

    *Warning*: the adapter's own ``max_retries`` send again under the same permit. Leave them at 0 and retry around
    the call.
    """

    def __init__(
        self,
        limiter: Limiter,
        limits: Limits,
        *,
        key: str | None = None,
        key_template: RequestKey | None = None,
        cost: int | None = None,
        max_wait: float | None = None,
        on_429: Literal["pause"] | None = None,
        read_headers: bool | Mapping[str, str] = False,
        max_pause: float = MAX_PAUSE,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._limiter, self._max_wait = limiter, max_wait
        self._each = PerRequest(limiter, limits, key, key_template, cost)
        self._reports = ResponseReports(self._each.limits, on_429, read_headers, max_pause)

    def send(self, request: PreparedRequest, stream: bool = False, *args: Any, **options: Any) -> Response:
        url = urlsplit(request.url or "")
        asked = self._each.asks(request, str(url.hostname or ""), request.method or "", str(url.path))
        with self._limiter.permit(**asked, max_wait=self._max_wait) as decision:
            response = super().send(request, stream, *args, **options)
            self._reports.report(self._limiter, decision, response)
            if not stream and leased(decision._demands):
                _ = response.content  # as the session is about to do
        return response
