"""Where in a worker a task is.

What is relied on; line numbers are those of Celery 5.7.0:

* ``state.requests`` by id, ``state.active_requests``, which run, and ``state.scheduled_requests``, which wait for their
  countdowns (celery/worker/state.py 79 to 88). An older Celery has no such set, and these requests in none: they are
  arguments in entries of the timer (celery/worker/control.py 442).
"""

from __future__ import annotations

from typing import Any

from celery.worker import state as worker_state

__all__ = ["task_here"]


def task_here(state: Any, id: str) -> dict[str, str] | None:
    """A task's name and queue, and where it is: ``"running"``, ``"held"`` or ``"scheduled"`` (its countdown).

    None: it is not here.
    """
    request = worker_state.requests.get(id)
    if request is not None:
        scheduled = request in getattr(worker_state, "scheduled_requests", ())
        runs = request in worker_state.active_requests
        return _told(request, "running" if runs else "scheduled" if scheduled else "held")
    for entry in list(state.consumer.timer.schedule.queue):
        arguments = getattr(getattr(entry, "entry", entry), "args", ())
        if arguments and getattr(arguments[0], "id", None) == id:
            return _told(arguments[0], "scheduled")
    return None


def _told(request: Any, where: str) -> dict[str, str]:
    queue = (request.delivery_info or {}).get("routing_key")
    return {"where": where, "task": str(request.name), "queue": str(queue or "")}
