"""The task class whose limits hold for the whole fleet."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from celery import Celery, Task
from celery.exceptions import Ignore

from ._celery import PERMIT
from .binding import make_plan
from .config import limiter_of, settings_of
from .errors import Throttled
from .worker import install

__all__ = ["RateLimitedMixin", "RateLimitedTask"]


class RateLimitedMixin:
    """What :class:`RateLimitedTask` does, to mix into a task class of one's own (Django's, for one)::

    class MyTask(RateLimitedMixin, DjangoTask): ...
    """

    limits: ClassVar[Any] = None
    throttle: ClassVar[str] = "retry"
    inline_wait: ClassVar[float | None] = None
    max_wait: ClassVar[float | None] = None
    overflow: ClassVar[str] = "fail"

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """The class meets its app: from here on the app's workers have the gate."""
        install(app)
        super().on_bound(app)  # type: ignore[misc]

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Asks for the permit where no gate has done it: another kind of worker. Direct and eager calls do not."""
        _ask_here(self, task_id, args, kwargs)
        super().before_start(task_id, args, kwargs)  # type: ignore[misc]


class RateLimitedTask(RateLimitedMixin, Task):
    """A task that starts only when its limits allow it, counted over every worker of the fleet.

    >>> @app.task(base=RateLimitedTask, limits="100/s")
    ... def charge(order_id): ...

    A task that may not start yet is *throttled*: it never reaches a pool process, nothing about it is marked as
    started, failed or retried, and it comes back at a time of its own. ``retries`` and ``max_retries`` are not
    touched. A direct call ``charge(1)`` and eager mode are not throttled.

    Args (options of ``@app.task``):
        limits: a rate, a quota's name, a :class:`~celery_ratelimit.Limit`, or a list of those.
        throttle: what becomes of a throttled task. ``"retry"``: its message is sent back once, with a countdown to
            its slot, and unlimited tasks behind it go on. ``"wait"``: it is held in the worker, the backlog stays
            in the broker and nothing is sent again; best on a queue of its own. ``"drop"``: it ends as REVOKED.
            ``"fail"``: it fails with :class:`~celery_ratelimit.Throttled`.
        inline_wait: seconds that a task which is a little too early may be held in the worker, in every mode.
            Default: two intervals of the rate, at most 0.02.
        max_wait: seconds; a task whose slot is further away is given up. Default: never.
        overflow: what then becomes of it: ``"fail"`` (the default) or ``"drop"``.

    *Warning*: ``before_start`` is where a worker without the gate asks. Who overrides it calls ``super()``.
    """


def _ask_here(task: Any, task_id: str, args: Any, kwargs: Any) -> None:
    request = task.request
    delivery = request.delivery_info or {}
    if request.is_eager or request.called_directly or delivery.get(PERMIT) == request.hostname:
        return
    settings = settings_of(task.app)
    plan = make_plan(task, delivery.get("routing_key") or "", settings)
    if plan is None:
        return
    policy = plan.policy
    decision = limiter_of(task.app).ask(
        plan.demands(args, kwargs),
        id=task_id,
        horizon=policy.inline_wait,
        claim=1e9 if policy.max_wait is None else policy.max_wait,
    )
    if decision.allowed:
        time.sleep(decision.retry_after)
        return
    if policy.throttle == "fail":
        raise Throttled(decision.binding or "", decision.retry_after)
    if policy.throttle != "drop":
        task.signature_from_request(
            request,
            request.args,
            request.kwargs,
            countdown=decision.retry_after,
            retries=request.retries,
            argsrepr=getattr(request, "argsrepr", None),
            kwargsrepr=getattr(request, "kwargsrepr", None),
            add_to_parent=False,
        ).apply_async()
    raise Ignore
