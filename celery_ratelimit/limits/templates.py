"""What limits read from the arguments of a call: keys and costs, by templates, arguments or callables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from string import Formatter
from typing import Any

from ..errors import ConfigurationError, shown
from .any_limit import AnyLimit, check_cost, template_fields

__all__ = [
    "SHARED_KEY",
    "Cost",
    "Key",
    "arguments_of",
    "called",
    "check_arguments",
    "check_names",
    "cost_of",
    "key_of",
    "share_of",
    "signature_of",
    "templates_of",
]

#: A template over a call's arguments, or a callable that gets them.
Key = str | Callable[..., str]
#: A number of permits, the name of the argument that holds it, or a callable that gets the arguments.
Cost = int | str | Callable[..., int]
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


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # a callable without a signature
        return None


def arguments_of(signature: inspect.Signature | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments by name, with defaults."""
    if signature is None:
        return dict(kwargs)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments.update(arguments.pop(name))
    return arguments


def templates_of(limit: AnyLimit) -> list[tuple[str, str]]:
    """The templates over arguments that a limit has, with the names of their options."""
    options = (("key", limit.key), ("fair", limit.fair))
    return [(option, written) for option, written in options if isinstance(written, str)]


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
    named = {}
    for option, template in templates_of(limit):
        if option == "key" and (key is not None or (limit.missing_key or missing_key) != "error"):
            continue
        named.update(dict.fromkeys(template_fields(template), f"{option}={template!r}"))
    if isinstance(limit.cost, str):
        named[limit.cost] = f"cost={limit.cost!r}"
    check_names({name: f"{setting} of limit {limit.name!r}" for name, setting in named.items()}, signature, where)


def check_names(settings: Mapping[str, str], signature: inspect.Signature | None, where: str) -> None:
    """Check that the task or function takes every argument that a setting names; ``settings``: by argument."""
    if signature is None or any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values()):
        return
    for name, setting in settings.items():
        if name not in signature.parameters:
            raise ConfigurationError(
                f"{where}: {setting} names the argument {name!r}, which the {where.split()[0]} does not take "
                f"(arguments: {', '.join(signature.parameters) or 'none'})"
            )
