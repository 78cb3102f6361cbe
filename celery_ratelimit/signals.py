"""Celery-style signals of this package.

>>> from celery_ratelimit.signals import task_throttled
>>> @task_throttled.connect
... def count(sender, request, retry_after, limit, outcome, **kwargs): ...
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

__all__ = ["task_throttled", "task_throttled_out"]

#: A task may not run yet. Sent in the worker's main process. ``sender``: the task; ``request``: its
#: ``celery.worker.request.Request``; ``retry_after``: seconds until the slot that it has, or would have had; ``limit``:
#: the name of the limit that refused, ``None`` while the store does not answer; ``rate``: its rate; ``key``: of its
#: bucket, ``""`` for a single bucket; ``outcome``: ``"waiting"`` (in the worker), ``"parked"``, ``"returned"`` (to the
#: broker), ``"dropped"``, ``"failed"`` or ``"diverted"`` (to another queue); ``reason``: the reason as text.
#: Receivers run in the worker's event loop: be quick. An error in a receiver is logged and changes nothing.
task_throttled: Signal = Signal(
    name="task_throttled", providing_args={"request", "retry_after", "limit", "rate", "key", "outcome", "reason"}
)

#: A limit has ended a task, which never runs; not sent where it fails (``task_failure`` is). Sent in the worker's main
#: process, by a worker without the gate in the task's. ``sender``: the task; ``task_id``, ``args``, ``kwargs``: of the
#: call; ``outcome``: ``"dropped"``, ``"coalesced"`` (another task waits in its place), or ``"expired"`` or
#: ``"revoked"`` while it waited for a limit; ``reason``: the reason as text. The task's ``on_throttled_out`` is called
#: just before. Its state is stored after that. Be quick, as in receivers of ``task_throttled``.
task_throttled_out: Signal = Signal(
    name="task_throttled_out", providing_args={"task_id", "args", "kwargs", "outcome", "reason"}
)
