"""How a task ends here without having run, and where whatever goes wrong at one message is met: it ends that one alone.

Celery hands a message from its broker's loop to the pool in one call: what is raised anywhere on that way ends the
worker ("Unrecoverable error"), and the message, which is unacknowledged, ends the next one.

What is relied on; line numbers are those of Celery 5.7.0:

* ``Consumer.create_task_handler`` (celery/worker/consumer/consumer.py 798): called by both event loops for the function
  that every message goes to (celery/worker/loops.py 72 and 165).
* ``Consumer.on_invalid_task`` (consumer.py 785): says what is wrong with a message, and rejects it.
* ``virtual.Channel.basic_consume`` puts what makes messages into ``connection._callbacks``, by queue
  (kombu/transport/virtual/base.py 651).
* ``WorkController._process_task`` (celery/worker/worker.py 291): hands a request to the pool, at once or when its
  semaphore is released; ``_quick_release`` gives back what it took of the semaphore, where there is one.
* ``Request._context`` and ``Request._announce_revoked`` (celery/worker/request.py), ``Task.request_stack``.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import signals
from celery.app.task import Context
from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.utils.saferepr import saferepr
from celery.worker import state

__all__ = ["contain_handler", "contain_pool", "drop", "fail"]

logger = logging.getLogger("celery_ratelimit")

#: Is it that the connection to the broker is lost, which Celery has to see?
IsFarewell = Callable[[BaseException], bool]


def fail(request: Any, error: BaseException) -> None:
    """End a task with ``error`` as its own, without running it: as Celery does for a hard time limit.

    What the user has hung on a failure is called with ``self.request`` as in the task. What that raises is logged, and
    so is a result backend's error: the task has ended all the same.
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
    """End a task without running it: state REVOKED with a reason, so that nobody waits for its result."""
    try:
        _try(request, "its result backend", lambda: request._announce_revoked(reason, False, None, False))
    finally:
        request._already_revoked = True
        _end(request)


def _end(request: Any) -> None:
    state.task_ready(request)
    request.acknowledge()


def _try(request: Any, what: str, step: Callable[[], Any]) -> None:
    """A step of a task's end. Whatever it raises, be it ``sys.exit()``, is the task's affair and not the worker's."""
    try:
        step()
    except (WorkerShutdown, WorkerTerminate):
        raise
    except (Exception, SystemExit) as error:
        logger.error("Task %s[%s] ends, but %s raised %r", request.name, request.id, what, error, exc_info=True)


def _context_of(request: Any) -> Context:
    """The task's request, as ``self.request`` is in the task. Of a message that is not in order, what there is."""
    try:
        return request._context
    except Exception:
        return Context(id=request.id, task=request.name, args=request.args, kwargs=request.kwargs)


def contain_handler(consumer: Any, is_farewell: IsFarewell) -> None:
    """From now on a message that Celery falls over ends alone: said and rejected, as one that it finds invalid.

    That is before there is a request: a body that is not a triple, an id that is a list.
    """
    create = consumer.create_task_handler

    @functools.wraps(create)
    def create_contained(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        handle = create(*args, **kwargs)

        @functools.wraps(handle)
        def handle_contained(message: Any) -> Any:
            try:
                return handle(message)
            except MemoryError:
                raise
            except Exception as error:
                if is_farewell(error):
                    raise
                _reject(consumer, message, error)
                return None

        return handle_contained

    consumer.create_task_handler = create_contained


def _reject(consumer: Any, message: Any, error: Exception) -> None:
    try:
        consumer.on_invalid_task(None, message, error)
    except Exception as another:  # it cannot be shown, or was rejected before Celery fell over it
        logger.error("A message is of no use (%r), and cannot be rejected: %r", error, another, exc_info=True)
        if not message.acknowledged:
            message.reject_log_error(logger, consumer.connection_errors)


def contain_unreadable(channel: Any, queue: str) -> None:
    """From now on what kombu cannot make a message of is said and left out, where it makes them itself.

    Nobody has it any more then: it is acknowledged by nobody, and not noted as unacknowledged yet.
    """
    callbacks = getattr(channel.connection, "_callbacks", None)
    if callbacks is None or queue not in callbacks:
        return
    deliver = callbacks[queue]

    @functools.wraps(deliver)
    def deliver_contained(raw: Any) -> Any:
        try:
            return deliver(raw)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if _is_readable(channel, raw):
                raise
            logger.error("What was read from queue %r is no message (%r): %s", queue, error, saferepr(raw)[:1000])
            return None

    callbacks[queue] = deliver_contained


def _is_readable(channel: Any, raw: Any) -> bool:
    try:
        channel.Message(raw, channel=channel)
    except Exception:
        return False
    return True


def contain_pool(controller: Any, on_error: Callable[[Any, Exception], None], is_farewell: IsFarewell) -> None:
    """From now on a request that the pool cannot take goes to ``on_error``, and the pool has a process more."""
    process = controller._process_task

    @functools.wraps(process)
    def process_contained(request: Any) -> Any:
        try:
            _check_time_limits(request)
            return process(request)
        except MemoryError:
            raise
        except Exception as error:
            if is_farewell(error):
                raise
            release = getattr(controller, "_quick_release", None)
            if release is not None:
                release()
            on_error(request, error)
            return None

    controller._process_task = process_contained


def _check_time_limits(request: Any) -> None:
    """The pool looks at them when a task has started, in the worker's loop, where nobody knows whose they are."""
    hard, soft = request.time_limits  # raises what Celery would raise
    for limit in (hard, soft):
        if limit and not float(limit) > 0:
            raise ValueError(f"timelimit={request.time_limits!r}: a time limit must be a number of seconds")
