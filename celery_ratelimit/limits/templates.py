"""What limits read from the arguments of a call: keys and costs, by templates, arguments or callables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from string import Formatter
from typing import Any

from ..errors import ConfigurationError, shown
from .any_limit import AnyLimit, check_cost
from .argument_parts import missing_part, path_of, read

__all__ = [
    "SHARED_KEY",
    "Cost",
    "Key",
    "arguments_of",
    "called",
    "check_arguments",
    "check_names",
    "cost_of",
    "fields_of",
    "filled",
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
    key: str | None = None
    if isinstance(limit.key, str):
        missing = _missing(limit.key, arguments)
        if missing is None:
            key = _filled(limit, "key", limit.key, arguments, args, kwargs)
    else:
        said, missing = called(limit.key, args, kwargs), "it returned None"
        if said is not None:
            key = "".join(str(said))
    if key is not None:
        # The shared bucket's key is not that of any call that has a key.
        return f"{key}#" if key.startswith(SHARED_KEY) else key
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
        return "".join(str(called(written, args, kwargs)))  # no subclass, which may not be pickled
    try:
        return filled(written, arguments)
    except Exception as error:  # a missing argument, one without that part, or one that cannot be formatted
        raise _not_filled(limit, option, arguments, shown(error)) from error


def _not_filled(limit: AnyLimit, option: str, arguments: Mapping[str, Any], why: str) -> ConfigurationError:
    return ConfigurationError(
        f"limit {limit.name!r}: {option}={shown(getattr(limit, option))} cannot be filled from the arguments "
        f"{', '.join(map(str, arguments)) or '(none)'}: {why}"
    )


def _missing(template: str, arguments: Mapping[str, Any]) -> str | None:
    """What a call's arguments lack, or have as ``None``; ``None``: nothing."""
    for field in fields_of(template):
        try:
            value = read(arguments, path_of(field))
        except LookupError as error:
            return shown(error)
        except Exception:
            return None  # the error comes when the template is filled
        if value is None:
            return f"{field!r} is None"
    return None


def filled(template: str, arguments: Mapping[str, Any]) -> str:
    """The template with the parts of the arguments that it names. Exceptions of reading or formatting are raised."""
    positional, fields = _compiled(template)
    return positional.format(*[read(arguments, path_of(field)) for field in fields], **arguments)


def fields_of(template: str) -> tuple[str, ...]:
    """The parts of arguments that a template names: ``"a:{b.c}:{d}"`` names ``b.c`` and ``d``."""
    return _compiled(template)[1]


@lru_cache(maxsize=1024)
def _compiled(template: str) -> tuple[str, tuple[str, ...]]:
    """A template with positions in place of its fields, and the fields."""
    positional, fields = "", []
    for literal, field, spec, conversion in Formatter().parse(template):
        positional += literal.replace("{", "{{").replace("}", "}}")
        if field:
            fields.append(field)
            positional += "{" + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "") + "}"
    return positional, tuple(fields)


def cost_of(limit: AnyLimit, arguments: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """The permits that the call takes; arguments as of :func:`key_of`."""
    cost: Any = limit.cost
    if callable(cost):
        cost = called(cost, args, kwargs)
    elif isinstance(cost, str):
        try:
            cost = read(arguments, path_of(cost))
        except Exception as error:
            raise ConfigurationError(
                f"limit {limit.name!r}: cost={cost!r} is not among the arguments "
                f"{', '.join(map(str, arguments)) or '(none)'}: {shown(error)}"
            ) from error
    return check_cost(limit.name or "", cost, limit.most)


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """The signature, with annotations as types where all of them can be found."""
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # an annotation that is imported for type checkers alone
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
    *,
    models: bool = True,
) -> None:
    """Check that the task or function takes every argument that a key or cost names, with the parts that are named.

    But for the key's if the key may be missing, or is given as ``key``. See :func:`check_names`.
    """
    named = {}
    for option, template in templates_of(limit):
        if option == "key" and (key is not None or (limit.missing_key or missing_key) != "error"):
            continue
        named.update(dict.fromkeys(fields_of(template), f"{option}={template!r}"))
    if isinstance(limit.cost, str):
        named[limit.cost] = f"cost={limit.cost!r}"
    settings = {field: f"{setting} of limit {limit.name!r}" for field, setting in named.items()}
    check_names(settings, signature, where, models=models)


def check_names(settings: Mapping[str, str], signature: inspect.Signature | None, where: str, *, models: bool) -> None:
    """Check that the task or function takes every argument that a setting names, and that its type has the parts.

    Args:
        settings: by what they name: ``order``, ``order.tenant_id``.
        models: whether the arguments of a task are models where it is annotated so: else they may be dicts.
    """
    if signature is None:
        return
    takes_any = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    for field, setting in settings.items():
        path = path_of(field)
        parameter = signature.parameters.get(path[0])
        if parameter is None and not takes_any:
            raise ConfigurationError(
                f"{where}: {setting} names the argument {path[0]!r}, which the {where.split()[0]} does not take "
                f"(arguments: {', '.join(signature.parameters) or 'none'})"
            )
        if parameter is not None and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            missing = missing_part(parameter.annotation, path, models=models)
            if missing is not None:
                raise ConfigurationError(f"{where}: {setting} names {field!r}, and {missing}")
