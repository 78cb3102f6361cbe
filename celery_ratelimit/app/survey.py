"""An app's limits with their tasks and queues, and limits that look like mistakes: logged when a worker starts."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from celery import Task

from ..errors import ConfigurationError
from ..limits.any_limit import AnyLimit
from ..limits.parse_rate import parse_rate
from ..limits.templates import check_arguments
from ..name_suggestions import plain
from .options import OVERFLOWS, has_options, misspelt_options
from .plan import is_built_in, is_meant, make_plan
from .settings import Settings, limits_of, settings_of

__all__ = ["Owned", "forgotten", "limits_shown", "owners_of"]

#: Tasks that are named for a limit; of more, only the number is shown.
_SHOWN = 8
#: Packages whose task classes release a lock after a run.
_LOCKING = ("celery_singleton", "celery_once", "celery_heimdall")


class Owned(NamedTuple):
    """A limit, and its tasks and queues."""

    limit: AnyLimit
    tasks: list[str]
    queues: list[str]


def owners_of(app: Any) -> dict[str, Owned]:
    """The limits of an app's tasks and queues, by name."""
    settings, owned = settings_of(app), dict[str, Owned]()
    for task in _tasks(app):
        plan = make_plan(task, "", settings)
        for limit in plan.limits if plan is not None else ():
            owned.setdefault(str(limit.name), Owned(limit, [], [])).tasks.append(task.name)
    for queue, several in settings.queues.items():
        for limit in several:
            owned.setdefault(str(limit.name), Owned(limit, [], [])).queues.append(queue)
    return owned


def limits_shown(app: Any) -> list[str]:
    """Each limit of an app with its tasks and queues, one line each, without control characters."""
    lines = []
    for _, (limit, tasks, queues) in sorted(owners_of(app).items()):
        held_for = _named("task", tasks) + _named("queue", queues)
        by_key = f", by {limit.key!r}" if isinstance(limit.key, str) else ", by key" if limit.key is not None else ""
        in_shadow = ", in shadow" if limit.shadow else ""
        parked = f", at most {limit.max_parked} parked" if limit.max_parked is not None else ""
        lines.append(plain(f"{limit}{by_key}{in_shadow}{parked} ({'; '.join(held_for)})"))
    return lines


def forgotten(app: Any, consumed: Collection[str] = ()) -> list[str]:
    """Probable mistakes in an app's limits, one sentence each.

    Args:
        app: the app.
        consumed: queues that a worker is known to consume, also if the app's settings do not name them.
    """
    settings = settings_of(app)
    return [*_of_patterns(app, settings), *_of_queues(app, settings), *_of_tasks(app, settings, consumed)]


def _of_patterns(app: Any, settings: Settings) -> Iterator[str]:
    names = [str(name) for name in app.tasks]
    for pattern, _ in settings.tasks:
        if not any(is_meant(pattern, name) for name in names):
            yield f"ratelimit_tasks[{pattern!r}] matches none of this worker's tasks{_perhaps(pattern, names)}"


def _of_queues(app: Any, settings: Settings) -> Iterator[str]:
    if not app.conf.task_queues:
        return  # any name may be that of a queue
    for queue in settings.queues:
        if queue not in app.amqp.queues:
            hint = _perhaps(queue, list(app.amqp.queues))
            yield f"ratelimit_queues[{queue!r}] names a queue that is not in task_queues{hint}"


def _of_tasks(app: Any, settings: Settings, consumed: Collection[str]) -> Iterator[str]:
    for task in _tasks(app):
        where, own = f"task {task.name!r}", getattr(task, "limits", None)
        if has_options(task):
            for name, option in misspelt_options(task).items():
                yield f"{where} has {name}={getattr(task, name)!r}, which means nothing here: did you mean {option}=?"
        elif own is not None:
            yield (
                f"{where} has limits={own!r} and is no RateLimitedTask: its limits hold in workers that have the gate, "
                "and in no others. Name base=RateLimitedTask"
            )
        elif _looks_like_a_limit(getattr(task, "limit", None)):
            yield (
                f"{where} has limit={task.limit!r}, which means nothing: write base=RateLimitedTask, "
                f"limits={task.limit!r}"
            )
        plan = make_plan(task, "", settings)
        if task.Strategy != Task.Strategy and (plan is not None or settings.queues):
            yield (
                f"{where} has a Strategy of its own ({getattr(task.Strategy, '__qualname__', task.Strategy)}), so its "
                "requests pass by the gate and no limit is applied to them. Take permits in its body: "
                "limiter.permit(name, cost=len(requests), max_wait=None)"
            )
        if plan is None:
            continue
        locking = [each.__module__ for each in type(task).__mro__ if each.__module__.startswith(_LOCKING)]
        if locking and not hasattr(task, "on_throttled_out") and "unique" in getattr(task, "heimdall", ["unique"]):
            yield (
                f"{where} has a lock of {locking[0].split('.')[0]}, which stays where a limit ends the task without a "
                "run: release it in a method on_throttled_out(self, outcome, task_id, args, kwargs)"
            )
        for limit in plan.limits[: len(limits_of(own, settings.quotas, where))] if own is not None else ():
            try:
                if (limit.missing_key or settings.missing_key) == "exempt":
                    models = plan.models is not None
                    check_arguments(replace(limit, missing_key="error"), plan.signature, where, models=models)
            except ConfigurationError as error:
                yield f"{error}: with missing_key='exempt' it never limits this task"
        if task.rate_limit:
            yield (
                f"{where} has Celery's rate_limit={task.rate_limit!r}, which each worker counts for itself, beside its "
                "limits: both hold. Leave one of them out"
            )
        for limit in plan.limits if plan.policy.waits and not plan.parks else ():
            if limit.max_parked is not None:
                yield (
                    f"{where}: max_parked={limit.max_parked} of limit {limit.name!r} does not bound it, as it is never "
                    "parked: throttle='wait', or a leaky bucket with a capacity, leaves its backlog in the broker"
                )
        overflow = plan.policy.overflow
        if overflow not in (*OVERFLOWS, *app.amqp.queues, *consumed):
            hint = _perhaps(overflow, [*app.amqp.queues, *OVERFLOWS])
            yield (
                f"{where}: overflow={overflow!r} is no queue that is known here (task_queues, -Q), or that a worker is "
                f"known to consume: what is sent there waits for one{hint}"
            )


def _tasks(app: Any) -> list[Any]:
    return [task for task in sorted(app.tasks.values(), key=lambda task: str(task.name)) if not is_built_in(task.name)]


def _looks_like_a_limit(value: Any) -> bool:
    if isinstance(value, str):
        try:
            parse_rate(value)
        except ConfigurationError:
            return False
        return True
    return isinstance(value, AnyLimit)


def _perhaps(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _named(what: str, names: list[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return [f"{what}{'s' if len(names) > 1 else ''} {shown}"]
