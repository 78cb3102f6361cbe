"""``acquire`` without waiting: a repeated call sends a prepared command.

Most calls repeat an earlier one, and their command never changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from redis.exceptions import NoScriptError

from ..errors import STORE_TROUBLES, RateLimitError, StoreFull
from ..limits.any_limit import AnyLimit
from ..limits.decision import Decision
from ..limits.key_rates import has_other_answers
from ..observing import Asked
from .blocking_acquire import give_back
from .limit_request import LimitRequest, Limits, leased
from .operation import Operation
from .permit_methods import PermitMethods
from .report_counts import note, note_lost
from .script_calls import decision_of, impossible, whole_numbers
from .shadow import asked_of

if TYPE_CHECKING:
    from .async_store import AsyncStoreRunner
    from .sync_store import StoreRunner

__all__ = ["AsyncPermitMethods", "PreparedAcquireBase", "SyncPermitMethods"]

R = TypeVar("R")

_ACQUIRE = PermitMethods.__dict__["acquire"].operation
#: Kinds of ``limits`` that say the same at each call, and may be read twice; so does a limit.
_REPEATABLE = (str, list, tuple)
#: Calls that are kept prepared.
_MOST = 1024


class PreparedCall(NamedTuple):
    """A repeated call with its prepared command: one script decides it.

    Attributes:
        demands: the limit requests.
        command: the script's call in wire form.
        asked: the limit requests as the counters take them.
        quotas: the quotas that the call names, by name. A quota may be replaced.
    """

    demands: tuple[LimitRequest, ...]
    command: bytes
    asked: tuple[Asked, ...]
    quotas: tuple[tuple[str, AnyLimit], ...]


class PreparedAcquireBase(PermitMethods):
    """Acquire, reserve and return permits; ``acquire`` by prepared calls.

    Args:
        quotas, lowest_first: see :class:`~celery_ratelimit.Limiter`.
        asker: runs operations: a ``StoreRunner`` or an ``AsyncStoreRunner``.
    """

    def __init__(self, quotas: Mapping[str, Any] | None, asker: Any, lowest_first: bool | None) -> None:
        super().__init__(quotas, asker.core.calls.prefix, asker.core, asker.clock, lowest_first)
        self._asker = asker
        self._calls: dict[Any, PreparedCall | None] = {}

    def _prepared(
        self,
        limits: Limits,
        key: str | None,
        args: Mapping[str, Any] | None,
        cost: int | None,
        priority: int | None,
        max_wait: float | None,
    ) -> PreparedCall | Operation[Decision]:
        """The prepared call; or the operation of a call that takes more than a single script, or is invalid."""
        if (
            max_wait != 0
            or priority is not None
            or not (cost is None or type(cost) is int)  # as keys, True and 1.0 are 1
            or not (type(limits) in _REPEATABLE or isinstance(limits, AnyLimit))
        ):
            return self._general(limits, key, args, cost, priority, max_wait)
        if args is None:
            asked: Any = (tuple(limits) if type(limits) is list else limits, key, cost)
        else:
            asked = self._reader.plain(limits, key, cost, args)
        call = None
        try:
            call = self._calls[asked]
        except KeyError:
            call = self._prepare(asked, asked if args is not None else self._reader.plain(limits, key, cost, None))
        except TypeError:  # not hashable, and so invalid
            pass
        for name, quota in call.quotas if call is not None else ():
            if self._reader.quotas.get(name) is not quota:
                call = self._prepare(asked, self._reader.plain(limits, key, cost, None))
                break
        if call is not None and not self._core.shadows.stored:
            return call
        if args is not None:  # the arguments are read once
            return self._acquire(self._reader.of_priority(asked, None), max_wait)
        return self._general(limits, key, args, cost, priority, max_wait)

    def _general(
        self,
        limits: Limits,
        key: str | None,
        args: Mapping[str, Any] | None,
        cost: int | None,
        priority: int | None,
        max_wait: float | None,
    ) -> Operation[Decision]:
        operation: Operation[Decision] = _ACQUIRE(
            self, limits, key=key, args=args, cost=cost, priority=priority, max_wait=max_wait
        )
        return operation

    def _prepare(self, asked: Any, demands: tuple[LimitRequest, ...]) -> PreparedCall | None:
        """Prepare the call ``asked``, and keep it; ``None``: it does not take exactly one script.

        Nor is a call prepared that names a limit of an app's task, which may yet be registered, or a key whose rate may
        change.
        """
        core, limits = self._core, [demand.limit for demand in demands]
        named = asked[0] if asked and isinstance(asked[0], tuple) else asked[:1]
        names = [each for each in named if isinstance(each, str)]
        call = None
        if (
            demands
            and self._asker.link.takes_bytes
            and core.takes_one_script(demands)
            and not (leased(demands) or any(limit.shadow or limit.priority_reserve is not None for limit in limits))
            and all(name in self.quotas for name in names)
            and (asked is demands or not any(map(has_other_answers, limits)))
        ):
            script, quotas = core.scripts.acquire, tuple([(name, self.quotas[name]) for name in names])
            command = script.command(*core.calls.of_script(script, demands, ("", 0, 0), None, ()))
            call = PreparedCall(demands, command, asked_of(demands), quotas)
        if len(self._calls) >= _MOST:
            self._calls.clear()
        self._calls[asked] = call
        return call

    def _decided(self, call: PreparedCall, reply: Any) -> Decision:
        """Read the reply and count the decision, as the general way of ``acquire`` does."""
        decision = decision_of(call.demands, whole_numbers(reply), self._core.new_id())
        for state in decision.states:
            if state.version < 0:
                self._core.shadows.note_decision(decision)
        counting = self._counting
        if counting is None:
            return decision
        if decision.allowed:
            for each in call.asked:
                counting.counter.at_once(each)
        else:
            note(counting.counter, call.demands, decision, 0.0)
        return decision

    def _failed(self, call: PreparedCall, error: RateLimitError) -> RateLimitError | None:
        """The error to raise; ``None``: make the call in the general way: its script is unknown yet, or the store is
        full.
        """
        if isinstance(error, StoreFull) or isinstance(error.__cause__, NoScriptError):
            return None
        if self._counting is not None and isinstance(error, STORE_TROUBLES):
            note_lost(self._counting.counter, call.demands)
        return impossible(call.demands, error)


class SyncPermitMethods(PreparedAcquireBase):
    """Acquire, reserve and return permits, for a limiter that blocks."""

    _asker: StoreRunner

    def _run(self, operation: Operation[R], /) -> R:
        return self._asker.drive(operation)

    def acquire(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
        priority: int | None = None,
        max_wait: float | None = 0.0,
    ) -> Decision:
        call = self._prepared(limits, key, args, cost, priority, max_wait)
        if not isinstance(call, PreparedCall):
            return self._run(call)
        try:
            reply = self._asker.store(self._asker.link.exchange, call.command)
        except RateLimitError as error:
            told = self._failed(call, error)
            if told is None:
                return self._run(self._acquire(call.demands, max_wait))
            raise told from error.__cause__
        return self._decided(call, reply)

    acquire.__doc__ = PermitMethods.acquire.__doc__


class AsyncPermitMethods(PreparedAcquireBase):
    """Acquire, reserve and return permits, in an event loop."""

    _asker: AsyncStoreRunner

    async def _await(self, operation: Operation[R], /) -> R:
        return await self._asker.drive(operation)

    async def acquire(
        self,
        limits: Limits,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        cost: int | None = None,
        priority: int | None = None,
        max_wait: float | None = 0.0,
    ) -> Decision:
        call = self._prepared(limits, key, args, cost, priority, max_wait)
        if not isinstance(call, PreparedCall):
            return await self._await(call)
        task = self._asker.start(self._asker.exchange(call.command))
        try:
            reply = await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.shield(self._asker.start(self._return_permits(call, task)))
            raise
        except RateLimitError as error:
            told = self._failed(call, error)
            if told is None:
                return await self._await(self._acquire(call.demands, max_wait))
            raise told from error.__cause__
        return self._decided(call, reply)

    acquire.__doc__ = PermitMethods.acquire.__doc__

    async def _return_permits(self, call: PreparedCall, task: asyncio.Task[Any]) -> None:
        """Return the permits of a cancelled call, once its reply is there. It is not counted."""
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            decision = decision_of(call.demands, whole_numbers(task.result()), self._core.new_id())
            await self._await(give_back(self._core, call.demands, "", decision))
