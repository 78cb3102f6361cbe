"""What every limit is, and what is checked of each."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from string import Formatter
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import ConfigurationError, ImpossibleRequest, shown

__all__ = ["AnyLimit", "check_cost", "check_quota"]


def check_cost(name: str, cost: Any, most: int) -> int:
    """A cost as a whole number of permits that the limit ``name`` can grant; raises what is wrong with it."""
    if not is_number(cost) or cost != int(cost) or cost < 1:
        raise ConfigurationError(
            f"limit {name!r}: cost={shown(cost)} is not a whole number of permits of at least 1; "
            "to charge fractions, scale the rate, the burst and every cost by the same factor"
        )
    if cost > most:
        raise ImpossibleRequest(name, int(cost), most)
    return int(cost)


class AnyLimit:
    """What may stand in ``limits=``, once it has been read: a :class:`Limit` or a :class:`Concurrency`."""

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Any]]

        @property
        def name(self) -> str | None: ...
        @property
        def key(self) -> str | Callable[..., str] | None: ...
        @property
        def cost(self) -> int | str | Callable[..., int]: ...
        @property
        def per_worker(self) -> bool: ...
        @property
        def algorithm(self) -> str: ...
        @property
        def method(self) -> str: ...
        @property
        def interval(self) -> float: ...
        @property
        def size(self) -> int: ...
        @property
        def most(self) -> int: ...
        @property
        def reserve(self) -> Any: ...
        def wire(self, cost: int, leaves: int | None = None) -> tuple[str | int, ...]: ...


def check_quota(name: str, quota: AnyLimit, where: str) -> AnyLimit:
    """A limit as the quota ``name``: under one name alone, or what is paused and shown would not be what is asked."""
    if isinstance(quota, AnyLimit) and quota.name not in (None, name):
        raise ConfigurationError(
            f"{where}: {quota!r} has another name, so its bucket would not be that of the quota {name!r}: "
            "leave name= out, or write the same in both places"
        )
    return quota


def is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def check_name_and_key(who: str, name: Any, key: Any, what: str = "key") -> None:
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigurationError(f"{who}: name={shown(name)} must be a text that is not empty")
    if key is not None and not isinstance(key, str) and not callable(key):
        raise ConfigurationError(
            f"{who}: {what}={shown(key)} must be a template such as 'tenant:{{tenant_id}}', or a callable"
        )
    if isinstance(key, str):
        _check_template(who, key, what)


def template_fields(template: str) -> list[str]:
    """The argument names that a key template uses: ``"a:{b.c}:{d}"`` uses ``b`` and ``d``."""
    parts = (field for _, field, _, _ in Formatter().parse(template) if field is not None)
    return [re.split(r"[.\[]", field, maxsplit=1)[0] for field in parts]


def _check_template(who: str, template: str, what: str) -> None:
    try:
        fields = template_fields(template)
    except ValueError as error:
        raise ConfigurationError(f"{who}: {what}={shown(template)} is not a template: {error}") from None
    for name in fields:
        if not name.isidentifier():
            raise ConfigurationError(
                f"{who}: {what}={shown(template)} must name the task's arguments, as in 'tenant:{{tenant_id}}', not "
                f"{{{name[:40]}}}"
            )
