"""Tasks that are revoked while they are parked."""

from __future__ import annotations

import time

from .._celery import Worker
from ..app.plan import AppLimits
from .backlog import Backlog
from .backlog_queries import FOUND
from .messages import Bucket
from .publisher import Publisher

__all__ = ["Revoked"]

#: Revoked tasks that leave in one step.
AT_ONCE = 25


class Revoked:
    """Revoked tasks, as one worker hears of them.

    Args:
        worker: hears of them.
        parking: the lots.
        limits: whose lots are looked through.
        publisher: publishes.
    """

    def __init__(self, worker: Worker, parking: Backlog, limits: AppLimits, publisher: Publisher) -> None:
        self._worker, self._parking, self._limits, self._publisher = worker, parking, limits, publisher
        self._revoked: list[str] = []
        self._found: list[tuple[Bucket, list[str]]] = []

    def let_out(self, until: float) -> bool:
        """A task that was revoked leaves its lot at once: the worker that it comes to says that it is revoked.

        False: there are more, and time is up.
        """
        self._revoked += reversed(self._worker.newly_revoked())
        if not self._limits.names:
            self._revoked.clear()
        while self._revoked or self._found:
            if not self._found:
                number = max(1, FOUND // len(self._limits.names))
                asked, self._revoked = self._revoked[:number], self._revoked[number:]
                try:
                    steps = self._parking.contents.find(self._limits.names, asked)
                    found = [each for step in steps for each in step.items()]
                except BaseException:
                    self._revoked[:0] = asked
                    raise
                self._found += [(bucket, list(ids)) for bucket, ids in found]
            else:
                bucket, ids = self._found.pop()
                _, leaving, remaining = self._parking.contents.pick(bucket, ids[:AT_ONCE], purge=False)
                if remaining := [*remaining, *ids[AT_ONCE:]]:
                    self._found.append((bucket, remaining))
                self._publisher.publish({bucket: leaving} if leaving else {})
            if time.monotonic() >= until:
                return False
        return True
