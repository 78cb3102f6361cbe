"""The worker's autoscaler, which counts received requests: what waits for a limit needs no process.

What is relied on; line numbers are of Celery 5.7.0:

* ``WorkController.autoscaler``, ``None`` without ``--autoscale`` (celery/worker/autoscale.py 43), is there before the
  consumer. Its ``qty`` (autoscale.py 167) is the number of processes that it wants, between its bounds.
* With an event loop each message calls ``maybe_scale(request)`` before the gate has seen the request (autoscale.py 58),
  and a timer calls ``maybe_scale()`` every half a minute; else a thread does, each second (autoscale.py 87).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Autoscaling"]


class Autoscaling:
    """The autoscaler of one worker, if it has one."""

    def __init__(self, consumer: Any) -> None:
        self._autoscaler = getattr(consumer.controller, "autoscaler", None)
        self._has_thread = consumer.hub is None

    def leave_out(self, waiting: Callable[[], int]) -> None:
        """Count no requests that wait for limits: ``waiting`` tells how many there are."""
        if self._autoscaler is None:
            return
        own: Any = type(self._autoscaler)

        class GatedAutoscaler(own):
            @property
            def qty(self) -> int:
                return int(super().qty) - waiting()

            def maybe_scale(self, req: Any = None) -> None:
                if req is None:
                    super().maybe_scale()
                elif hasattr(own, "on_task_received"):  # since Celery 5.5
                    self.on_task_received(req)

        self._autoscaler.__class__ = GatedAutoscaler

    def update(self) -> None:
        """The gate has seen the requests that came: there may be others than before that want a process."""
        if self._autoscaler is not None and not self._has_thread:
            self._autoscaler.maybe_scale()
