"""What a worker says of itself when it is asked: where in it a task is, and what its pool has to do.

What is relied on; line numbers are of Celery 5.7.0:

* ``state.requests`` by id, ``state.active_requests``, which run, and ``state.scheduled_requests``, which wait for their
  countdowns (celery/worker/state.py 79 to 88). An older Celery has no such set, and these requests in none: they are
  arguments in entries of the timer (celery/worker/control.py 442).
* ``state.consumer.task_consumer.queues``, as ``active_queues`` reads them (celery/worker/control.py 658).
"""

from __future__ import annotations

from typing import Any

from celery.worker import state as worker_state

from .pool import processes_of

__all__ = ["pool_here", "task_here"]

#: Kinds of tasks whose run times are told: the longest ones.
_KINDS = 200


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


def pool_here(state: Any) -> dict[str, Any]:
    """How many tasks a worker can run at once, of which queues, and how many seconds the ended ones took."""
    pool, consumer = state.consumer.pool, state.consumer.task_consumer
    ours = getattr(pool, "ratelimit_pool", None)
    takes = sorted(ours.mean_runtimes().items(), key=lambda each: -each[1])[:_KINDS] if ours is not None else []
    queues = [queue.name for queue in consumer.queues] if consumer is not None else []
    return {"processes": processes_of(pool), "queues": queues, "takes": {name: round(each, 6) for name, each in takes}}


def _told(request: Any, where: str) -> dict[str, str]:
    queue = (request.delivery_info or {}).get("routing_key")
    return {"where": where, "task": str(request.name), "queue": str(queue or "")}
