"""The worker's prefetch: each widening is undone by as much, and returned messages are not part of it.

What is relied on; line numbers are of Celery and kombu 5.7.0:

* ``Consumer.qos`` (celery/worker/consumer/tasks.py 55), a ``kombu.common.QoS`` (kombu/common.py 363), made anew for
  each connection: its methods are looked up at each call. It clamps increments to ``max_prefetch``, which is
  ``worker_eta_task_limit``, and not decrements: it falls for good.
* Each message with an ETA is an increment (strategy.py 199 and 211), and a decrement when the ETA has come:
  ``Consumer.apply_eta_task`` (consumer.py 734), ``_limit_post_eta`` (378). Both are read when the strategies are built,
  as is ``_limit_task`` (374), which is called for messages without one.
* ``worker_disable_prefetch`` (Celery 5.5, Redis alone): ``Tasks.start`` (consumer/tasks.py 76) gives the ``qos`` of the
  channel a ``can_consume`` that says no while as many requests are reserved as the pool has processes. It is set before
  the worker consumes anything.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery.worker import state

from . import requests

__all__ = ["Prefetch"]


class Prefetch:
    """How many messages a worker receives from the queues that it consumes for tasks."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._local = threading.local()

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """For a message outside the prefetch: its ETA does not change the window within this block."""
        before = getattr(self._local, "unchanged", False)
        self._local.unchanged = True
        try:
            yield
        finally:
            self._local.unchanged = before

    def widen(self, number: int) -> None:
        """Let ``number`` more messages in; fewer, if negative. ``worker_eta_task_limit`` does not apply."""
        self.attach().add(widened=number)

    def attach(self) -> _Window:
        """The window of this connection; at the first call Celery's changes of the prefetch are directed to it."""
        qos = self._consumer.qos
        window: _Window | None = getattr(qos, "ratelimit_window", None)
        if window is None:
            window = qos.ratelimit_window = _Window(qos)
            qos.increment_eventually = self._change_by(window, 1)
            qos.decrement_eventually = self._change_by(window, -1)
            self._free_processes_of_waiting_requests(window)
        return window

    def _free_processes_of_waiting_requests(self, window: _Window) -> None:
        """With ``worker_disable_prefetch`` a request that waits in the gate does not count as one with a process."""
        consumer = self._consumer
        qos: Any = getattr(consumer.task_consumer.channel, "qos", None)
        if not consumer.app.conf.get("worker_disable_prefetch") or "can_consume" not in vars(qos):
            return

        def can_consume() -> bool:
            limit = getattr(consumer.controller, "max_concurrency", None) or consumer.pool.num_processes
            occupied = len(state.reserved_requests) - window.widened
            return occupied < limit and bool(type(qos).can_consume(qos))

        qos.can_consume = can_consume

    def _change_by(self, window: _Window, sign: int) -> Callable[..., int]:
        def change(n: int = 1) -> int:
            if not getattr(self._local, "unchanged", False):
                window.add(raised=sign * n)
            return int(window.qos.value)

        return change

    def exempt_returned(self) -> None:
        """Do not apply Celery's own ``rate_limit`` again to a returned task: it was applied at the first delivery."""
        consumer = self._consumer
        apply_eta_task = consumer.apply_eta_task
        limit_task, limit_post_eta = consumer._limit_task, consumer._limit_post_eta

        @functools.wraps(apply_eta_task)
        def apply(request: Any) -> None:
            if requests.via_return_queue(request):
                with self.unchanged():
                    apply_eta_task(request)
            else:
                apply_eta_task(request)

        @functools.wraps(limit_task)
        def limit(request: Any, bucket: Any, tokens: int) -> None:
            if requests.was_throttled(request):
                consumer._limit_move_to_pool(request)
            else:
                limit_task(request, bucket, tokens)

        @functools.wraps(limit_post_eta)
        def post_eta(request: Any, bucket: Any, tokens: int) -> None:
            if requests.was_throttled(request):
                apply(request)
            else:
                limit_post_eta(request, bucket, tokens)

        consumer.apply_eta_task, consumer._limit_task, consumer._limit_post_eta = apply, limit, post_eta


class _Window:
    """The value of a ``kombu.common.QoS``: its base, plus ``raised`` for tasks with an ETA up to ``max_prefetch``, plus
    ``widened`` by the gate.
    """

    def __init__(self, qos: Any) -> None:
        self.qos = qos
        self._lock = threading.Lock()  # the worker's loop has taken away kombu's own (consumer.py, patch_all)
        self._base = self._last = int(qos.value)
        self._raised = 0
        self.widened: int = 0

    def add(self, *, raised: int = 0, widened: int = 0) -> None:
        qos = self.qos
        with self._lock:
            if not qos.value:
                return  # without a limit
            self._base += qos.value - self._last  # it was set: consumer.py 872
            self._raised += raised
            self.widened += widened
            value = self._base + self._raised
            most = getattr(qos, "max_prefetch", None)  # since kombu 5.5
            if most is not None and self._raised > 0:
                value = min(value, most)
            qos.value = self._last = max(1, value + self.widened)
