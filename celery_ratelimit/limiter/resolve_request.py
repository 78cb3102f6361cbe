"""Resolves a call's limits (names or objects), keys, costs and arguments into limit requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ..errors import ConfigurationError, shown
from ..limits.any_limit import AnyLimit, check_cost
from ..limits.concurrency import Concurrency
from ..limits.key_rates import limit_of_key
from ..limits.parse_limit import quotas_of
from ..limits.rate_limit import Limit
from ..limits.templates import cost_of, key_of
from ..name_suggestions import IMPORT_HINT, near, no_such_limit
from ..store.keys import short
from .argument_checks import check_filled
from .limit_request import LimitRequest, Limits, costs_for, each_bucket_once, own_key, with_priority

__all__ = ["RequestResolver", "several"]


class RequestResolver:
    """Resolves the calls of one limiter.

    Args:
        quotas: limits by name, so that calls can name them.

    Attributes:
        quotas: the same, as limits.
        others: further limits by name: of an app's tasks and queues.
        goes_by: returns whether the lowest priority goes first; ``None``: not known.
        missing_key: the choice of limits that make none.
    """

    def __init__(self, quotas: Mapping[str, Any] | None) -> None:
        self.quotas: dict[str, AnyLimit] = quotas_of(quotas)
        self.others: Callable[[], Mapping[str, AnyLimit]] = dict
        self.goes_by: Callable[[], bool | None] = lambda: None
        self.missing_key = "error"
        self._named = lru_cache(maxsize=1024)(_named)
        self._demand = lru_cache(maxsize=1024, typed=True)(_demand)

    def demands(
        self,
        limits: Limits,
        key: str | None,
        cost: int | None,
        args: Mapping[str, Any] | None = None,
        priority: int | None = None,
        *,
        of_each: bool = False,
    ) -> tuple[LimitRequest, ...]:
        return self.of_priority(self.plain(limits, key, cost, args, of_each=of_each), priority)

    def of_priority(self, demands: tuple[LimitRequest, ...], priority: int | None) -> tuple[LimitRequest, ...]:
        """The limit requests for a call of that priority; ``None``: of a message that has none.

        Raises:
            ConfigurationError: an invalid priority, or a limit has a reserve and the order of priorities is not known.
        """
        if priority is not None and (
            isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 255
        ):
            raise ConfigurationError(
                f"priority={shown(priority)} must be a number from 0 to 255, as messages are sent with"
            )
        reserved = [demand.limit for demand in demands if demand.limit.priority_reserve is not None]
        if not reserved:
            return demands
        lowest = self.goes_by()
        if lowest is None:
            raise ConfigurationError(
                f"limit {reserved[0].name!r} has priority_reserve={reserved[0].priority_reserve!r}, and "
                "this limiter does not know which priorities go first at your broker: make it with "
                "Limiter.from_app(app), or say it: lowest_first=True where the broker is a Redis, lowest_first=False "
                "where it is RabbitMQ"
            )
        return with_priority(demands, priority or 0, lowest_first=lowest)

    def plain(
        self,
        limits: Limits,
        key: str | None,
        cost: int | None,
        args: Mapping[str, Any] | None,
        *,
        of_each: bool = False,
    ) -> tuple[LimitRequest, ...]:
        """The limit requests of a call, where its priority does not matter.

        With ``args``, each limit takes its key and cost from the arguments, as a task's do, unless they are given.
        ``cost`` is of every limit if ``of_each``; else a :class:`Concurrency` beside rates keeps its own.
        """
        chosen = _some(self.resolved(limits), key)
        if isinstance(key, str):
            key = short(key)
        asked: list[tuple[AnyLimit, str | None, int | None]]
        asked = [
            (limit_of_key(limit, key), key, own)
            for limit, own in zip(chosen, costs_for(chosen, cost, of_each), strict=True)
        ]
        if args is not None:
            asked = self._from_arguments(asked, args)
        try:
            return each_bucket_once([self._demand(*each) for each in asked])
        except TypeError:  # a key or a cost that is not hashable is invalid: the checks say so
            return each_bucket_once([_demand(*each) for each in asked])

    def _from_arguments(
        self, asked: Sequence[tuple[AnyLimit, str | None, int | None]], args: Mapping[str, Any]
    ) -> list[tuple[AnyLimit, str | None, int | None]]:
        """The limits that apply to a call with these arguments, each with its key and cost."""
        if not isinstance(args, Mapping) or not all(isinstance(name, str) for name in args):
            raise ConfigurationError(
                f"args={shown(args)} must be a mapping of names to values, such as {{'tenant_id': 7}}"
            )
        applied: list[tuple[AnyLimit, str | None, int | None]] = []
        for limit, key, cost in asked:
            if key is None and limit.key is not None:
                filled = key_of(limit, args, (), args, self.missing_key)
                if filled is None:
                    continue
                key = short(filled)
                limit = limit_of_key(limit, key)
            applied.append((limit, key, cost_of(limit, args, (), args) if cost is None else cost))
        return applied

    def resolved(self, limits: Limits) -> tuple[AnyLimit, ...]:
        """The limits as a tuple, with names resolved."""
        return tuple([self.quota(each) if isinstance(each, str) else each for each in several(limits)])

    def kept_by(
        self, limits: Limits, key: str | None, key_template: str | Callable[..., str] | None
    ) -> tuple[AnyLimit, ...]:
        """The limits with ``key_template``, a template or a callable, in place of their own keys.

        Limits without keys stay single buckets. If no limit has a key, the template applies to the :class:`Limit`
        objects, and not to quotas, which other callers share. A filled ``key`` needs a limit that has keys.
        """
        resolved = self.resolved(limits)
        if key is not None:
            check_filled(key, key_template)
            return _some(resolved, key)
        if key_template is None:
            return resolved
        chosen = [limit.key is not None for limit in resolved]
        if not any(chosen):
            chosen = [not isinstance(each, str) for each in several(limits)]
        if resolved and not any(chosen):
            raise _not_kept_by_key(resolved, key_template)
        each = zip(resolved, chosen, strict=True)
        return tuple([replace(limit, key=key_template) if mine else limit for limit, mine in each])

    def quota(self, name: str) -> AnyLimit:
        limit = self._found(name)
        if limit is None:
            known = ", ".join(sorted(self.quotas)) or "none is defined"
            close = near(name, {*self.quotas, *self.others()})
            raise ConfigurationError(
                f"there is no quota named {shown(name)} (quotas: {known}){f'; {close}' if close else ''}"
            )
        if not isinstance(limit, AnyLimit):
            raise ConfigurationError(f"quota {name!r} is {shown(limit)}: add a Limit or a Concurrency, as Limit('5/s')")
        return limit if limit.name is not None else self._named(limit, name)

    def _found(self, name: str) -> AnyLimit | None:
        return self.quotas.get(name) or self.others().get(name)

    def code(self, name: str | AnyLimit, key: str | None, *, force: bool) -> tuple[str, AnyLimit | None]:
        """The name of a limit, and the limit as the code here has it.

        Raises:
            ConfigurationError: the limit has no name, or no such bucket.
        """
        code: AnyLimit | None
        if isinstance(name, str):
            code = self._found(name)
        elif not isinstance(name, AnyLimit):
            raise _no_limit(name)
        elif name.name is None:
            raise ConfigurationError(f"{name!r} has no name, so nothing can be stored for it: give it name='…'")
        else:
            code, name = name, name.name
        if not name:
            raise ConfigurationError("name='' is no limit's")
        if key is not None and not isinstance(key, str):
            raise ConfigurationError(f"limit {name!r}: key={shown(key)} must be a text")
        if code is not None and key is not None and code.key is None and not code.per_worker and not force:
            raise _not_kept_by_key([replace(code, name=name)], key)
        return name, code

    def unknown(self, name: str) -> ConfigurationError:
        hint = "" if self.others is dict else IMPORT_HINT  # an app has limits of tasks
        return ConfigurationError(no_such_limit(name, {*self.quotas, *self.others()}) + hint)

    def to_reset(
        self, limits: Limits, key: str | None, args: Mapping[str, Any] | None, *, force: bool
    ) -> tuple[LimitRequest, ...]:
        """The limit requests to reset. With ``force``, an unknown name stands for any limit with such a bucket."""
        if not force:
            return self.plain(limits, key, 1, args, of_each=True)
        known: list[AnyLimit] = []
        unknown: list[LimitRequest] = []
        for each in several(limits):
            name, code = self.code(each, key, force=True)
            if code is None or (key is not None and code.key is None):
                unknown += [LimitRequest(some, name, short(key or "")) for some in (Limit("1/s"), Concurrency(1))]
            else:
                known.append(code if code.name is not None else replace(code, name=name))
        return (*(self.plain(known, key, 1, args, of_each=True) if known else ()), *unknown)


def several(limits: str | AnyLimit | Iterable[str | AnyLimit]) -> tuple[str | AnyLimit, ...]:
    """One limit or several, each a name or a limit, as a tuple."""
    if isinstance(limits, (str, AnyLimit)):
        return (limits,)
    if not isinstance(limits, Iterable):
        raise _no_limit(limits)
    return tuple(limits)


def _named(limit: AnyLimit, name: str) -> AnyLimit:
    return replace(limit, name=name)


def _no_limit(value: Any) -> ConfigurationError:
    return ConfigurationError(f"{shown(value)} is not a limit: pass a quota's name, a Limit, or several of them")


def _some(limits: tuple[AnyLimit, ...], key: str | None) -> tuple[AnyLimit, ...]:
    """Check the limits: at least one, each a limit, and one of them with keys if ``key`` is given."""
    if not limits:
        raise ConfigurationError("no limit was named: pass a quota's name, a Limit, or several of them")
    for limit in limits:
        if not isinstance(limit, AnyLimit):
            raise _no_limit(limit)
    if key is not None and all(limit.key is None for limit in limits):
        raise _not_kept_by_key(limits, key)
    return limits


def _not_kept_by_key(limits: Sequence[AnyLimit], key: Any) -> ConfigurationError:
    names = ", ".join(repr(limit.name) for limit in limits)
    return ConfigurationError(
        f"limit {names} is not kept by key, so there is no bucket {shown(key)} of it: leave key= out, or give the "
        "limit a key, such as key='tenant:{tenant_id}'"
    )


def _demand(limit: AnyLimit, key: str | None, cost: int | None) -> LimitRequest:
    name = limit.name
    if name is None:
        raise ConfigurationError(f"{limit!r} has no name, so it has no bucket in the store: give it name='…'")
    if limit.key is None:
        key = None  # this limit is a single bucket, whatever the others are
    elif key is None:
        raise ConfigurationError(
            f"limit {name!r} is kept by key: pass key='…', the bucket as it is shown, or args={{…}}, from which it "
            f"takes its own ({limit.key!r})"
        )
    elif not isinstance(key, str):
        raise ConfigurationError(f"limit {name!r}: key={shown(key)} must be a text")
    if cost is not None:
        cost = check_cost(name, cost, limit.most)
    elif isinstance(limit.cost, int):
        cost = limit.cost
    else:
        raise ConfigurationError(f"limit {name!r} takes its cost from a task's arguments: pass cost=… or args={{…}}")
    return LimitRequest(limit, name, own_key(limit, key or ""), cost)
