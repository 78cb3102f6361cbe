"""The request that is being handled: an unforeseen error that is raised at it ends its task and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .._celery import Worker
from .request import PendingRequest
from .request_queue import LimitQueue

__all__ = ["ErrorAttribution"]


class ErrorAttribution:
    """One worker's.

    Args:
        worker: the worker.
        on_error: gets a request and what was raised at it.

    Attributes:
        pair: its line, and it; it may be just leaving that. ``None``: none is looked at.
    """

    def __init__(self, worker: Worker, on_error: Callable[[PendingRequest, Exception], None]) -> None:
        self._worker, self._on_error = worker, on_error
        self.pair: tuple[LimitQueue, PendingRequest] | None = None

    def ends_by(self, error: Exception) -> bool:
        """Something was raised. Whether it was at a request, which has ended; a lost connection concerns all."""
        if self.pair is None or isinstance(error, self._worker.broker.connection_errors):
            return False
        self._on_error(self.pair[1], error)
        return True

    @contextmanager
    def contains(self, limit_queue: LimitQueue, pending: PendingRequest) -> Iterator[None]:
        """Whatever is raised within is this request's."""
        self.pair = limit_queue, pending
        try:
            yield
        except Exception as error:
            self.pair = limit_queue, pending
            if not self.ends_by(error):
                raise
        finally:
            self.pair = None
