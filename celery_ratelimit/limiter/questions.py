"""What is asked of the store, as values: generators yield it, and whoever drives them asks, waits or awaits.

A driver sends each answer to the generator, or throws what has interrupted it; what the generator returns is the
answer to the whole.
"""

from __future__ import annotations

from asyncio import Task
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ..errors import RateLimitError
from ..limits.decision import Decision
from ..store.script import Script
from .calls import Call
from .demand import Demand

__all__ = ["Asks", "Exists", "Question", "Request", "Sleep", "each_of"]

T = TypeVar("T")


class Question(NamedTuple):
    """One script, and what it is called with. Its reply is the answer; or an error, as a value."""

    script: Script
    call: Call


class Exists(NamedTuple):
    """Whether the store has one of these keys, of one slot. What goes wrong is raised."""

    keys: list[str]


class Sleep(NamedTuple):
    """So many seconds of the caller's."""

    seconds: float


@dataclass(slots=True, eq=False)
class Request:
    """Permits of demands, see :meth:`Core.ask <celery_ratelimit.limiter.core.Core.ask>`; the answer is a decision.

    It is asked for to its end, whoever is interrupted meanwhile.

    Attributes:
        answer: once it is known.
        task: what asks, in an event loop.
    """

    demands: Sequence[Demand]
    id: str
    horizon: float
    claim: float
    answer: Decision | None = None
    task: Task[Decision] | None = None


#: Yields what to do next: questions to ask at once (the answer is a list), or one of the others.
Asks = Generator[list[Question] | Exists | Sleep | Request, Any, T]


def each_of(questions: list[Question]) -> Asks[list[Any]]:
    """The replies; the first error is raised."""
    replies = (yield questions) if questions else []
    for reply in replies:
        if isinstance(reply, RateLimitError):
            raise reply
    return list(replies)
