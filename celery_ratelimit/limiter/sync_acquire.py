"""``Limiter.acquire``: a repeated call that does not wait sends a prepared command.

Most calls repeat an earlier one, and their command never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from redis.exceptions import NoScriptError

from ..errors import STORE_TROUBLES, RateLimitError
from ..limits.any_limit import AnyLimit
from ..limits.decision import Decision
from ..observing import Asked
from .limit_request import LimitRequest, Limits, leased
from .operation import Operation
from .parts import parts_of
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
    quotas: tuple[tuple[str, AnyLimit], ...] = ()


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
        self._warm_of = lru_cache(maxsize=_MOST_WARM)(self._make_warm)

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
        asked: Any = None
        warm: WarmAcquire | None = None
        if max_wait == 0 and priority is None:
            if args is not None:
                warm = self._warm_of(self._reader.plain(limits, key, cost, args))
            elif cost is None or type(cost) is int:  # as keys, True and 1.0 are 1
                asked = (tuple(limits) if type(limits) is list else limits, key, cost)
                try:
                    warm = self._warm[asked]
                except (KeyError, TypeError):
                    pass
                else:
                    asked = None
        if warm is not None and not self._core.shadows.stored and self._core.pretended_wait is None:
            for name, quota in warm.quotas:
                if self._reader.quotas.get(name) is not quota:
                    break
            else:
                return self._acquire_warm(warm)
        decision: Decision = self._run(
            _ACQUIRE(self, limits, key=key, args=args, cost=cost, priority=priority, max_wait=max_wait)
        )
        if asked is not None:
            self._warm_up(asked)
        return decision

    acquire.__doc__ = PermitMethods.acquire.__doc__

    def _acquire_warm(self, warm: WarmAcquire) -> Decision:
        """Do what :meth:`_acquire` does, for a prepared call that does not wait."""
        counting = self._counting
        try:
            reply = self._asker.exchange(warm.command)
        except RateLimitError as error:
            if isinstance(error.__cause__, NoScriptError):
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

    def _warm_up(self, asked: Any) -> None:
        """Prepare the command of such a call."""
        limits, key, cost = asked
        try:
            hash(asked)
        except TypeError:
            return
        warm = self._warm_of(self._reader.plain(limits, key, cost, None))
        if warm is not None:
            names = [each for each in (limits if isinstance(limits, tuple) else (limits,)) if isinstance(each, str)]
            if any(name not in self.quotas for name in names):  # a limit of an app's task, which may yet be registered
                warm = None
            else:
                warm = warm._replace(quotas=tuple([(name, self.quotas[name]) for name in names]))
        if len(self._warm) >= _MOST_WARM:
            self._warm.clear()
        self._warm[asked] = warm

    def _make_warm(self, demands: tuple[LimitRequest, ...]) -> WarmAcquire | None:
        """Prepare a call; ``None``: the call takes more than one script."""
        core, limits = self._core, [demand.limit for demand in demands]
        is_usual = not (leased(demands) or any(limit.shadow or limit.priority_reserve is not None for limit in limits))
        if not demands or not is_usual or not self._asker.takes_bytes or (core.is_cluster and parts_of(demands)):
            return None
        call = core.calls.of_script(core.scripts.acquire, demands, ("", 0, 0), None, ())
        return WarmAcquire(demands, core.scripts.acquire.command(*call), asked_of(demands))
