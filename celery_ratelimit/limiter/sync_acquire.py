"""``Limiter.acquire``: a repeated call that does not wait sends a prepared command.

Most calls repeat an earlier one, and their command never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from redis.exceptions import NoScriptError

from ..errors import STORE_TROUBLES, RateLimitError, StoreFull
from ..limits.any_limit import AnyLimit
from ..limits.decision import Decision
from ..observing import Asked
from .limit_request import LimitRequest, Limits, leased
from .operation import Operation
from .permit_methods import PermitMethods
from .script_calls import decision_of, impossible, whole_numbers
from .shadow import asked_of
from .sync_store import StoreRunner
from .usage import note, note_lost

__all__ = ["SyncAcquire"]

R = TypeVar("R")


class WarmAcquire(NamedTuple):
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


_ACQUIRE = PermitMethods.__dict__["acquire"].operation
#: Calls that are kept prepared.
_MOST_WARM = 1024


class SyncAcquire(PermitMethods):
    """Acquire, reserve and return permits, for a limiter that blocks.

    Args:
        quotas, asker, lowest_first: see :class:`~celery_ratelimit.Limiter`.
    """

    def __init__(self, quotas: Mapping[str, Any] | None, asker: StoreRunner, lowest_first: bool | None) -> None:
        super().__init__(quotas, asker.prefix, asker.core, asker.clock, lowest_first)
        self._asker = asker
        self._warm: dict[Any, WarmAcquire | None] = {}

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
        warm: WarmAcquire | None = None
        if max_wait == 0 and priority is None and (cost is None or type(cost) is int):  # as keys, True and 1.0 are 1
            if args is None:
                asked: Any = (tuple(limits) if type(limits) is list else limits, key, cost)
            else:
                asked = self._reader.plain(limits, key, cost, args)
            try:
                warm = self._warm[asked]
            except KeyError:
                warm = self._prepare(asked, asked if args is not None else self._reader.plain(limits, key, cost, None))
            except TypeError:  # not hashable, and so invalid
                pass
        if warm is not None and not self._core.shadows.stored:
            for name, quota in warm.quotas:
                if self._reader.quotas.get(name) is not quota:
                    self._warm.pop(asked, None)
                    return self.acquire(limits, key=key, cost=cost)
            return self._acquire_warm(warm)
        decision: Decision = self._run(
            _ACQUIRE(self, limits, key=key, args=args, cost=cost, priority=priority, max_wait=max_wait)
        )
        return decision

    acquire.__doc__ = PermitMethods.acquire.__doc__

    def _acquire_warm(self, warm: WarmAcquire) -> Decision:
        """Do what :meth:`_acquire` does, for a prepared call that does not wait."""
        counting = self._counting
        try:
            reply = self._asker.store(self._asker.link.exchange, warm.command)
        except RateLimitError as error:
            if isinstance(error, StoreFull) or isinstance(error.__cause__, NoScriptError):
                return self._run(self._acquire(warm.demands, 0.0))
            if counting is not None and isinstance(error, STORE_TROUBLES):
                note_lost(counting.counter, warm.demands)
            raise impossible(warm.demands, error) from error.__cause__
        decision = decision_of(warm.demands, whole_numbers(reply), self._core.new_id())
        for state in decision.states:
            if state.version < 0:
                self._core.shadows.hear(decision)
        if counting is None:
            return decision
        if decision.allowed:
            for each in warm.asked:
                counting.counter.at_once(each)
        else:
            note(counting.counter, warm.demands, decision, 0.0)
        return decision

    def _prepare(self, asked: Any, demands: tuple[LimitRequest, ...]) -> WarmAcquire | None:
        """Prepare the call ``asked``, and keep it; ``None``: it does not take exactly one script.

        Nor is a call prepared that names a limit of an app's task, which may yet be registered.
        """
        core, limits = self._core, [demand.limit for demand in demands]
        named = asked[0] if asked and isinstance(asked[0], tuple) else asked[:1]
        names = [each for each in named if isinstance(each, str)]
        warm = None
        if (
            demands
            and self._asker.link.takes_bytes
            and core.takes_one_script(demands)
            and not (leased(demands) or any(limit.shadow or limit.priority_reserve is not None for limit in limits))
            and all(name in self.quotas for name in names)
        ):
            script, quotas = core.scripts.acquire, tuple([(name, self.quotas[name]) for name in names])
            command = script.command(*core.calls.of_script(script, demands, ("", 0, 0), None, ()))
            warm = WarmAcquire(demands, command, asked_of(demands), quotas)
        if len(self._warm) >= _MOST_WARM:
            self._warm.clear()
        self._warm[asked] = warm
        return warm
