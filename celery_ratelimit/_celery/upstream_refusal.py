"""How a run ends whose upstream has refused its call: seen in its own process, handled in the worker's main one.

What is relied on; line numbers are of Celery 5.7.0:

* A task that raises ``Ignore`` has no result: the tracer stores and sends nothing, and calls no ``on_failure``,
  ``after_return``, callback or chord (celery/app/trace.py 572). ``autoretry_for`` lets it
  pass (celery/app/autoretry.py 39).
* The pool's callback gets ``(1, ExceptionInfo, runtime)`` (trace.py 767; ``Request.on_success``,
  celery/worker/request.py 616), in prefork pools pickled. For an ``Ignore`` it ends the request with
  ``state.task_ready``, and acknowledges the message (request.py 704).
* The tracer calls ``task.run`` as it was when the tracer was built (trace.py 356), after the bootsteps are made.
  ``task._orig_run`` is what ``autoretry_for`` wraps (autoretry.py 66).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import Ignore

__all__ = ["ReturnToBacklog", "call_when_body_ends", "refusal_in"]


class ReturnToBacklog(Ignore):
    """Ends a run whose upstream has refused its call: the worker pauses the limit, and puts the task back.

    Attributes:
        limit: the name of the limit.
        key: of the bucket; ``None``: the task's own.
        retry_after: seconds; ``None``: the upstream has not said.
        granted_at: when the run's permit was good, in microseconds of the store's clock; 0: the store was not asked.
    """

    def __init__(self, limit: str, key: str | None, retry_after: float | None, granted_at: int) -> None:
        super().__init__(limit, key, retry_after, granted_at)
        self.limit = limit
        self.key = key
        self.retry_after = retry_after
        self.granted_at = granted_at

    def __repr__(self) -> str:
        return "ReturnToBacklog(" + ", ".join(map(repr, self.args)) + ")"


def refusal_in(args: Sequence[Any]) -> ReturnToBacklog | None:
    """The refusal by an upstream with which a run has ended, among the arguments of its pool's callback."""
    result = args[0] if args else None
    if not isinstance(result, tuple) or len(result) != 3 or not result[0]:
        return None
    error = getattr(result[1], "exception", None)
    if isinstance(error, ExceptionWithTraceback):
        error = error.exc
    return error if isinstance(error, ReturnToBacklog) else None


def call_when_body_ends(
    task: Any, on_error: Callable[[Any, Exception], None], on_end: Callable[[Any, Exception | None], None]
) -> None:
    """Call ``on_error`` with the task and each error of its body, before ``autoretry_for`` sees it. Unless it raises
    another one, call ``on_end`` with the task and the error; with ``None`` if the body has returned. Once for a task.
    """
    name = "_orig_run" if hasattr(task, "_orig_run") else "run"
    body = getattr(task, name)
    if hasattr(body, "ratelimit_watches"):
        return

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            returned = body(*args, **kwargs)
        except Exception as error:
            on_error(task, error)
            on_end(task, error)
            raise
        on_end(task, None)
        return returned

    run.ratelimit_watches = True  # type: ignore[attr-defined]
    setattr(task, name, run)
