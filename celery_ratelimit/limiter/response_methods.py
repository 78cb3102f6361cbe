"""The limiters' method that hears what an upstream says of its limits. It is an operation."""

from __future__ import annotations

import time
from typing import Any

from ..feedback import MAX_PAUSE, Feedback, read_response
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from ..limits.key_rates import limit_of_key
from ..store.keys import short
from .argument_checks import length_of
from .limit_request import LimitRequest
from .operation import Operation, limiter_method
from .report_counts import count_upstream
from .setting_operations import note_of
from .upstream_methods import MAX_PAUSE as LONGEST_UNSAID
from .upstream_methods import UpstreamMethods, report_throttle

__all__ = ["ReportMethods"]


class ReportMethods(UpstreamMethods):
    """Follow what responses of an upstream say."""

    @limiter_method
    def report(
        self,
        name: str | AnyLimit,
        response: Any,
        *,
        key: str | None = None,
        unit: str = "requests",
        max_pause: float = MAX_PAUSE,
    ) -> Operation[float]:
        """Tighten a limit to what an upstream's response says: pause it, or take permits that the upstream lacks.

        A refusal (429; or 403, 503 or 529 with ``Retry-After``) pauses the limit for ``Retry-After``, else until its
        quota is renewed, else as :meth:`throttled` does. Any response that says that nothing is left pauses it
        until the quota is renewed. Where less is left than the bucket has, the bucket gets as little. A report never
        makes a limit looser, and shortens no pause.

        Args:
            name: the limit's name, or the limit.
            response: of httpx, requests, aiohttp or botocore, or an error that has one; see
                :func:`~celery_ratelimit.feedback.read_response`.
            key: the bucket of a limit with keys. Without it the whole limit is paused, and no permits are taken.
            unit: the upstream's quota, by its name in the headers: ``"requests"``, ``"tokens"``, ``"input-tokens"``, …
            max_pause: seconds; the longest pause. A wrong header stops calls for no longer.

        Returns:
            Seconds from now until the pause ends; 0.0: the response asks for none.

        Raises:
            ConfigurationError: an unknown limit, a response without headers, or an invalid ``max_pause``.

        *Warning*: calls that were sent before the response came are under way. Permits are only taken of limits whose
        periods do not begin with their first use: not with ``refill="interval"``, ``align="first"`` or ``warmup``.
        """
        known, limit = self._reader.code(name, key, force=False)
        if limit is None:
            raise self._reader.unknown(known)
        length_of(max_pause, "max_pause")
        said = read_response(response, time.time(), unit=unit, max_pause=max_pause)
        if limit.key is not None and key is None:
            return (yield from self._pause_as_said(known, None, limit, said, max_pause))
        (request,) = self._reader.plain(name, key, 1, None, of_each=True)
        return (yield from self._report(request, said, max_pause))

    def _report(self, request: LimitRequest, said: Feedback, max_pause: float) -> Operation[float]:
        """:meth:`report` for the bucket of a request."""
        limit = request.limit
        if said.remaining is not None and not isinstance(limit, Concurrency):
            asked, _ = self._core.shadows.split((request,))
            for each in asked:
                yield from self._core.lower_remaining(each, said.remaining)
        key = None if limit.key is None or limit.per_worker else request.key
        return (yield from self._pause_as_said(request.name, key, limit, said, max_pause))

    def _pause_as_said(
        self, name: str, key: str | None, limit: AnyLimit, said: Feedback, max_pause: float
    ) -> Operation[float]:
        note = note_of(None, f"upstream: status {said.status}")
        if said.is_refusal:
            seconds = said.pause
            first = max(1.0, limit.interval)
            if seconds is None and max_pause < max(first, LONGEST_UNSAID):
                seconds = min(first, max_pause)
            demand = LimitRequest(limit_of_key(limit, short(key or "")), name, short(key or ""))
            return (yield from report_throttle(self._core, demand, note, seconds, None)).seconds
        if said.pause is None:
            return 0.0
        yield from count_upstream(self._core, name, "upstream_header")
        pause = self._core.settings.pause
        return (yield from pause(name, key, length_of(said.pause, "retry_after"), note)) / 1e6
