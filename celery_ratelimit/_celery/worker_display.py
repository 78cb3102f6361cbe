"""What other programs show of a worker: its banner, its answers to ``celery inspect``, its events.

What is relied on; line numbers are of Celery 5.7.0:

* ``celery.apps.worker.Worker.extra_info`` (celery/apps/worker.py 235): what ``emit_banner`` prints below the queues;
  None where the worker logs less than INFO. Workers that are no program (``celery.contrib.testing``) have none.
* ``Consumer.event_dispatcher`` (celery/worker/consumer/events.py 39): anew with each connection; requests send their
  events by its ``send`` (celery/worker/request.py 521).
* ``celery.events.state.Task.event`` (celery/events/state.py 305), which Flower has, too: to it REVOKED has happened
  before any state that Celery does not know, as THROTTLED is (``states.PRECEDENCE``), so that it takes the fields of
  the event, but not its state. A field ``state`` is taken with them.
* ``state.requests`` by id, ``state.active_requests``, which run, and ``state.scheduled_requests``, which wait for their
  countdowns (celery/worker/state.py 79 to 88). An older Celery has no such set, and these requests in none: they are
  arguments in entries of the timer (celery/worker/control.py 442).
* ``state.consumer.task_consumer.queues``, as ``active_queues`` reads them (celery/worker/control.py 658).
"""

from __future__ import annotations

import functools
from typing import Any

from celery.states import REVOKED
from celery.worker import state as worker_state

from .pool import processes_of

__all__ = ["add_to_banner", "locate_task", "pool_status", "show_revoked_state"]

#: Kinds of tasks whose run times are shown: the longest ones.
_KINDS = 200


def add_to_banner(controller: Any, title: str, text: str) -> None:
    """Show ``text`` below the list of the worker's tasks when it starts."""
    shown = getattr(controller, "extra_info", None)
    if shown is None:
        return

    @functools.wraps(shown)
    def extra_info() -> Any:
        info = shown()
        return info and f"{info}\n[{title}]\n{text}\n"

    controller.extra_info = extra_info


def show_revoked_state(consumer: Any) -> None:
    """Let monitors show REVOKED for each task that ends as revoked, also after THROTTLED."""
    dispatcher = consumer.event_dispatcher
    if dispatcher is None:
        return
    send = dispatcher.send

    @functools.wraps(send)
    def send_with_state(type: str, *args: Any, **fields: Any) -> Any:
        if type == "task-revoked":
            fields.setdefault("state", REVOKED)
        return send(type, *args, **fields)

    dispatcher.send = send_with_state


def locate_task(state: Any, id: str) -> dict[str, str] | None:
    """A task's name, its queue, and where it is: ``"running"``, ``"held"``, or ``"scheduled"`` (its countdown).

    None: the worker does not have the task.
    """
    request = worker_state.requests.get(id)
    if request is not None:
        scheduled = request in getattr(worker_state, "scheduled_requests", ())
        runs = request in worker_state.active_requests
        return _located(request, "running" if runs else "scheduled" if scheduled else "held")
    for entry in list(state.consumer.timer.schedule.queue):
        arguments = getattr(getattr(entry, "entry", entry), "args", ())
        if arguments and getattr(arguments[0], "id", None) == id:
            return _located(arguments[0], "scheduled")
    return None


def _located(request: Any, where: str) -> dict[str, str]:
    queue = (request.delivery_info or {}).get("routing_key")
    return {"where": where, "task": str(request.name), "queue": str(queue or "")}


def pool_status(state: Any) -> dict[str, Any]:
    """A worker's processes, its queues, the mean run times of its tasks in seconds, and refused return queues."""
    pool, consumer = state.consumer.pool, state.consumer.task_consumer
    ours = getattr(pool, "ratelimit_pool", None)
    means = sorted(ours.mean_runtimes().items(), key=lambda each: -each[1])[:_KINDS] if ours is not None else []
    queues = [queue.name for queue in consumer.queues] if consumer is not None else []
    takes, refused = {name: round(mean, 6) for name, mean in means}, getattr(state.consumer, "ratelimit_refused", ())
    status = {"processes": processes_of(pool), "queues": queues, "takes": takes}
    return {**status, "refused": sorted(refused)} if refused else status
