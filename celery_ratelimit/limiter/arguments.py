"""Limit requests from a call's arguments: the keys and costs of tasks and of decorated functions."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import ConfigurationError, shown
from ..limits.any_limit import AnyLimit, template_fields
from ..limits.concurrency import Concurrency
from ..limits.templates import called, cost_of, key_of, share_of
from ..store.keys import short
from .limit_request import LimitRequest, each_bucket_once, own_key

__all__ = [
    "Cost",
    "Demands",
    "Key",
    "alike_of",
    "check_arguments",
    "check_key",
    "check_names",
    "demands_of",
    "reader_of",
    "runs_later",
    "signature_of",
]

#: A template over a call's arguments, or a callable that gets them.
Key = str | Callable[..., str]
#: A number of permits, the name of the argument that holds it, or a callable that gets the arguments.
Cost = int | str | Callable[..., int]
#: Makes the limit requests of a call from its arguments.
Demands = Callable[[Sequence[Any], Mapping[str, Any]], tuple[LimitRequest, ...]]


def reader_of(
    function: Callable[..., Any],
    limits: Sequence[AnyLimit],
    cost: Cost | None,
    key: str | None = None,
    missing_key: str = "error",
) -> Demands:
    """A function that makes limit requests from the calls of ``function``.

    Args:
        function: its arguments are read.
        limits: its limits; each has a name.
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
        limits: the limits of the task or function.
        signature: of the task or function.
        args: of the call.
        kwargs: of the call.
        node: has its own bucket under ``per_worker``. Default: this machine.
        key: of the limits that have keys. Default: each limit's own, from the arguments.
        missing_key: see :func:`~celery_ratelimit.limits.templates.key_of`.
    """
    arguments = _arguments(signature, args, kwargs)
    keys = [
        key_of(limit, arguments, args, kwargs, missing_key) if key is None or limit.key is None else key
        for limit in limits
    ]
    return each_bucket_once(
        [
            LimitRequest(
                limit,
                limit.name or "",
                own_key(limit, bucket, node),
                cost_of(limit, arguments, args, kwargs),
                share=_share_of(limit, arguments, args, kwargs),
            )
            for limit, bucket in zip(limits, keys, strict=True)
            if bucket is not None
        ]
    )


def runs_later(function: Callable[..., Any]) -> bool:
    """Whether the body does not run when the function is called: its permit would be taken too early."""
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_kind(function) for is_kind in kinds)


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # a callable without a signature
        return None


def check_arguments(
    limit: AnyLimit,
    signature: inspect.Signature | None,
    where: str,
    missing_key: str = "error",
    key: str | None = None,
) -> None:
    """Check that the task or function takes every argument that a key or cost names.

    But for the key's if the key may be missing, or is given as ``key``.
    """
    if signature is None:
        return
    parameters = signature.parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    what = {}
    for option, template in _templates(limit):
        if option == "key" and (key is not None or (limit.missing_key or missing_key) != "error"):
            continue
        what.update(dict.fromkeys(template_fields(template), f"{option}={template!r}"))
    if isinstance(limit.cost, str):
        what[limit.cost] = f"cost={limit.cost!r}"
    for name, setting in what.items():
        if name not in parameters:
            takes = ", ".join(parameters) or "none"
            raise ConfigurationError(
                f"{where}: {setting} of limit {limit.name!r} names the argument {name!r}, "
                f"which the {where.split()[0]} does not take (arguments: {takes})"
            )


def check_names(names: Sequence[str], signature: inspect.Signature | None, where: str, setting: str) -> None:
    """Check that the task takes every argument that an option names."""
    if signature is None or any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values()):
        return
    for name in names:
        if name not in signature.parameters:
            takes = ", ".join(signature.parameters) or "none"
            raise ConfigurationError(
                f"{where}: {setting} names the argument {name!r}, which the task does not take (arguments: {takes})"
            )


def alike_of(
    name: str,
    key: Key | None,
    signature: inspect.Signature | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str:
    """The deduplication key of a call: 32 hex digits, the same for calls that count as duplicates.

    Args:
        name: of the task.
        key: a template over its arguments, or a callable that gets them; ``None``: all arguments count.
        signature: of the task.
        args, kwargs: of the call.
    """
    if callable(key):
        alike: Any = called(key, args, kwargs)
    else:
        arguments = _arguments(signature, args, kwargs)
        if signature is None and key is None:
            arguments = {"*": list(args), **arguments}
        try:
            alike = sorted(arguments.items()) if key is None else key.format_map(arguments)
        except Exception as error:  # a missing argument, or one that cannot be formatted
            raise ConfigurationError(
                f"task {name!r}: coalesce_key={shown(key)} cannot be filled from the arguments "
                f"{', '.join(map(str, arguments)) or '(none)'}: {shown(error)}"
            ) from error
    return hashlib.sha256(f"{name}\0{alike!r}".encode(errors="surrogatepass")).hexdigest()[:32]


def check_key(limit: AnyLimit, where: str) -> None:
    """Reject a task's key that names no argument: it would be the same for every call."""
    for option, template in _templates(limit):
        if not template_fields(template):
            named = template if template.isidentifier() else "tenant_id"
            raise ConfigurationError(
                f"{where}: {option}={shown(template)} of limit {limit.name!r} is the same for every call: name the "
                f"task's arguments in braces, {option}={'{' + named + '}'!r}, or leave {option}= out"
            )


def _templates(limit: AnyLimit) -> list[tuple[str, str]]:
    options = (("key", limit.key), ("fair", limit.fair))
    return [(option, written) for option, written in options if isinstance(written, str)]


def _share_of(
    limit: AnyLimit, arguments: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    share = share_of(limit, arguments, args, kwargs)
    return None if share is None else short(share)


def _arguments(signature: inspect.Signature | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if signature is None:
        return dict(kwargs)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments.update(arguments.pop(name))
    return arguments
