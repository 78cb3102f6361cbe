"""How a worker hears that a place may be free for one of its lines: the store rings for it alone.

A line that was refused a place is noted there (``lua/include/waiting_lines.lua``), and asks when it is rung for. What
is rung while nobody listens is lost, so it asks from time to time all the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial

from .._celery import Worker
from ..limiter.asker import Asker
from .request_queue import LimitQueue
from .request_queues import RequestQueues

__all__ = ["LeaseNotifications"]


class LeaseNotifications:
    """One worker's. It listens from the first line on that waits for a place.

    Args:
        worker: the worker.
        asker: of the store.
        queues: who waits.
        run: moves lines on.
    """

    def __init__(
        self, worker: Worker, asker: Asker, queues: RequestQueues, run: Callable[[list[LimitQueue]], None]
    ) -> None:
        self._worker, self._queues, self._run = worker, queues, run
        # On a cluster a node that rings does not know whether it is heard at another: lua/include/waiting_lines.lua.
        self._name = ("c" if asker.is_cluster else "s") + uuid.uuid4().hex[:12]
        self._bell = asker.bell(self._name, self._on_ring)
        self._listens = False

    def name_of(self, limit_queue: LimitQueue) -> str:
        """What is rung for a line; empty: it would not be heard now."""
        if not self._listens and self._worker.timers.are_called_soon:
            self._listens = True
            self._bell.listen()
        return f"{self._name}.{limit_queue.number}" if self._bell.is_up else ""

    def close(self) -> None:
        """The connection to the broker is lost, or the worker stops: nobody waits here."""
        self._bell.close()
        self._listens = False

    def _on_ring(self, said: str | None) -> None:
        self._worker.timers.call_soon(partial(self._rung, said))

    def _rung(self, said: str | None) -> None:
        """``None``: nobody knows what was missed."""
        queues = [
            limit_queue
            for limit_queue in self._queues
            if limit_queue.channel and said in (None, str(limit_queue.number))
        ]
        for limit_queue in queues:
            limit_queue.next_ask = 0.0
        if queues:
            self._run(queues)
