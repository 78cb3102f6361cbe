"""Computes a limit's key and cost from the arguments of a call: by templates, arguments or callables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from string import Formatter
from typing import Any

from ..errors import ConfigurationError, shown
from .any_limit import AnyLimit, check_cost

__all__ = ["SHARED_KEY", "called", "cost_of", "key_of", "share_of"]

#: The key of the bucket of all calls without a key, with ``missing_key="shared"``.
SHARED_KEY = "(missing)"
_FORMATTER = Formatter()


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


def key_of(
    limit: AnyLimit,
    arguments: Mapping[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    missing_key: str = "error",
) -> str | None:
    """The bucket's key; ``""``: the limit has a single bucket; ``None``: the limit does not apply to the call.

    Exceptions of a user's callable are raised.

    Args:
        limit: the limit.
        arguments: of the call, by name.
        args, kwargs: the call's arguments as passed, for callables.
        missing_key: the choice of limits that make none.
    """
    if limit.key is None:
        return ""
    filled: str | None = None
    if isinstance(limit.key, str):
        missing = _missing(limit.key, arguments)
        if missing is None:
            filled = _filled(limit, "key", limit.key, arguments, args, kwargs)
    else:
        said, missing = called(limit.key, args, kwargs), "it returned None"
        if said is not None:
            filled = str(said)
    if filled is not None:
        # The shared bucket's key is not that of any call that has a key.
        return f"{filled}#" if filled.startswith(SHARED_KEY) else filled
    choice = limit.missing_key or missing_key
    if choice == "exempt":
        return None
    if choice == "shared":
        return SHARED_KEY
    raise _not_filled(limit, "key", arguments, f"{missing}; missing_key='exempt' and 'shared' allow that")


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
        raise _not_filled(limit, option, arguments, shown(error)) from error


def _not_filled(limit: AnyLimit, option: str, arguments: Mapping[str, Any], why: str) -> ConfigurationError:
    return ConfigurationError(
        f"limit {limit.name!r}: {option}={shown(getattr(limit, option))} cannot be filled from the arguments "
        f"{', '.join(map(str, arguments)) or '(none)'}: {why}"
    )


def _missing(template: str, arguments: Mapping[str, Any]) -> str | None:
    """What a call's arguments lack, or have as ``None``; ``None``: nothing."""
    for name, field in _fields(template):
        try:
            value = arguments[name]
            if field != name and value is not None:
                value, _ = _FORMATTER.get_field(field, (), arguments)
        except LookupError as error:
            return shown(error)
        except Exception:
            return None  # the error comes when the template is filled
        if value is None:
            return f"{field!r} is None"
    return None


@lru_cache(maxsize=1024)
def _fields(template: str) -> tuple[tuple[str, str], ...]:
    """The fields of a template: the argument's name, and the field as written."""
    written = [field for _, field, _, _ in _FORMATTER.parse(template) if field]
    return tuple([(re.split(r"[.\[]", field, maxsplit=1)[0], field) for field in written])


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
