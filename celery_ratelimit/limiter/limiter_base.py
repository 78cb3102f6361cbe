"""What all methods of both limiters share: the parts of a limiter, limits in shadow, and counts of decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ..errors import STORE_TROUBLES
from ..limits.any_limit import AnyLimit
from ..limits.decision import Decision
from .limit_request import LimitRequest
from .operation import Operation
from .report_counts import note, note_lost
from .resolve_request import RequestResolver
from .script_operations import Operations
from .shadow import asked_of

__all__ = ["LimiterBase"]


class LimiterBase:
    """The parts that both limiters share. Private, but for the whole package: ``_reader``, which resolves requests, and
    ``_asker``, which runs operations for resolved requests; ``_pass_by`` and ``_correct``.

    Args:
        quotas, prefix, lowest_first: see :class:`~celery_ratelimit.Limiter`.
        core: makes the operations.
        clock: the caller's clock.
    """

    #: Makes an app's limiter of this class. The package sets it: the limiter layer does not know Celery apps.
    _of_app: ClassVar[Callable[[type[LimiterBase], Any], Any]]
    _counting: Any

    def __init__(
        self, quotas: Mapping[str, Any] | None, prefix: str, core: Operations, clock: Any, lowest_first: bool | None
    ) -> None:
        self.prefix = prefix
        self._reader = RequestResolver(quotas)
        self._reader.goes_by = lambda: lowest_first
        self._core, self._clock = core, clock

    def _pass_by(self, shadow: Sequence[LimitRequest], users: Sequence[str] = ()) -> None:
        """Count a call that limits in shadow let through; ``users``: see ``Tally``."""
        if self._counting is not None:
            self._core.shadows.note(shadow)
            self._counting.counter.shadowed(asked_of(shadow), users)

    def _correct(self, shadow: Sequence[LimitRequest], actual: Sequence[int]) -> None:
        """Correct the counted cost of a call that limits in shadow let through."""
        if self._counting is not None:
            more = [(each.name, each.key, cost - each.cost) for each, cost in zip(shadow, actual, strict=True)]
            self._core.shadows.note(shadow)
            self._counting.counter.corrected(more)

    def _let_through(self, decision: Decision, shadow: tuple[LimitRequest, ...]) -> Decision:
        self._pass_by(shadow)
        return replace(decision, _shadow=shadow)

    def _counted(
        self, operation: Operation[Decision], demands: tuple[LimitRequest, ...], *, waits: bool
    ) -> Operation[Decision]:
        now, counting = self._clock.monotonic, self._counting
        if counting is None:
            return (yield from operation)
        began = now()
        try:
            decision = yield from operation
        except STORE_TROUBLES:
            note_lost(counting.counter, demands)
            raise
        note(counting.counter, decision._demands or demands, decision, now() - began if waits else 0.0)
        self._core.shadows.note_decision(decision)
        return decision

    @property
    def quotas(self) -> dict[str, AnyLimit]:
        """Limits by name; more may be added."""
        return self._reader.quotas
