"""What a call asks of its limits, by its arguments: the keys and costs of tasks and of decorated functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .asking import Demand, each_bucket_once, own_key
from .errors import ConfigurationError
from .limits import AnyLimit, Concurrency, check_cost, template_fields

__all__ = ["Cost", "Demands", "Key", "check_arguments", "demands_of", "reader_of", "runs_later", "signature_of"]

#: A template over a call's arguments, or a callable that gets them.
Key = str | Callable[..., str]
#: A number of permits, the name of the argument that holds it, or a callable that gets the arguments.
Cost = int | str | Callable[..., int]
#: What a call with these arguments asks.
Demands = Callable[[Sequence[Any], Mapping[str, Any]], tuple[Demand, ...]]


def reader_of(function: Callable[..., Any], limits: Sequence[AnyLimit], key: Key | None, cost: Cost | None) -> Demands:
    """How calls of a function are turned into demands.

    Args:
        function: the one whose arguments are read.
        limits: what it is limited by; each has a name.
        key: in place of the limits' own keys.
        cost: in place of the limits' own costs, but for :class:`Concurrency`, where a call is one place.

    Raises:
        ConfigurationError: a limit without a name, or a key or cost of an argument that the function does not take.
    """
    where = f"function {getattr(function, '__qualname__', repr(function))!r}"
    if not limits:
        raise ConfigurationError(f"{where}: no limit was named: pass a quota's name, a Limit, or several of them")
    signature = signature_of(function)
    own = []
    for limit in limits:
        if limit.name is None:
            raise ConfigurationError(
                f"{where}: {limit!r} has no name, so it has no bucket in the store: give it name=…"
            )
        if key is not None:
            limit = replace(limit, key=key)
        if cost is not None and not isinstance(limit, Concurrency):
            limit = replace(limit, cost=cost)
        check_arguments(limit, signature, where)
        own.append(limit)
    return lambda args, kwargs: demands_of(own, signature, args, kwargs)


def demands_of(
    limits: Sequence[AnyLimit],
    signature: inspect.Signature | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    node: str | None = None,
) -> tuple[Demand, ...]:
    """What a call with these arguments asks. Whatever a user's callable raises is raised here.

    Args:
        limits: what it is limited by.
        signature: of the task or function.
        args: of the call.
        kwargs: of the call.
        node: what counts for itself under ``per_worker``. Default: this machine.
    """
    arguments = _arguments(signature, args, kwargs)
    return each_bucket_once(
        [
            Demand(
                limit,
                limit.name or "",
                own_key(limit, _key(limit, arguments, args, kwargs), node),
                _cost(limit, arguments, args, kwargs),
            )
            for limit in limits
        ]
    )


def runs_later(function: Callable[..., Any]) -> bool:
    """Whether the body does not run when the function is called: its permit would be taken too early."""
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_kind(function) for is_kind in kinds)


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # a callable that does not tell
        return None


def check_arguments(limit: AnyLimit, signature: inspect.Signature | None, where: str) -> None:
    """Every argument that a key or cost names must be one that the task or function takes."""
    if signature is None:
        return
    parameters = signature.parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    wanted = template_fields(limit.key) if isinstance(limit.key, str) else []
    what = dict.fromkeys(wanted, f"key={limit.key!r}")
    if isinstance(limit.cost, str):
        what[limit.cost] = f"cost={limit.cost!r}"
    for name, setting in what.items():
        if name not in parameters:
            takes = ", ".join(parameters) or "none"
            raise ConfigurationError(
                f"{where}: {setting} of limit {limit.name!r} names the argument {name!r}, "
                f"which the {where.split()[0]} does not take (arguments: {takes})"
            )


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


def _key(limit: AnyLimit, arguments: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    if limit.key is None:
        return ""
    if isinstance(limit.key, str):
        try:
            return limit.key.format_map(arguments)
        except (KeyError, AttributeError, IndexError, TypeError) as error:
            raise ConfigurationError(
                f"limit {limit.name!r}: key={limit.key!r} cannot be filled from the arguments "
                f"{', '.join(arguments) or '(none)'}: {error!r}"
            ) from error
    return str(limit.key(*args, **kwargs))


def _cost(limit: AnyLimit, arguments: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    assert limit.name is not None
    cost: Any = limit.cost
    if callable(cost):
        cost = cost(*args, **kwargs)
    elif isinstance(cost, str):
        try:
            cost = arguments[cost]
        except KeyError:
            raise ConfigurationError(
                f"limit {limit.name!r}: cost={cost!r} is not among the arguments {', '.join(arguments) or '(none)'}"
            ) from None
    return check_cost(limit.name, cost, limit.most)
