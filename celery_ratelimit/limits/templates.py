"""Computes a limit's key and cost from the arguments of a call: by templates, arguments or callables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import ConfigurationError, shown
from .any_limit import AnyLimit, check_cost

__all__ = ["called", "cost_of", "key_of", "share_of"]


def called(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a user's function with a call's arguments. Its ``sys.exit()`` becomes an ordinary error: it would end the
    worker, and then the next worker that gets the message.
    """
    try:
        return function(*args, **kwargs)
    except SystemExit as error:
        if type(error) is not SystemExit:
            raise  # Celery's own, by which a worker ends
        raise RuntimeError(f"{function!r} has called sys.exit({shown(error.code)})") from error


def key_of(limit: AnyLimit, arguments: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The bucket's key; ``""``: the limit has a single bucket. Exceptions of a user's callable are raised.

    Args:
        limit: the limit.
        arguments: of the call, by name.
        args, kwargs: the call's arguments as passed, for callables.
    """
    return "" if limit.key is None else _filled(limit, "key", limit.key, arguments, args, kwargs)


def share_of(
    limit: AnyLimit, arguments: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    """The call's key under a fair limit; ``None``: the limit is not fair. See :func:`key_of`."""
    return None if limit.fair is None else _filled(limit, "fair", limit.fair, arguments, args, kwargs)


def _filled(
    limit: AnyLimit,
    option: str,
    written: str | Callable[..., str],
    arguments: Mapping[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str:
    if not isinstance(written, str):
        return str(called(written, args, kwargs))
    try:
        return written.format_map(arguments)
    except Exception as error:  # a missing argument, one without that attribute, or one that cannot be formatted
        raise ConfigurationError(
            f"limit {limit.name!r}: {option}={shown(written)} cannot be filled from the arguments "
            f"{', '.join(map(str, arguments)) or '(none)'}: {shown(error)}"
        ) from error


def cost_of(limit: AnyLimit, arguments: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """The permits that the call takes; arguments as of :func:`key_of`."""
    cost: Any = limit.cost
    if callable(cost):
        cost = called(cost, args, kwargs)
    elif isinstance(cost, str):
        try:
            cost = arguments[cost]
        except KeyError:
            raise ConfigurationError(
                f"limit {limit.name!r}: cost={cost!r} is not among the arguments "
                f"{', '.join(map(str, arguments)) or '(none)'}"
            ) from None
    return check_cost(limit.name or "", cost, limit.most)
