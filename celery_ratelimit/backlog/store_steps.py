"""Operations that call the store several times: generators that yield each call and are sent its reply."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

__all__ = ["Asks", "Calls", "Reply", "Run", "advance", "asked"]

_T = TypeVar("_T")

#: Yields calls to the store, which any thread may make, and is sent the reply to each; returns the result.
Asks = Generator[Callable[[], Any], Any, _T]


@dataclass(frozen=True, slots=True)
class Reply(Generic[_T]):
    """What a call has returned, or the ``error`` that it has raised.

    Attributes:
        at: when the reply came.
        seconds: of the call alone, without what it has waited for a thread.
    """

    value: _T | None = None
    error: Exception | None = None
    at: float = 0.0
    seconds: float = 0.0

    def get(self) -> _T:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return cast("_T", self.value)


class Run(Protocol):
    """A generator that is under way."""

    def end(self) -> None:
        """Hear the reply to the call that is in flight, and make no other."""
        ...


class Calls(Protocol):
    """Makes the calls of generators."""

    def run(self, asks: Asks[_T], on_end: Callable[[Reply[_T]], None]) -> Run:
        """``on_end`` is called with the result, or the error: now, or later in the worker's loop."""
        ...


def advance(asks: Asks[_T], reply: Reply[Any] | None = None) -> Callable[[], Any] | Reply[_T]:
    """Begin, or go on with a reply. Returns the next call, or at the end the result."""
    try:
        if reply is None:
            return next(asks)
        if reply.error is not None:
            return asks.throw(reply.error)
        return asks.send(reply.value)
    except StopIteration as end:
        return Reply(end.value)
    except Exception as error:
        return Reply(error=error)


def asked(asks: Asks[_T]) -> _T:
    """Make each call here, and return the result."""
    step = advance(asks)
    while not isinstance(step, Reply):
        try:
            reply: Reply[Any] = Reply(step())
        except Exception as error:
            reply = Reply(error=error)
        step = advance(asks, reply)
    return step.get()
