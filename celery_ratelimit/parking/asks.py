"""Who asks the store now and then, and may be asked on by whoever waits for the answers, or by a thread meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["Asks", "Ended", "Errands", "asked", "go_on"]

_T = TypeVar("_T")

#: Yields what asks the store, in any thread, and is sent the reply; returns what has become of it.
Asks = Generator[Callable[[], Any], Any, _T]


class Errands(Protocol):
    """Questions for whose answers the worker's loop does not wait."""

    @property
    def use_threads(self) -> bool:
        """Whether that is better than to wait."""
        ...

    def run(self, question: Callable[[], Any], done: Callable[[Callable[[], Any], float], None]) -> Callable[[], Any]:
        """``done`` is called with what says the answer, or raises what was raised. Returns what waits for that."""
        ...


@dataclass(frozen=True, slots=True)
class Ended(Generic[_T]):
    """There is nothing more to ask."""

    result: _T


def go_on(asks: Asks[_T], reply: Callable[[], Any] | None = None) -> Callable[[], Any] | Ended[_T]:
    """Begin, or go on with the answer, which ``reply`` says, or raises what was raised. Returns what asks next."""
    try:
        if reply is None:
            return next(asks)
        try:
            said = reply()
        except Exception as error:
            return asks.throw(error)
        return asks.send(said)
    except StopIteration as end:
        return Ended(end.value)


def asked(asks: Asks[_T]) -> _T:
    """Ask, and wait for each answer."""
    step = go_on(asks)
    while not isinstance(step, Ended):
        step = go_on(asks, step)
    return step.result
