"""Parts of a call's arguments, such as ``order.tenant_id`` and ``orders[0]``; and what annotations say about them.

A message in JSON has a dict where the task has an object, so both are read in the same way, by a dot or by brackets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from inspect import isroutine
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

__all__ = ["missing_part", "path_of", "read"]


@lru_cache(maxsize=1024)
def path_of(field: str) -> tuple[str, ...]:
    """The argument's name and the names of the parts: ``"orders[0].id"`` is ``("orders", "0", "id")``."""
    return tuple(item or name for item, name in re.findall(r"\[([^\]]*)\]|\.?([^.\[]+)", field))


def read(arguments: Mapping[str, Any], path: Sequence[str]) -> Any:
    """The value of a path.

    Raises:
        LookupError: the argument, an item or a key is missing, or a value on the way is ``None``.
        Exception: such a value has no parts of that name.
    """
    value = arguments[path[0]]
    for name in path[1:]:
        if value is None:
            raise LookupError(f"None has no {name!r}")
        value = _part(value, name)
    return value


def _part(value: Any, name: str) -> Any:
    is_mapping = isinstance(value, Mapping)
    if name.isdecimal() and not (is_mapping and name in value):
        return value[int(name)]
    try:
        has_items = is_mapping or (hasattr(value, "__getitem__") and not hasattr(value, name))
        part = None if has_items else getattr(value, name)
    except LookupError as error:  # of a property: no part is missing
        raise RuntimeError(f"{name!r} has raised {error!r}") from error
    if isroutine(part):  # its text would be another one for each value
        raise TypeError(f"{name!r} is a method")
    return value[name] if has_items else part


def missing_part(annotation: Any, path: Sequence[str], *, models: bool) -> str | None:
    """What values of this annotation lack of the parts of ``path``; ``None``: nothing, or that is not known.

    Args:
        annotation: of the argument.
        path: as of :func:`path_of`.
        models: whether the arguments are pydantic's models. Else they are dicts, which may have aliases as keys.
    """
    for name in path[1:]:
        annotation = _without_none(annotation)
        container, inner = get_origin(annotation), get_args(annotation)
        if inner and container in (dict, Mapping):
            annotation = inner[1]
        elif inner and container in (list, Sequence) and name.isdecimal():
            annotation = inner[0]
        elif not _is_declared(annotation, models=models):
            return None
        else:
            try:
                fields = get_type_hints(annotation)
            except Exception:  # an annotation that is imported for type checkers alone
                return None
            if name not in fields and not hasattr(annotation, name):
                return f"{annotation.__name__} has no {name!r} (fields: {', '.join(fields)})"
            annotation = fields.get(name)
    return None


def _is_declared(annotation: Any, *, models: bool) -> bool:
    """Whether a class declares all fields of its values: a dataclass, a TypedDict, one of pydantic's ``models``."""
    if hasattr(annotation, "model_fields"):
        config = getattr(annotation, "model_config", {})
        return models and config.get("extra") != "allow" and not hasattr(annotation, "__getitem__")
    return hasattr(annotation, "__dataclass_fields__") or hasattr(annotation, "__total__")


def _without_none(annotation: Any) -> Any:
    """The annotation without ``None``, and without what ``Annotated`` adds."""
    if get_origin(annotation) is Annotated:
        return _without_none(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        others = [each for each in get_args(annotation) if each is not NoneType]
        return _without_none(others[0]) if len(others) == 1 else None
    return annotation
