"""What a transport tells its limits about responses."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from ..errors import STORE_TROUBLES, ConfigurationError, shown
from ..feedback import read_response
from ..limiter.argument_checks import length_of
from ..limiter.async_limiter import AsyncLimiter
from ..limiter.limiter import Limiter
from ..limiter.operation import Operation
from ..limiter.response_methods import ReportMethods
from ..limits.any_limit import AnyLimit
from ..limits.decision import Decision

__all__ = ["ResponseReports"]


class ResponseReports:
    """Reports responses to the limits that granted their requests. A store that does not answer changes nothing.

    Args:
        limits: of the transport.
        on_429, read_headers, max_pause: as of :class:`~celery_ratelimit.transports.LimitedTransport`.

    Raises:
        ConfigurationError: another value, or a mapping with a name that no limit has.
    """

    def __init__(
        self,
        limits: Iterable[AnyLimit],
        on_429: str | None,
        read_headers: bool | Mapping[str, str],
        max_pause: float,
    ) -> None:
        if on_429 not in (None, "pause"):
            raise ConfigurationError(f"on_429={shown(on_429)} must be 'pause', or None: a refusal changes nothing")
        length_of(max_pause, "max_pause")
        names = [str(limit.name) for limit in limits]
        self._units = dict(read_headers) if isinstance(read_headers, Mapping) else {}
        for name in self._units.keys() - names:
            raise ConfigurationError(f"read_headers: there is no limit {shown(name)} (limits: {', '.join(names)})")
        self._of_all, self._refusals, self._max_pause = bool(read_headers), on_429 is not None, max_pause

    def report(self, limiter: Limiter, decision: Decision, response: Any) -> None:
        """Report a response, which is closed if that is interrupted."""
        try:
            for operation in self._operations(limiter, decision, response):
                with suppress(*STORE_TROUBLES):
                    limiter._run(operation)
        except BaseException:
            response.close()
            raise

    async def report_async(self, limiter: AsyncLimiter, decision: Decision, response: Any) -> None:
        try:
            for operation in self._operations(limiter, decision, response):
                with suppress(*STORE_TROUBLES):
                    await limiter._await(operation)
        except BaseException:
            await response.aclose()
            raise

    def _operations(self, limiter: ReportMethods, decision: Decision, response: Any) -> Iterator[Operation[float]]:
        """A response that leaves more than a limit can hold, and asks for no pause, costs no call of the store."""
        if not self._of_all and not self._refusals:
            return
        for request, state in zip(decision._demands, decision.states, strict=False):  # no requests: nothing was asked
            unit = self._units.get(request.name, "requests")
            said = read_response(response, time.time(), unit=unit, max_pause=self._max_pause)
            lowers = said.remaining is not None and said.remaining < state.capacity
            is_read = self._of_all and (not self._units or request.name in self._units)
            if (self._refusals and said.is_refusal) or (is_read and (said.is_refusal or said.pause or lowers)):
                yield limiter._report(request, said, self._max_pause)
