"""Warns, once for each task, of a limited task that one of Celery's own tasks calls: no gate sees such calls.

Permits for a whole chunk would be impossible under most limits, whose burst is 1.
"""

from __future__ import annotations

import logging
from typing import Any

from .plan import plan_of

__all__ = ["BuiltinCallWarning"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Celery's tasks that call another one repeatedly (celery/app/builtins.py); their argument ``task`` is its signature.
CALLERS = ("celery.map", "celery.starmap", "celery.chunks")


class BuiltinCallWarning:
    """Logs the limited tasks that are called unthrottled."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def look(self, request: Any) -> None:
        """Check a request of one of Celery's own tasks, which is about to start."""
        if request.task.name not in CALLERS:
            return
        kwargs = request.kwargs if isinstance(request.kwargs, dict) else {}
        called = kwargs.get("task")
        name = called.get("task") if isinstance(called, dict) else None
        if not isinstance(name, str) or name in self._said:
            return
        task = request.app.tasks.get(name)
        if task is not None and plan_of(task, "") is not None:
            self._said.add(name)
            logger.warning(
                "Task %s is limited, and is called within %s: such calls are not throttled. Send them one by one "
                "(a group in the place of chunks), or limit %s by its name",
                *(name, request.task.name, request.task.name),
            )
