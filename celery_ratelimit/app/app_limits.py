"""All limits of an app's tasks and queues by name."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import ConfigurationError
from ..limits.any_limit import AnyLimit
from .plan import Plan, make_plan, plan_of
from .settings import settings_of

__all__ = ["AppLimits", "limits_of_app", "names_of_app"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")


class AppLimits(Mapping[str, AnyLimit]):
    """The limits of an app's tasks and queues by name, also of tasks that are registered later.

    Every limit of a parked task must be here: the return scheduler and the limit watcher go by these limits.

    Raises:
        ConfigurationError: names the task, or two limits of one name.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._limits = limits_of_app(app)
        self._tasks = len(app.tasks)
        self._planned: set[tuple[str, str]] = set()
        self._sorted: list[str] = []

    @property
    def names(self) -> list[str]:
        """The names, sorted."""
        if len(self._sorted) != len(self):
            self._sorted = sorted(self)
        return self._sorted

    def note(self, limits: Iterable[AnyLimit]) -> None:
        """Add limits for which tasks may wait.

        Raises:
            ConfigurationError: a different limit of the same name is known.
        """
        noted = {limit.name: limit for limit in limits if limit.name is not None}
        _refuse_two_of_a_name([*[self._limits[name] for name in noted if name in self._limits], *noted.values()])
        self._limits = {**noted, **self._limits}

    def plan_of(self, task: Any, queue: str) -> Plan | None:
        """The plan of ``task`` for messages from ``queue``; adds the plan's limits.

        Raises:
            ConfigurationError: an invalid option or limit, or two limits of one name.
        """
        plan = plan_of(task, queue)
        if plan is not None and (task.name, queue) not in self._planned:
            self.note(plan.limits)
            self._planned.add((task.name, queue))
        return plan

    def has_any(self, task: Any, queue: str, names: set[str]) -> bool:
        """Whether one of these limits is of ``task`` for messages from ``queue``."""
        plan = self.plan_of(task, queue)
        return plan is not None and not names.isdisjoint({limit.name for limit in plan.limits})

    def _known(self) -> dict[str, AnyLimit]:
        if self._tasks != len(self._app.tasks):
            self._tasks = len(self._app.tasks)
            try:
                self.note(limits_of_app(self._app).values())
            except ConfigurationError as error:  # a call of the task will raise it
                logger.error("The limits of tasks that were registered after the start are not in order: %s", error)
        return self._limits

    def __getitem__(self, name: str) -> AnyLimit:
        return self._known()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())


def names_of_app(app: Any) -> set[str]:
    """The names of all limits of an app's tasks, queues and quotas. Raises as :func:`limits_of_app`."""
    return {*settings_of(app).quotas, *limits_of_app(app)}


def limits_of_app(app: Any) -> dict[str, AnyLimit]:
    """All limits of an app's tasks and queues, by name. Makes every task's plan, and so finds invalid options early.

    Raises:
        ConfigurationError: names the task, or two limits of one name.
    """
    settings = settings_of(app)
    limits = [limit for of_queue in settings.queues.values() for limit in of_queue]
    for task in list(app.tasks.values()):
        limits += plan.limits if (plan := make_plan(task, "", settings)) is not None else ()
    _refuse_two_of_a_name([*settings.quotas.values(), *limits])
    return {limit.name: limit for limit in limits if limit.name is not None}


def _refuse_two_of_a_name(limits: Iterable[AnyLimit]) -> None:
    """Reject two different limits of one name, which would share a bucket."""
    known: dict[str | None, AnyLimit] = {}
    for limit in limits:
        other = known.setdefault(limit.name, limit)
        one, two = [(x.wire(1), x.weights, x.priority_reserve, x.shadow, x.max_parked) for x in (other, limit)]
        if one != two:
            raise ConfigurationError(
                f"two different limits are called {limit.name!r} ({other} and {limit}), "
                f"but a name is one bucket: give one of them another name="
            )
