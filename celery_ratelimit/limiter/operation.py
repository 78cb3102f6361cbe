"""Operations: generators of effects, written once. ``Limiter`` runs them, ``AsyncLimiter`` awaits them.

An operation yields an effect and receives the effect's result, or the exception that interrupted it. It returns its own
result.
"""

from __future__ import annotations

import inspect
import math
from asyncio import Task
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import chain, islice
from types import MethodType
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, overload

from ..errors import RateLimitError
from ..limits.decision import Decision
from ..store.script import Script
from .limit_request import LimitRequest
from .script_calls import Call

__all__ = [
    "KeysExist",
    "Operation",
    "RunScript",
    "Sleep",
    "UninterruptedAcquire",
    "at_once",
    "batches",
    "limiter_method",
    "run_all",
    "without_errors",
]

T = TypeVar("T")
P = ParamSpec("P")


class RunScript(NamedTuple):
    """Run one script. The result is its reply, or an error as a value."""

    script: Script
    call: Call


class KeysExist(NamedTuple):
    """Whether the store has one of these keys, all of one hash slot. An error is raised."""

    keys: list[str]


class Sleep(NamedTuple):
    """Sleep for so many seconds of the caller's clock."""

    seconds: float


@dataclass(slots=True, eq=False)
class UninterruptedAcquire:
    """Acquire permits, see :meth:`~celery_ratelimit.limiter.script_operations.Operations.ask`. Returns a decision.

    The call to the store runs to its end, also if the caller is interrupted: its reply alone says which permits are to
    be returned. In an event loop a task makes the call, since a cancelled reader would close its connection.

    Attributes:
        answer: the decision, once it is known.
        task: makes the call, in an event loop.
    """

    demands: Sequence[LimitRequest]
    id: str
    horizon: float
    claim: float
    answer: Decision | None = None
    task: Task[Decision] | None = None


#: Yields effects: a list of scripts to run at once (the result is a list), or one of the other effects.
Operation = Generator[list[RunScript] | KeysExist | Sleep | UninterruptedAcquire, Any, T]


def run_all(scripts: list[RunScript]) -> Operation[list[Any]]:
    """Run scripts at once and return their replies; the first error is raised."""
    return without_errors((yield scripts) if scripts else [])


def at_once(*operations: Operation[Any]) -> Operation[list[Any]]:
    """Run operations that yield only scripts side by side: a step of all is one round trip. Returns their results."""
    results: list[Any] = [None] * len(operations)
    replies: dict[int, Any] = dict.fromkeys(range(len(operations)))  # of the operations that have not ended
    while replies:
        asked: dict[int, Any] = {}
        for i, given in replies.items():
            try:
                asked[i] = operations[i].send(given)
            except StopIteration as end:
                results[i] = end.value
        said = iter((yield list(chain.from_iterable(asked.values()))) if asked else ())
        replies = {i: list(islice(said, len(scripts))) for i, scripts in asked.items()}
    return results


def without_errors(replies: Iterable[T | RateLimitError]) -> list[T]:
    """The replies; the first error is raised."""
    found = []
    for reply in replies:
        if isinstance(reply, RateLimitError):
            raise reply
        found.append(reply)
    return found


def batches(
    alone: bool, items: Sequence[T], most: int, largest: float = math.inf, size_of: Callable[[T], int] = lambda item: 0
) -> list[list[T]]:
    """Group items by script call: at most ``most``, whose sizes add up to ``largest``; or each ``alone``."""
    groups: list[list[T]] = []
    size = 0
    for item in items:
        if not groups or alone or len(groups[-1]) >= most or size + size_of(item) > largest:
            groups.append([])
            size = 0
        groups[-1].append(item)
        size += size_of(item)
    return groups


class _SyncLimiter(Protocol):
    """A limiter."""

    def _run(self, operation: Operation[T], /) -> T: ...


class _AsyncLimiter(Protocol):
    """A limiter for asyncio."""

    async def _await(self, operation: Operation[T], /) -> T: ...


class limiter_method(Generic[P, T]):
    """A method of both limiters, written as an operation: ``Limiter`` runs it, ``AsyncLimiter`` awaits it.

    The method has the operation's docstring, and its signature with the result that it returns.
    """

    def __init__(self, operation: Callable[Concatenate[Any, P], Operation[T]]) -> None:
        self.operation = operation
        self.__doc__ = operation.__doc__

        @wraps(operation)
        def run(limiter: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
            result: T = limiter._run(operation(limiter, *args, **kwargs))
            return result

        @wraps(operation)
        async def await_(limiter: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
            result: T = await limiter._await(operation(limiter, *args, **kwargs))
            return result

        written = inspect.signature(operation)
        result = str(written.return_annotation).removeprefix("Operation[").removesuffix("]")
        signature = written.replace(return_annotation=result)
        run.__signature__ = await_.__signature__ = signature  # type: ignore[attr-defined]
        self._run, self._await = run, await_

    @overload
    def __get__(self, limiter: _SyncLimiter, kind: Any = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, limiter: _AsyncLimiter, kind: Any = None) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, limiter: None, kind: Any = None) -> Callable[..., Any]: ...
    def __get__(self, limiter: Any, kind: Any = None) -> Any:
        method = self._await if hasattr(kind, "_await") else self._run
        return method if limiter is None else MethodType(method, limiter)
