"""The base class of limits, and the checks that they share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from string import Formatter
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import ConfigurationError, ImpossibleRequest, shown
from .share_weights import Weights

__all__ = ["MISSING_KEY", "AnyLimit", "check_cost", "check_quota"]

#: Values of ``missing_key``.
MISSING_KEY = ("error", "exempt", "shared")


def check_cost(name: str, cost: Any, most: int) -> int:
    """Check that a cost is a whole number of permits that the limit ``name`` can grant; returns it."""
    if not is_number(cost) or cost != int(cost) or cost < 1:
        raise ConfigurationError(
            f"limit {name!r}: cost={shown(cost)} is not a whole number of permits of at least 1; "
            "to charge fractions, multiply all numbers of the limit and every cost by the same factor"
        )
    if cost > most:
        raise ImpossibleRequest(name, int(cost), most)
    return int(cost)


class AnyLimit:
    """A resolved limit: a :class:`Limit` or a :class:`Concurrency`."""

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Any]]

        @property
        def name(self) -> str | None: ...
        @property
        def key(self) -> str | Callable[..., str] | None: ...
        @property
        def fair(self) -> str | Callable[..., str] | None: ...
        @property
        def weights(self) -> Mapping[str, float]: ...
        @property
        def cost(self) -> int | str | Callable[..., int]: ...
        @property
        def missing_key(self) -> str | None: ...
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
        def priority_reserve(self) -> Any: ...
        @property
        def shadow(self) -> bool: ...
        @property
        def max_parked(self) -> int | None: ...
        def wire(self, cost: int, leaves: int | None = None) -> tuple[str | int, ...]: ...


def check_quota(name: str, quota: AnyLimit, where: str) -> AnyLimit:
    """The limit as the quota ``name``. It may have no other name: pauses and displays go by the quota's name."""
    if quota.name not in (None, name):
        raise ConfigurationError(
            f"{where}: {quota!r} has another name, so its bucket would not be that of the quota {name!r}: "
            "leave name= out, or write the same in both places"
        )
    return quota


def is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def check_name_and_keys(label: str, name: Any, key: Any, fair: Any, weights: Any) -> Weights:
    """Check the options that limits share; returns the weights."""
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigurationError(f"{label}: name={shown(name)} must be a text that is not empty")
    check_template(label, "key", key)
    check_template(label, "fair", fair)
    if fair is None and weights:
        raise ConfigurationError(
            f"{label}: weights={shown(dict(weights) if isinstance(weights, Mapping) else weights)} are for keys that "
            "share the limit: name them with fair=, as in fair='{tenant_id}'"
        )
    return weights if isinstance(weights, Weights) else Weights(label, {} if weights is None else weights)


def check_max_parked(label: str, max_parked: Any) -> None:
    if max_parked is not None and (type(max_parked) is not int or not 1 <= max_parked < 2**53):
        raise ConfigurationError(
            f"{label}: max_parked={shown(max_parked)} must be a whole number of at least 1, or None: any number. "
            "A task that must not be parked has throttle='drop' or 'fail'"
        )


def check_missing_key(label: str, missing_key: Any, key: Any) -> None:
    if missing_key is None:
        return
    if missing_key not in MISSING_KEY:
        raise ConfigurationError(
            f"{label}: missing_key={shown(missing_key)} is not one of {', '.join(map(repr, MISSING_KEY))}"
        )
    if key is None:
        raise ConfigurationError(f"{label}: missing_key={missing_key!r} is for a limit with key=")


def check_shadow(label: str, shadow: Any) -> None:
    if not isinstance(shadow, bool):
        raise ConfigurationError(f"{label}: shadow={shown(shadow)} must be True or False")


def check_template(label: str, option: str, value: Any) -> None:
    """Check a template over a call's arguments, or a callable that gets them."""
    if value is not None and not isinstance(value, str) and not callable(value):
        raise ConfigurationError(
            f"{label}: {option}={shown(value)} must be a template such as 'tenant:{{tenant_id}}', or a callable"
        )
    if isinstance(value, str):
        _check_template(label, option, value)


def template_fields(template: str) -> list[str]:
    """The argument names that a key template uses: ``"a:{b.c}:{d}"`` uses ``b`` and ``d``."""
    parts = (field for _, field, _, _ in Formatter().parse(template) if field is not None)
    return [re.split(r"[.\[]", field, maxsplit=1)[0] for field in parts]


def _check_template(label: str, option: str, template: str) -> None:
    try:
        fields = template_fields(template)
    except ValueError as error:
        raise ConfigurationError(f"{label}: {option}={shown(template)} is not a template: {error}") from None
    for name in fields:
        if not name.isidentifier():
            raise ConfigurationError(
                f"{label}: {option}={shown(template)} must name the task's arguments, as in 'tenant:{{tenant_id}}', "
                f"not {{{name[:40]}}}"
            )
