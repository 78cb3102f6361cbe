"""Checks of limited tasks: keys that a call may not give, bounds of their queues, and the backend of their results."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

from celery import Celery

from .._celery import HOLD_SHARE, consumer_timeout_of, default_queue_of, visibility_timeouts_of
from ..app.plan import Plan, goes_by, is_built_in, make_plan
from ..app.settings import settings_of
from ..errors import ConfigurationError
from ..limits.argument_parts import path_of
from ..limits.templates import fields_of
from ..store.url_text import without_password
from .setup_checks import InformationalFinding
from .task_lookup import PATIENCE

__all__ = ["check_tasks"]

_LENGTH = "parked tasks do not count; with throttle='wait' the broker drops or refuses what is beyond: set max_wait"
_TTL = "a task that waits longer is dead-lettered or dropped, without a result: set a shorter max_wait or expires"
_BOUNDS = {"x-max-length": _LENGTH, "x-max-length-bytes": _LENGTH, "x-message-ttl": _TTL}


def check_tasks(app: Celery) -> Iterator[str]:
    """What limits mean for tasks in the queues to which the settings route them; and whether their backend answers."""
    settings, queues = settings_of(app), set[str](settings_of(app).queues)
    for name in sorted(task for task in app.tasks if not is_built_in(task)):
        queue = default_queue_of(app, name) or ""
        try:
            plan = make_plan(app.tasks[name], queue, settings)
        except ConfigurationError as error:
            yield f"in queue {queue!r} the task fails: {error}. Set missing_key on the limit, or route it elsewhere"
        else:
            yield from _check_keys(name, plan) if plan is not None else ()
            queues |= {queue} if plan is not None and plan.policy.waits else set()
    for found in [app.amqp.queues[name] for name in sorted(queues & app.amqp.queues.keys()) if not goes_by(app)]:
        given = {each: getattr(found, each[2:].replace("-", "_")) for each in _BOUNDS} | (found.queue_arguments or {})
        for argument in [each for each in _BOUNDS if given[each] is not None]:
            yield InformationalFinding(f"limited queue {found.name!r} has {argument}: {_BOUNDS[argument]}")
    yield from _check_waiting(app)
    url, said = str(app.conf.result_backend or "disabled"), list[str]()
    if not url.startswith(("disabled", "rpc")):  # by way of the broker
        (thread := Thread(target=_ask_backend, args=(app, said), daemon=True)).start()  # it may hang for minutes
        thread.join(PATIENCE)
        if why := said[0] if said else f"nothing within {PATIENCE:g} s":
            yield (
                f"the result backend at {without_password(url)} does not answer ({why}), and no task ends before it "
                "does: repair it, and have workers wait for less (redis_socket_timeout)"
            )


def _check_keys(name: str, plan: Plan) -> Iterator[str]:
    parameters = plan.signature.parameters if plan.signature is not None and plan.missing_key == "error" else {}
    for limit in [limit for limit in plan.limits if isinstance(limit.key, str) and limit.missing_key is None]:
        for argument in sorted({path_of(each)[0] for each in fields_of(str(limit.key))}) if parameters else ():
            if argument not in parameters or parameters[argument].default is None:
                yield InformationalFinding(
                    f"a call of task {name!r} without {argument!r} fails, because limit {limit.name!r} has "
                    f"key={limit.key!r}: set missing_key='exempt' or 'shared', or 'error' if it is to fail"
                )


def _check_waiting(app: Celery) -> Iterator[str]:
    """What RabbitMQ's queues do to tasks that wait in a worker."""
    waiting = [task for task in app.tasks.values() if getattr(task, "throttle", "") == "wait"]
    if not waiting:
        return
    redelivery = min(visibility_timeouts_of(app))  # on SQS a question for each queue
    for queue in app.amqp.queues.values():
        if (timeout := consumer_timeout_of(app, queue.name)) < redelivery:
            yield InformationalFinding(
                f"queue {queue.name!r} has x-consumer-timeout {timeout:g} s: tasks with throttle='wait' are sent back "
                f"after {timeout * HOLD_SHARE:g} s. Raise it to half an hour, or take throttle='retry'"
            )
        arguments = queue.queue_arguments or {}
        is_quorum, limit = arguments.get("x-queue-type") == "quorum", arguments.get("x-delivery-limit", 20)
        if is_quorum and limit >= 0 and any(task.acks_late for task in waiting):
            yield InformationalFinding(
                f"queue {queue.name!r} drops a task with acks_late and throttle='wait', or dead-letters it, when more "
                f"than {limit} workers that held it were lost, run or not. Set x-delivery-limit -1, or throttle='retry'"
            )


def _ask_backend(app: Celery, said: list[str]) -> None:
    """Add why the result backend cannot be read; empty: it can."""
    try:
        said.append(app.backend.get_state("celery-ratelimit-check") and "")
    except Exception as error:
        said.append(str(error.__cause__ or error))
