"""When a limit lets only single tasks through, because the upstream of its tasks fails."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigurationError, shown
from .any_limit import is_number

__all__ = ["Breaker"]

#: Tasks whose outcomes the store keeps for a breaker: a byte each.
_MOST = 1000


@dataclass(frozen=True, slots=True)
class Breaker:
    """A circuit breaker: while the upstream fails, one task tries at a time, and the rest waits in the backlog.

    After ``open_after`` failures, in a row or of the last ``of_last`` tasks, the limit's rate is one call in
    ``half_open_every`` seconds, for the whole fleet. The first task that succeeds brings the limit's own rate back.

    Args:
        open_after: failures, 1 to 1,000.
        half_open_every: seconds from one try to the next, 0.1 to 86,400.
        errors: the errors that are failures. A task that ends with ``Retry`` because of one has failed, too.
        of_last: the failures are of that many tasks that ended last, up to 1,000: ``Breaker(10, of_last=20)``
            opens when half of the tasks have failed. Default: ``open_after``, so that the failures are in a row.

    Weaknesses: a process reports a success at most once a second, unless its last task failed. So successes of other
    processes may be counted late. Tries that take longer than ``half_open_every`` overlap, and where costs differ they
    are as far apart as the costs say. If no task fails for an hour, the rate comes back untried. A task that is killed
    at its hard time limit is not counted.
    """

    open_after: int = 10
    half_open_every: float = 5.0
    errors: tuple[type[Exception], ...] = (Exception,)
    of_last: int | None = None

    def __post_init__(self) -> None:
        if type(self.open_after) is not int or not 1 <= self.open_after <= _MOST:
            raise ConfigurationError(
                f"Breaker: open_after={shown(self.open_after)} must be a whole number, 1 to {_MOST}"
            )
        of_last = self.of_last
        if of_last is not None and (type(of_last) is not int or not self.open_after <= of_last <= _MOST):
            raise ConfigurationError(
                f"Breaker: of_last={shown(of_last)} must be a whole number, open_after ({self.open_after}) to {_MOST}"
            )
        if not is_number(self.half_open_every) or not 0.1 <= self.half_open_every <= 86_400:
            raise ConfigurationError(
                f"Breaker: half_open_every={shown(self.half_open_every)} must be seconds, 0.1 to 86400"
            )
        errors = self.errors if isinstance(self.errors, tuple) else (self.errors,)
        if not errors or not all(isinstance(each, type) and issubclass(each, Exception) for each in errors):
            raise ConfigurationError(
                f"Breaker: errors={shown(self.errors)} must be subclasses of Exception: SystemExit and "
                "KeyboardInterrupt end the process, and not the task"
            )
        object.__setattr__(self, "errors", errors)
