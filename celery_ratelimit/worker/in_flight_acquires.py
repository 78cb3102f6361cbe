"""Lines for whose answers the worker does not wait: the store is some way off, and meanwhile there is more to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..limits.decision import Decision
from .admission import PermitClient
from .capacity import PoolCapacity
from .clock import monotonic
from .request import PendingRequest
from .request_queue import LimitQueue
from .rules import Action
from .store_calls import StoreCalls

__all__ = ["AcquireCall", "InFlightAcquires"]


@dataclass(slots=True, eq=False)
class AcquireCall:
    """Requests of a line for which the store is asked, for permits or for slots alone; and what it has said, or what
    was raised that nobody has foreseen. ``at``: when the answer came, for which the worker did not wait; it ``is_void``
    for whoever was refused if the limit has changed meanwhile.
    """

    those: Sequence[PendingRequest]
    for_permit: bool
    admission: Sequence[Decision | Action | None] | None = None
    error: Exception | None = None
    at: float | None = None
    is_void: bool = False


class InFlightAcquires:
    """Questions of one worker that are on their way, at the most one of each line: those behind it wait.

    Args:
        store_calls: ask.
        admission: of the store.
        capacity: keeps processes for what is asked for.

    Attributes:
        on_answer: called with a line whose answer has come.
    """

    def __init__(self, store_calls: StoreCalls, admission: PermitClient, capacity: PoolCapacity) -> None:
        self._store_calls, self._admission, self._capacity = store_calls, admission, capacity
        self._asked: dict[LimitQueue, AcquireCall] = {}
        self.on_answer: Callable[[LimitQueue], None] = lambda limit_queue: None

    def may_send(self, those: Sequence[PendingRequest]) -> bool:
        """Whether the worker goes on, while these are asked for. Not for who has yet to hear whether it may run, nor
        for places, which are handed on in the same step.
        """
        return (
            not those[0].plan.leased
            and all(pending.duplicate_checked for pending in those)
            and self._store_calls.use_threads
        )

    def send(self, limit_queue: LimitQueue, asked: AcquireCall) -> None:
        """Ask, and go on."""
        first, began = asked.those[0], monotonic()

        def is_back(decisions: Callable[[], Sequence[Decision]], at: float) -> None:
            asked.at = at
            try:
                asked.admission = self._admission.call_store(first, decisions, at - began)
            except Exception as error:
                asked.admission, asked.error = (), error
            if self._asked.get(limit_queue) is asked:
                self.on_answer(limit_queue)
            if self._asked.get(limit_queue) is asked and all(pending.gone for pending in asked.those):
                self.take(limit_queue)  # the line has ended, too

        self._asked[limit_queue] = asked
        limit_queue.is_asking = True
        if asked.for_permit:
            self._capacity.promises.ask_for(asked, len(asked.those), first.request.task.name)
        self._store_calls.run(self._admission.question(asked.those, for_permit=asked.for_permit), is_back)

    def note_changed(self, limit_queue: LimitQueue) -> None:
        """Its limits are others now: what it is just being told is about the old ones."""
        if limit_queue in self._asked:
            self._asked[limit_queue].is_void = True

    def take(self, limit_queue: LimitQueue) -> AcquireCall | None:
        """What was asked for a line, if the answer is there."""
        asked = self._asked.get(limit_queue)
        if asked is None or asked.admission is None:
            return None
        del self._asked[limit_queue]
        limit_queue.is_asking = False
        self._capacity.promises.is_answered(asked)
        return asked

    def clear(self) -> None:
        """The connection is lost, or the worker stops: what is on its way is nobody's."""
        self._asked.clear()
