"""One request: where its message comes from, and how its task ends without being run.

What is relied on; line numbers are of Celery and kombu 5.7.0:

* ``Request._eta_timer_entry`` (celery/worker/request.py 85): of use while the request is scheduled, and no longer.
* ``Request.tzlocal`` (request.py 293): each request with an ETA or ``expires`` looks for the app's ``timezone`` in all
  its settings, which takes as long as all else. ``create_request_cls`` (request.py 990) makes a class for each task.
* ``Request.name`` may be a list, by a message's shadow, which Celery cannot count (celery/worker/state.py 211).
* ``chord``, ``chain``, ``group``, ``callbacks`` and ``errbacks`` of ``Request._context``.
* ``Request._eventer`` (request.py 521), a ``Dispatcher`` that leaves out events of other groups than its ``groups``
  (celery/events/dispatcher.py 190).
* ``request.request_dict`` and ``request.delivery_info``, which is in it (request.py 177): what the task is told when it
  starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from celery.worker.request import Request

from . import task_termination
from .consumers import stamp_of
from .message_priority import priority_of as _priority_of
from .saved_message import marker_in, without_marker

__all__ = [
    "PERMIT",
    "delivery_age",
    "drop",
    "fail",
    "has_arrived",
    "is_of_canvas",
    "is_returned",
    "note_arrived",
    "priority_of",
    "queue_of",
    "remove_marker",
    "send_throttled_event",
    "via_return_queue",
    "was_throttled",
]

#: The entry of ``request.delivery_info`` that says that the task's permit was taken: ``worker``, by which; ``queue``,
#: whose limits it is of; ``id`` and ``granted_at``, under which the store knows it (0: the store was not asked); of a
#: task that was throttled also ``throttled_for``, in seconds, and ``throttled_by``.
PERMIT = "ratelimit_permit"

# -- Where it comes from -----------------------------------------------------------------------------------------------


def note_arrived(request: Any) -> None:
    """A request has come to the gate: its countdown, if it had one, has ended."""
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
    """The queue that the task was sent to, also when it comes from that queue's return queue."""
    message = request.message
    marker = marker_in(message)
    if marker:
        return str(marker.get("queue"))
    return stamp_of(message, "ratelimit_queue") or request.delivery_info.get("routing_key") or ""


def priority_of(request: Any) -> int:
    """The number that the task was sent with, see :func:`importance.priority_of`."""
    return _priority_of(request.message.properties.get("priority"))


def was_throttled(request: Any) -> bool:
    """Whether it was throttled before, and sent back or parked."""
    return bool(marker_in(request.message))


def is_returned(message: Any) -> bool:
    """Whether a message was throttled before."""
    return bool(marker_in(message))


def via_return_queue(request: Any) -> bool:
    """Whether it came by a return queue that is consumed beside its own: it is not part of the prefetch."""
    return hasattr(request.message, "ratelimit_via_return_queue")


def delivery_age(request: Any) -> float:
    """Seconds since the broker has handed its message out: its countdown was spent here."""
    since = stamp_of(request.message, "ratelimit_received_at")
    return time.monotonic() - since if since else 0.0


def is_of_canvas(request: Any) -> bool:
    """Whether other tasks go on when this one ends: it is of a chord, chain or group, or has links."""
    context = request._context
    return any(getattr(context, each, None) for each in ("chord", "chain", "group", "callbacks", "errbacks"))


# -- What becomes of it ------------------------------------------------------------------------------------------------


def remove_marker(request: Any) -> None:
    """Undo in a request what sending it back has changed, so that its task finds it as it was sent."""
    fields = request.request_dict
    marker = without_marker(fields)
    if marker:
        fields["eta"] = marker.get("eta")
        if "CC" in marker:
            fields["CC"] = marker["CC"]
        request.delivery_info["exchange"] = marker.get("exchange")
        request.delivery_info["routing_key"] = marker.get("routing_key")


def send_throttled_event(request: Any, fields: Callable[[], Mapping[str, Any]]) -> None:
    """The event for monitors, if one is told of tasks. ``task-throttled`` shows as state THROTTLED there."""
    eventer = request._eventer
    if eventer and eventer.enabled and (not eventer.groups or "task" in eventer.groups):
        request.send_event("task-throttled", **fields())


def fail(request: Any, error: BaseException) -> None:
    """End a task with ``error`` as its own, without running it; see :func:`task_termination.fail`."""
    remove_marker(request)
    task_termination.fail(request, error)


def drop(request: Any, reason: str) -> None:
    """End a task without running it: state REVOKED with a reason, so that no caller waits for its result."""
    remove_marker(request)
    task_termination.drop(request, reason)
