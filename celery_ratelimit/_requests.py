"""An adapter of requests that takes a permit for every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter

from .asking import Limits, leased
from .limiter import Limiter

__all__ = ["LimitedAdapter"]


class LimitedAdapter(HTTPAdapter):
    """Takes a permit for every request, then sends it.

    >>> session = requests.Session()
    >>> session.mount("https://api.stripe.com/", LimitedAdapter(limiter, "stripe"))

    Every request counts: each one that a redirect leads to, too. A place under :class:`Concurrency` is held until the
    body has been read; with ``stream=True`` only until the head of the response has come.

    Args:
        limiter: who is asked.
        limits: as in :meth:`Limiter.acquire`.
        key: the bucket, for limits that are kept by key: a text, or a callable that gets the prepared request.
        cost: permits that a request takes; default: what each limit says.
        max_wait: seconds that a request may wait for its turn. Default: as long as it takes; the timeouts of requests
            do not count that time, ``Response.elapsed`` does.
        options: those of ``requests.adapters.HTTPAdapter``.

    Raises:
        Throttled: by every call of the session whose turn is further away than ``max_wait``. Not a
            ``requests.RequestException``.

    *Warning*: the adapter's own ``max_retries`` send again under the same permit. Leave them at 0 and retry around
    the call.
    """

    def __init__(
        self,
        limiter: Limiter,
        limits: Limits,
        *,
        key: str | Callable[[PreparedRequest], str] | None = None,
        cost: int | None = None,
        max_wait: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._limiter, self._limits, self._key, self._cost, self._max_wait = limiter, limits, key, cost, max_wait

    def send(self, request: PreparedRequest, stream: bool = False, *args: Any, **options: Any) -> Response:
        key = self._key(request) if callable(self._key) else self._key
        with self._limiter.permit(self._limits, key=key, cost=self._cost, max_wait=self._max_wait) as decision:
            response = super().send(request, stream, *args, **options)
            if not stream and leased(decision.demands):
                _ = response.content  # as the session is about to do
        return response
