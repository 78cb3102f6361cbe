"""Reads a limit as users write it: a rate, a quota's name, a mapping of arguments, or a limit object."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from ..errors import ConfigurationError, shown
from .any_limit import AnyLimit, check_quota
from .concurrency import Concurrency
from .rate_limit import Limit

__all__ = ["limit_of", "named", "quotas_of"]


def limit_of(spec: Any, quotas: Mapping[str, AnyLimit], where: str) -> AnyLimit:
    """Read one limit.

    Args:
        spec: the limit as written.
        quotas: quotas by name.
        where: names the setting or option in errors.
    """
    if isinstance(spec, (Limit, Concurrency)):
        return spec
    try:
        if isinstance(spec, Mapping):
            _check_kind(spec)
            return Concurrency(**spec) if "limit" in spec else Limit(**spec)
        if isinstance(spec, str):
            return quotas[spec] if spec in quotas else Limit(spec)
    except TypeError as error:
        raise ConfigurationError(f"{where}: {shown(dict(spec))} does not describe a limit: {error}") from None
    except ConfigurationError as error:
        if isinstance(spec, str) and not spec[:1].isdigit():
            close = difflib.get_close_matches(spec, quotas, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            known = ", ".join(sorted(quotas)) or "none is defined in ratelimit_quotas"
            raise ConfigurationError(f"{where}: there is no quota {spec!r} (quotas: {known}){hint}") from None
        raise ConfigurationError(f"{where}: {error}") from None
    raise ConfigurationError(
        f"{where}: {shown(spec)} is not a limit: give a rate such as '100/s', a quota's name, a Limit, a Concurrency, "
        "or a list of those"
    )


def _check_kind(spec: Mapping[Any, Any]) -> None:
    """Reject an option of a :class:`Limit` where ``limit`` makes a :class:`Concurrency`, and the other way round."""
    rate, leases = ({each.name for each in fields(kind)} for kind in (Limit, Concurrency))
    others = rate - leases if "limit" in spec else leases - rate
    for option, value in spec.items():
        if option in others and "limit" in spec:
            raise ConfigurationError(f"{option}={shown(value)} is for a rate, and limit= makes a Concurrency")
        if option in others:
            raise ConfigurationError(f"{option}={shown(value)} is for a Concurrency, and without limit= this is a rate")


def named(limits: Iterable[AnyLimit], owner: str) -> tuple[AnyLimit, ...]:
    """The limits, each once; a limit without a name is named after its ``owner``: ``owner``, ``owner#2``, …"""
    result: dict[AnyLimit, None] = {}
    unnamed = 0
    for limit in dict.fromkeys(limits):
        if limit.name is None:
            unnamed += 1
            limit = replace(limit, name=owner if unnamed == 1 else f"{owner}#{unnamed}")
        result[limit] = None
    return tuple(result)


def quotas_of(written: Mapping[str, Any] | None) -> dict[str, AnyLimit]:
    """Read the quotas of a limiter: each as in ``ratelimit_quotas``."""
    if written is None:
        return {}
    if not isinstance(written, Mapping):
        raise ConfigurationError(f"quotas={shown(written)} must be a mapping of names to limits")
    quotas = {}
    for name, spec in written.items():
        where = f"quotas[{name!r}]"
        quotas[name] = check_quota(name, limit_of(spec, {}, where), where)
    return quotas
