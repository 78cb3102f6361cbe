"""Celery's line "Task … received": of a task that was throttled and comes back it is for whoever debugs.

What is relied on; line numbers are those of Celery 5.7.0:

* ``task_message_handler`` (celery/worker/strategy.py 155): logs it by the logger of its module, at INFO, with the
  task's id in ``record.data``, before it does anything else with the message.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

from .saved_message import marker_in

__all__ = ["ReceivedLogFilter"]

_logger = logging.getLogger("celery.worker.strategy")
#: Ids that are remembered, should no line be written of them.
_MOST = 10_000


class ReceivedLogFilter(logging.Filter):
    """Lowers the line of each message that has come back to DEBUG. Other filters, handlers and levels are as ever."""

    def __init__(self) -> None:
        super().__init__()
        self._back: dict[str, None] = {}
        self._order: deque[str] = deque()

    def open(self) -> None:
        _logger.addFilter(self)

    def close(self) -> None:
        _logger.removeFilter(self)
        self._back.clear()
        self._order.clear()

    def note(self, message: Any) -> None:
        """A message has come in."""
        if not marker_in(message) or not _logger.isEnabledFor(logging.INFO):
            return
        id = str(message.headers.get("id"))
        self._back[id] = None
        self._order.append(id)
        if len(self._order) > _MOST:
            self._back.pop(self._order.popleft(), None)

    def filter(self, record: logging.LogRecord) -> bool:
        data = getattr(record, "data", None)
        if record.levelno != logging.INFO or not isinstance(data, dict) or data.get("id") not in self._back:
            return True
        del self._back[data["id"]]
        record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
        return _logger.isEnabledFor(logging.DEBUG)
