"""The limits of a message, by its task's class, name and queue; and its limit requests."""

from __future__ import annotations

import inspect
import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from .._celery import Models, is_on_sqs, models_of
from .._celery.message_fields import lowest_first
from ..errors import ConfigurationError, shown
from ..limiter.call_requests import demands_of
from ..limiter.limit_request import LimitRequest, with_priority
from ..limits.any_limit import AnyLimit, template_fields
from ..limits.concurrency import Concurrency
from ..limits.parse_limit import named
from ..limits.templates import check_arguments, signature_of, templates_of
from .app_attributes import kept
from .options import THROTTLES, Policy, alike_of, has_options, policy_of, refuse_forgotten
from .settings import Settings, limits_of, settings_of

__all__ = [
    "THROTTLES",
    "Buckets",
    "Plan",
    "Policy",
    "goes_by",
    "is_built_in",
    "is_meant",
    "make_plan",
    "node_of",
    "plan_of",
]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Celery's own tasks without which a chord, or a task that was replaced by a group, never ends.
_NEVER_GIVEN_UP = ("celery.chord_unlock", "celery.accumulate")

#: A message's buckets, in order: names and keys. Messages with the same buckets wait in one queue.
Buckets = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Plan:
    """The limits of one task on one queue; makes limit requests from a message's arguments."""

    limits: tuple[AnyLimit, ...]
    policy: Policy
    signature: inspect.Signature | None
    fixed: tuple[LimitRequest, ...] | None
    node: str
    lowest_first: bool = True  # of priorities, at the app's broker
    missing_key: str = "error"  # of limits that make no choice
    models: Models | None = None  # of a task whose arguments are models, and dicts in its messages

    @cached_property
    def leased(self) -> bool:
        """Whether a task holds a lease while it runs."""
        return any(isinstance(limit, Concurrency) for limit in self.limits)

    @cached_property
    def reserves(self) -> bool:
        """Whether a message's priority matters, because a limit has a reserve."""
        return any(limit.priority_reserve is not None for limit in self.limits)

    @cached_property
    def has_breaker(self) -> bool:
        """Whether the ends of tasks matter, because a limit has a breaker."""
        return any(getattr(limit, "breaker", None) is not None for limit in self.limits)

    @cached_property
    def parks(self) -> bool:
        """Whether a throttled task may be parked. A leaky bucket with a capacity is a queue itself."""
        is_queue = any(getattr(limit, "capacity", None) is not None for limit in self.limits)
        return self.policy.throttle == "retry" and not is_queue

    @cached_property
    def waiting(self) -> Plan:
        """The same plan for a store that is full: throttled tasks stay at the broker."""
        return replace(self, policy=replace(self.policy, throttle="wait"))

    def alone(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The deduplication key of a call, of which one waits at a time; empty: all calls may wait.

        Exceptions of a user's callable are raised.
        """
        if self.policy.coalesce is None or not self.parks:
            return ""
        if self.models is not None and self.policy.coalesce_key is not None:
            args, kwargs = self.models(args, kwargs)
        return self.policy.coalesce[0] + alike_of(name, self.policy.coalesce_key, self.signature, args, kwargs)

    @property
    def longest_pause(self) -> float:
        """Most seconds until a queue acquires again: a lease that becomes free elsewhere may not be announced."""
        return 0.25 if self.leased else float("inf")

    @cached_property
    def _fixed_buckets(self) -> Buckets:
        return tuple((demand.name, demand.key) for demand in self.fixed or ())

    def buckets(self, demands: tuple[LimitRequest, ...]) -> Buckets:
        """The buckets of these limit requests. Requests that may use more of a reserve wait in a queue of their own."""
        if demands is self.fixed:  # never with a reserve
            return self._fixed_buckets
        buckets = tuple((each.name, each.key) for each in demands)
        return (*buckets, ("", str([each.leaves for each in demands]))) if self.reserves else buckets

    def demands(self, args: Sequence[Any], kwargs: Mapping[str, Any], priority: int = 0) -> tuple[LimitRequest, ...]:
        """The limit requests of a call with these arguments, for a message of that priority.

        Exceptions of a user's callable are raised.
        """
        demands = self.fixed
        if demands is None:
            args, kwargs = self.models(args, kwargs) if self.models is not None else (args, kwargs)
            demands = demands_of(self.limits, self.signature, args, kwargs, self.node, missing_key=self.missing_key)
        return with_priority(demands, priority, lowest_first=self.lowest_first) if self.reserves else demands


def node_of(app: Any, hostname: str | None = None) -> str:
    """The node that has its own buckets under ``per_worker``: the worker, once it is known, else this machine."""
    node: str = kept(app, "node", lambda: hostname or socket.gethostname())
    return node


def goes_by(app: Any) -> bool:
    """Whether the lowest priority goes first at the broker of ``app``."""
    lowest: bool = kept(app, "lowest first", lambda: lowest_first(app))
    return lowest


def plan_of(task: Any, queue: str) -> Plan | None:
    """The plan of ``task`` for messages from ``queue``, made once for each process; see :func:`make_plan`."""
    plans: dict[tuple[str, str], Plan | None] = kept(task.app, "plans", dict)
    known = (task.name, queue)
    if known not in plans:
        plans[known] = make_plan(task, queue, settings_of(task.app))
    return plans[known]


def make_plan(task: Any, queue: str, settings: Settings) -> Plan | None:
    """The plan of ``task`` (a Celery task) for messages from ``queue``; ``None`` if nothing limits it.

    Raises:
        ConfigurationError: an invalid option or limit; names the task.
    """
    where = f"task {task.name!r}"
    own = getattr(task, "limits", None)
    limits: list[AnyLimit] = [*limits_of(own, settings.quotas, where)] if own is not None else []
    for pattern, matching in settings.tasks:
        if is_meant(pattern, task.name):
            limits += matching
    limits = [*named(limits, task.name), *settings.queues.get(queue, ())]
    if not limits:
        refuse_forgotten(task, where)
        if settings.queues or has_options(task):  # it may come from a limited queue
            policy_of(task, (), where)
        return None
    signature, models = signature_of(task.run), models_of(task)
    # A task of Celery's own that comes by a limited queue has no tenant: celery.chord_unlock.
    missing_key = "exempt" if is_built_in(task.name) else settings.missing_key
    for limit in limits:
        _check_key(limit, where)
        check_arguments(limit, signature, where, missing_key, models=models is not None)
        if limit.priority_reserve is not None:
            limit.priority_reserve.check(where, limit.name, lowest_first=goes_by(task.app))
    policy = policy_of(task, limits, where)
    for limit in limits if policy.throttle == "wait" else ():
        if limit.fair is not None:
            raise ConfigurationError(
                f"{where}: throttle='wait' leaves what waits in the broker's queue, which has an order of its own, so "
                f"fair={shown(limit.fair)} of limit {limit.name!r} would do nothing: take throttle='retry', or leave "
                "fair= out"
            )
    if task.name in _NEVER_GIVEN_UP:
        policy = replace(policy, throttle=policy.throttle if policy.waits else "retry", overflow=queue)
    if queue == policy.overflow:
        policy = replace(policy, max_wait=None)  # in its overflow queue a task waits, however long
    if policy.coalesce and not Plan(tuple(limits), policy, signature, None, "").parks:
        raise ConfigurationError(
            f"{where}: coalesce={policy.coalesce!r} is about tasks that wait in the store, and a leaky bucket with a "
            "capacity is a queue by itself: leave one of the two out"
        )
    if policy.throttle == "retry" and queue.endswith(".fifo") and is_on_sqs(task.app):
        policy = replace(policy, throttle="wait")  # parked, its message would let the next one of its group run
    fixed, node = None, node_of(task.app)
    if all(limit.key is limit.fair is None and isinstance(limit.cost, int) for limit in limits):
        fixed = demands_of(limits, None, (), {}, node)
    lowest = any(limit.priority_reserve is not None for limit in limits) and goes_by(task.app)
    return Plan(tuple(limits), policy, signature, fixed, node, lowest, missing_key, models)


def is_meant(pattern: str, name: str) -> bool:
    """Whether a name or pattern of ``ratelimit_tasks`` matches the task of this name."""
    return pattern == name or (fnmatchcase(name, pattern) and not is_built_in(name))


def is_built_in(name: str) -> bool:
    """Whether a task is Celery's own (``celery.chord_unlock``, ``celery.chunks``, …): no pattern matches it."""
    return name.startswith("celery.")


def _check_key(limit: AnyLimit, where: str) -> None:
    """Reject a task's key that names no argument: it would be the same for every call."""
    for option, template in templates_of(limit):
        if not template_fields(template):
            named = template if template.isidentifier() else "tenant_id"
            raise ConfigurationError(
                f"{where}: {option}={shown(template)} of limit {limit.name!r} is the same for every call: name the "
                f"task's arguments in braces, {option}={'{' + named + '}'!r}, or leave {option}= out"
            )
