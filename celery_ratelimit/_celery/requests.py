"""One request: where its message comes from, and how its task ends without running.

What is relied on; line numbers are of Celery and kombu 5.7.0:

* ``Request._eta_timer_entry`` (celery/worker/request.py 85): of use while the request is scheduled, and no longer.
* ``Request.tzlocal`` (request.py 293): each request with an ETA or ``expires`` looks for the app's ``timezone`` in all
  its settings, which takes as long as all else. ``create_request_cls`` (request.py 990) makes a class for each task.
* ``Request.name`` may be a list, by a message's shadow, which Celery cannot count (celery/worker/state.py 211).
* ``chord``, ``chain``, ``group``, ``callbacks`` and ``errbacks`` of ``Request._context``.
* ``Request._eventer`` (request.py 521), a ``Dispatcher`` that leaves out events of other groups than its ``groups``
  (celery/events/dispatcher.py 190).
* ``request.request_dict``: what the task is told when it starts. ``properties`` (request.py 173) and ``delivery_info``
  (177) are in it. ``Context.as_execution_options`` and ``Task.signature_from_request`` (celery/app/task.py 191, 784)
  do not publish ``properties``.
* ``delivery_info["redelivered"]``, by which ``worker_deduplicate_successful_tasks`` goes (celery/app/trace.py 487).
* ``Request._announce_revoked`` (celery/worker/request.py 464), of which :func:`end_revoked` is a copy, and
  ``Task.request_stack``.
* ``state.task_ready`` (celery/worker/state.py 215): a request has ended here.
* ``Request.reject`` (celery/worker/request.py 907) rejects an unacknowledged message.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import amqp
from billiard.einfo import ExceptionInfo
from celery import signals, states
from celery.app.task import Context
from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.utils.nodenames import gethostname
from celery.utils.saferepr import saferepr
from celery.worker import state
from celery.worker.request import Request

from ..signals import task_throttled_out
from .message_fields import stamp_of
from .saved_message import REDELIVERED_HEADER, marker_in, without_marker

__all__ = [
    "PERMIT",
    "attempt",
    "context_of",
    "deadline_of",
    "delivery_age",
    "end_revoked",
    "fail",
    "has_arrived",
    "is_of_canvas",
    "is_past_deadline",
    "note_arrived",
    "permit_in",
    "queue_of",
    "reject",
    "remove_marker",
    "reserve_again",
    "revoke",
    "send_throttled_event",
    "throttled_out",
    "via_return_queue",
    "was_throttled",
]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: The entry of ``self.request.properties`` that says that the task's permit was taken: ``worker``, by which; ``queue``,
#: whose limits it is of; ``id`` and ``granted_at``, under which the store knows it (0: the store was not asked);
#: ``asked``, position, name, key, cost and share of each limit; of a task that was throttled also ``throttled_for``, in
#: seconds, and ``throttled_by``; of one whose upstream has refused calls, ``upstream_throttles``: how many. A task that
#: retries is published with its ``delivery_info`` and all unknown fields, but without its ``properties``.
PERMIT = "ratelimit_permit"

# -- Where it comes from -----------------------------------------------------------------------------------------------


def note_arrived(request: Any) -> None:
    """A request has arrived in the gate: its countdown, if it had one, has ended."""
    request.message.ratelimit_arrived = True
    request.name = str(request.name)
    if getattr(request, "_eta_timer_entry", None) is not None:
        request._eta_timer_entry = None  # strategy.py 212: the two would live until the next full collection
    kind = type(request)
    if kind is not Request and getattr(kind, "tzlocal", None) is Request.tzlocal:  # the first of its task
        kind.tzlocal = request.tzlocal


def has_arrived(request: Any) -> bool:
    return hasattr(request.message, "ratelimit_arrived")


def queue_of(request: Any) -> str:
    """The queue to which the task was sent, also if it came by that queue's return queue."""
    message = request.message
    marker = marker_in(message)
    if marker:
        return str(marker.get("queue"))
    return stamp_of(message, "ratelimit_queue") or request.delivery_info.get("routing_key") or ""


def was_throttled(request: Any) -> bool:
    """Whether its message was sent back or parked before."""
    return bool(marker_in(request.message))


def via_return_queue(request: Any) -> bool:
    """Whether its message came by a return queue, and so is not part of the prefetch."""
    return hasattr(request.message, "ratelimit_via_return_queue")


def delivery_age(request: Any) -> float:
    """Seconds since the broker delivered its message: a countdown is part of them."""
    since = stamp_of(request.message, "ratelimit_received_at")
    return time.monotonic() - since if since else 0.0


def is_of_canvas(request: Any) -> bool:
    """Whether other tasks go on when this one ends: it is of a chord, chain or group, or has links."""
    context = request._context
    return any(getattr(context, each, None) for each in ("chord", "chain", "group", "callbacks", "errbacks"))


def deadline_of(request: Any, ttl: float | None, now: Callable[[], float]) -> int | None:
    """When RabbitMQ would end a message that no worker takes, in microseconds since 1970; ``None``: never.

    Counted from its first delivery; ``ttl``: its queue's, in seconds; ``now``: the store's clock. A task with
    ``expires`` is ended by Celery.
    """
    message = request.message
    given = message.properties.get("expiration") if isinstance(message.channel, amqp.Channel) else None
    if given is not None and (before := marker_in(message).get("deadline")) is not None:
        return int(before)
    lives = [each for each in (ttl, None if given is None or request.expires else int(given) / 1e3) if each is not None]
    return round((now() - delivery_age(request) + min(lives)) * 1e6) if lives else None


def is_past_deadline(request: Any, now: Callable[[], float]) -> bool:
    """Whether a message was delivered after the deadline that it returned with; ``now``: the store's clock.

    A dead letter has none: RabbitMQ takes its ``expiration`` away.
    """
    deadline = marker_in(request.message).get("deadline")
    if deadline is None or request.message.properties.get("expiration") is None:
        return False
    return bool(now() - delivery_age(request) >= deadline / 1e6)


def permit_in(request: Any) -> Mapping[str, Any] | None:
    """The permit that this worker took for a running task; ``None``: it took none.

    ``request``: ``self.request`` in the task, or the worker's request.
    """
    permit = (getattr(request, "request_dict", vars(request)).get("properties") or {}).get(PERMIT)
    # Celery's slower tracer, which start_worker() of celery.contrib.testing runs, names the machine and not the worker.
    ours = isinstance(permit, dict) and request.hostname in (permit.get("worker"), gethostname())
    return permit if ours else None


# -- How it goes on ----------------------------------------------------------------------------------------------------


def remove_marker(request: Any) -> None:
    """Undo in a request what its return has changed: its task finds the request as it was sent."""
    fields = request.request_dict
    if fields.get(REDELIVERED_HEADER) is True:
        del fields[REDELIVERED_HEADER]
        request.delivery_info["redelivered"] = True
    marker = without_marker(fields)
    if marker:
        fields["eta"] = marker.get("eta")
        if "CC" in marker:
            fields["CC"] = marker["CC"]
        request.delivery_info["exchange"] = marker.get("exchange")
        request.delivery_info["routing_key"] = marker.get("routing_key")


def reserve_again(request: Any) -> None:
    """A request whose run has ended waits in the worker for another one."""
    state.task_reserved(request)


def send_throttled_event(request: Any, fields: Callable[[], Mapping[str, Any]]) -> None:
    """Send ``task-throttled``, which monitors show as state THROTTLED, if the worker sends events of tasks."""
    eventer = request._eventer
    if eventer and eventer.enabled and (not eventer.groups or "task" in eventer.groups):
        request.send_event("task-throttled", **fields())


def fail(request: Any, error: BaseException) -> None:
    """End a task as failed with ``error``, without running it, as Celery does at a hard time limit.

    ``on_failure``, receivers of ``task_failure`` and ``after_return`` are called as after a run, ``self.request`` being
    that of the task. An error that they or the result backend raise is logged; the task has ended all the same.
    """
    remove_marker(request)
    try:
        raise error
    except BaseException:
        info = ExceptionInfo()
    task, call = request.task, (request.id, request.args, request.kwargs, info)
    failure = dict(zip(("task_id", "args", "kwargs", "einfo"), call, strict=True), traceback=error.__traceback__)
    event = {"exception": saferepr(error), "traceback": info.traceback}
    stamp_of(request.message, "ratelimit_final_states").end(
        request,
        lambda **of: task.backend.mark_as_failure(request.id, error, traceback=info.traceback, **of),
        ("its on_failure", lambda: task.on_failure(error, *call)),
        ("a receiver of task_failure", lambda: signals.task_failure.send(sender=task, exception=error, **failure)),
        ("its after_return", lambda: task.after_return(states.FAILURE, error, *call)),
        ("an event", lambda: request.send_event("task-failed", **event)),
    )


def revoke(request: Any, outcome: str, reason: str) -> None:
    """End a task as revoked, without running it: callers that wait for its result get ``reason``.

    ``outcome``: see :func:`throttled_out`.
    """
    remove_marker(request)
    throttled_out(request.task, context_of(request), outcome, reason)
    end_revoked(request, reason)


def end_revoked(request: Any, reason: str, expired: Any = False) -> None:
    """End a task as ``Request._announce_revoked`` does. Its state is stored in a thread."""
    request._already_revoked = True
    task, event = request.task, {"terminated": False, "signum": None, "expired": expired}
    revoked = {"request": context_of(request), **event}
    stamp_of(request.message, "ratelimit_final_states").end(
        request,
        lambda **of: task.backend.mark_as_revoked(request.id, reason, **of),
        ("an event", lambda: request.send_event("task-revoked", **event)),
        ("a receiver of task_revoked", lambda: signals.task_revoked.send(sender=task, **revoked)),
    )


def throttled_out(task: Any, context: Context, outcome: str, reason: str) -> None:
    """Call ``on_throttled_out`` of a task that never runs because of a limit, and send ``task_throttled_out``.

    ``context`` is its request, as ``self.request`` in the task; ``outcome`` and ``reason``: see the signal.
    """
    context.name = task.name
    call = {"task_id": context.id, "args": context.args, "kwargs": context.kwargs}
    hook = getattr(task, "on_throttled_out", None)
    task.request_stack.push(context)
    try:
        if hook is not None:
            attempt(context, "its on_throttled_out", lambda: hook(outcome, *call.values()))
        send = task_throttled_out.send
        attempt(context, "a receiver", lambda: send(sender=task, outcome=outcome, reason=reason, **call))
    finally:
        task.request_stack.pop()


def reject(request: Any) -> None:
    """End a request as RabbitMQ ends a message whose time is over: it has no result, and may be dead-lettered."""
    logger.info("Task %s[%s] has waited for longer than its queue keeps a message: rejected", request.name, request.id)
    state.task_ready(request)
    request.reject(requeue=False)


def attempt(request: Any, what: str, step: Callable[[], Any]) -> None:
    """Run one step of a task's end. An error of it, ``SystemExit`` included, is logged and does not end the worker."""
    try:
        if inspect.iscoroutine(made := step()):
            made.close()
            raise TypeError("it is async: it was not run")
    except (WorkerShutdown, WorkerTerminate):
        raise
    except (Exception, SystemExit) as error:
        logger.error("Task %s[%s] ends, but %s raised %r", request.name, request.id, what, error, exc_info=True)


def context_of(request: Any) -> Context:
    """The task's request, as ``self.request`` in the task; of a malformed message the fields that can be read."""
    try:
        return request._context
    except Exception:
        return Context(id=request.id, task=request.name, args=request.args, kwargs=request.kwargs)
