"""Limit requests from the arguments of a task's or function's call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import ConfigurationError
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from ..limits.key_rates import limit_of_key
from ..limits.templates import Cost, arguments_of, check_arguments, cost_of, key_of, share_of, signature_of
from ..store.keys import short
from .limit_request import LimitRequest, each_bucket_once, own_key

__all__ = ["demands_of", "reader_of"]


def reader_of(
    function: Callable[..., Any],
    limits: Sequence[AnyLimit],
    cost: Cost | None,
    key: str | None = None,
    missing_key: str = "error",
) -> Callable[[Sequence[Any], Mapping[str, Any]], tuple[LimitRequest, ...]]:
    """A function that makes limit requests from the arguments of each call of ``function``.

    Args:
        limits: each has a name.
        cost: replaces the limits' own costs; of a :class:`Concurrency` only where no limit is a rate.
        key: of the buckets of all calls, in place of the limits' own keys.
        missing_key: see :func:`~celery_ratelimit.limits.templates.key_of`.

    Raises:
        ConfigurationError: a limit without a name, or a key or cost of an argument that the function does not take.
    """
    where = f"function {getattr(function, '__qualname__', repr(function))!r}"
    if not limits:
        raise ConfigurationError(f"{where}: no limit was named: pass a quota's name, a Limit, or several of them")
    signature = signature_of(function)
    own, of_rates = [], any(not isinstance(limit, Concurrency) for limit in limits)
    for limit in limits:
        if limit.name is None:
            raise ConfigurationError(
                f"{where}: {limit!r} has no name, so it has no bucket in the store: give it name=…"
            )
        if cost is not None and not (of_rates and isinstance(limit, Concurrency)):
            limit = replace(limit, cost=cost)
        check_arguments(limit, signature, where, missing_key, key)
        own.append(limit)
    return lambda args, kwargs: demands_of(own, signature, args, kwargs, key=key, missing_key=missing_key)


def demands_of(
    limits: Sequence[AnyLimit],
    signature: inspect.Signature | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    node: str | None = None,
    *,
    key: str | None = None,
    missing_key: str = "error",
) -> tuple[LimitRequest, ...]:
    """The limit requests of a call with these arguments, without limits that do not apply to it.

    Exceptions of a user's callable are raised.

    Args:
        signature: of the task or function.
        args, kwargs: of the call.
        node: has its own bucket under ``per_worker``. Default: this machine.
        key: of the limits that have keys. Default: each limit's own, from the arguments.
        missing_key: see :func:`~celery_ratelimit.limits.templates.key_of`.
    """
    arguments, requests = arguments_of(signature, args, kwargs), []
    for limit in limits:
        own = key
        if key is None or limit.key is None:
            own = key_of(limit, arguments, args, kwargs, missing_key)
        if own is not None:
            share = None if limit.fair is None else short(share_of(limit, arguments, args, kwargs) or "")
            limit = limit_of_key(limit, short(own))
            cost = cost_of(limit, arguments, args, kwargs)
            requests.append(LimitRequest(limit, limit.name or "", own_key(limit, own, node), cost, share=share))
    return each_bucket_once(requests)
