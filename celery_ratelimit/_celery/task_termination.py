"""Ends a task without running it: as failed, or as revoked.

What is relied on; line numbers are of Celery 5.7.0:

* ``Request._context`` and ``Request._announce_revoked`` (celery/worker/request.py), ``Task.request_stack``.
* ``state.task_ready`` (celery/worker/state.py 215): a request has ended here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import signals
from celery.app.task import Context
from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.utils.saferepr import saferepr
from celery.worker import state

__all__ = ["drop", "fail"]

logger = logging.getLogger("celery_ratelimit")


def fail(request: Any, error: BaseException) -> None:
    """End a task as failed with ``error``, as Celery does at a hard time limit.

    ``on_failure`` and receivers of ``task_failure`` are called with ``self.request`` as in the task. An error
    that they or the result backend raise is logged; the task has ended all the same.
    """
    try:
        raise error
    except BaseException:
        info = ExceptionInfo()
    task, context = request.task, _context_of(request)

    def store() -> None:
        task.backend.mark_as_failure(
            request.id,
            error,
            traceback=info.traceback,
            request=context,
            store_result=request.store_errors,
        )

    def tell() -> None:
        signals.task_failure.send(
            sender=task,
            task_id=request.id,
            exception=error,
            args=request.args,
            kwargs=request.kwargs,
            traceback=error.__traceback__,
            einfo=info,
        )

    task.request_stack.push(context)
    try:
        _try(request, "its result backend", store)
        _try(request, "its on_failure", lambda: task.on_failure(error, request.id, request.args, request.kwargs, info))
        _try(request, "a receiver of task_failure", tell)
    finally:
        task.request_stack.pop()
        _end(request)
    _try(
        request,
        "an event",
        lambda: request.send_event("task-failed", exception=saferepr(error), traceback=info.traceback),
    )


def drop(request: Any, reason: str) -> None:
    """End a task as revoked, with a reason: its result is there for callers that wait for it."""
    try:
        _try(request, "its result backend", lambda: request._announce_revoked(reason, False, None, False))
    finally:
        request._already_revoked = True
        _end(request)


def _end(request: Any) -> None:
    state.task_ready(request)
    request.acknowledge()


def _try(request: Any, what: str, step: Callable[[], Any]) -> None:
    """Run one step of a task's end. What it raises, ``SystemExit`` included, is logged and does not end the worker."""
    try:
        step()
    except (WorkerShutdown, WorkerTerminate):
        raise
    except (Exception, SystemExit) as error:
        logger.error("Task %s[%s] ends, but %s raised %r", request.name, request.id, what, error, exc_info=True)


def _context_of(request: Any) -> Context:
    """The task's request, as ``self.request`` in the task; of a malformed message the fields that can be read."""
    try:
        return request._context
    except Exception:
        return Context(id=request.id, task=request.name, args=request.args, kwargs=request.kwargs)
