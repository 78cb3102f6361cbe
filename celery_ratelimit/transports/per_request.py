"""The limits of HTTP requests, with keys as templates over host, method and path."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypedDict

from ..errors import ConfigurationError
from ..limiter.limit_request import Limits
from ..limiter.limiter_base import LimiterBase
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from ..limits.templates import check_arguments

__all__ = ["Asked", "PerRequest", "RequestKey"]

#: A template over host, method and path, or a callable that gets the request.
RequestKey = str | Callable[[Any], str]


class Asked(TypedDict):
    """The arguments of a call of ``permit``."""

    limits: tuple[AnyLimit, ...]
    key: str | None
    args: dict[str, Any]
    cost: int | None


class PerRequest:
    """The limits of a transport.

    Args:
        limiter: knows the quotas.
        limits: as in :meth:`Limiter.acquire`.
        key, key_template: as in :meth:`Limiter.limited`.
        cost: permits that a request takes. Default: each limit's own cost.

    Raises:
        ConfigurationError: an unknown quota, or a key or cost that a request does not provide.

    Attributes:
        limits: with their keys.
    """

    def __init__(
        self,
        limiter: LimiterBase,
        limits: Limits,
        key: str | None,
        key_template: RequestKey | None,
        cost: int | None,
    ) -> None:
        self._reads_request = callable(key_template)
        template = _of_request(key_template) if callable(key_template) else key_template
        self.limits: tuple[AnyLimit, ...] = limiter._reader.kept_by(limits, key, template)
        self._key, self._cost = key, cost
        of_rates = any(not isinstance(limit, Concurrency) for limit in self.limits)
        for limit in self.limits:
            is_named = cost is not None and not (of_rates and isinstance(limit, Concurrency))
            if not is_named and not isinstance(limit.cost, int):
                raise ConfigurationError(
                    f"limit {limit.name!r} takes its cost from a task's arguments, which a request has none of: "
                    "pass cost=…"
                )
            if isinstance(limit.cost, int):
                check_arguments(limit, _SIGNATURE, "transport", limiter._reader.missing_key, key)

    def asks(self, request: Any, host: str, method: str, path: str) -> Asked:
        """The arguments of ``permit`` for one request."""
        args = {"host": host, "method": method, "path": path}
        if self._reads_request:
            args["request"] = request
        return {"limits": self.limits, "key": self._key, "args": args, "cost": self._cost}


def _of_request(key: Callable[[Any], str]) -> Callable[..., str]:
    """A key that is made from a request, as a key that is made from the arguments of a call."""
    return lambda request, **_: key(request)


def _of_a_request(host: str, method: str, path: str) -> None: ...


_SIGNATURE = inspect.signature(_of_a_request)
