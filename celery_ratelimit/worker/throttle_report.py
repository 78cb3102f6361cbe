"""What became of a throttled task, and why: said alike in the log, the event, the signal and the task's result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..app.options import Policy
from ..errors import Throttled
from ..limiter.demand import Demand
from ..limits.limit import Limit

__all__ = ["ThrottleReport"]

#: What happens to a throttled task, as it is said in a log.
_SAID = {
    "waiting": "waits in this worker",
    "parked": "parked",
    "returned": "sent back",
    "dropped": "dropped",
    "failed": "failed",
}


@dataclass(frozen=True, slots=True)
class ThrottleReport:
    """One throttled task's.

    Attributes:
        what: ``"waiting"`` (in the worker), ``"parked"`` (in the store), ``"returned"`` (to the broker, on a
            countdown), ``"dropped"``, ``"failed"``, or ``"diverted"`` (to another queue).
        retry_after: seconds until its turn, or until it would have been.
        demand: of the limit that said no; ``None``: the store does not answer.
        interval: seconds in which a permit of that limit comes back at the rate that is in force; 0.0: as in the code.
        stored: the rate stored in the place of the code's, and by which person: ``20/s set by anna``; empty: none.
        max_wait: seconds; its turn is too far away for this; ``None``: that is not why.
        waited: seconds that it has waited already.
        full: there is no room to wait.
        to: the queue that it is diverted to.
    """

    what: str
    retry_after: float
    demand: Demand | None = None
    interval: float = 0.0
    stored: str = ""
    max_wait: float | None = None
    waited: float = 0.0
    full: bool = False
    to: str | None = None

    def given_up(self, how: str, policy: Policy) -> ThrottleReport:
        """The report of a task that is given up: ``"drop"``, ``"fail"``, or the queue that it is sent to."""
        what, to = {"drop": ("dropped", None), "fail": ("failed", None)}.get(how, ("diverted", how))
        max_wait = policy.max_wait if policy.waits and not self.full else self.max_wait
        return replace(self, what=what, to=to, max_wait=max_wait)

    @property
    def limit(self) -> str | None:
        """The name of the limit that said no."""
        return self.demand.name if self.demand is not None else None

    @property
    def key(self) -> str:
        """Of the bucket; ``""``: the limit has only one."""
        return self.demand.key if self.demand is not None else ""

    @property
    def rate(self) -> str:
        """The limit as in the code (``"100/s"``, ``"4 at once"``), and what is stored in its place."""
        if self.demand is None:
            return ""
        limit = self.demand.limit
        code = limit.rate if isinstance(limit, Limit) else f"{limit.size} at once"
        if self.stored:
            return f"{code} in code, {self.stored}"
        of_rate = isinstance(limit, Limit) and self.interval > 0
        differs = of_rate and abs(self.interval - limit.interval) > 1e-6 * limit.interval
        return f"{code} in code, {1 / self.interval:.6g}/s now" if differs else code

    @property
    def reason(self) -> str:
        """Which limit refused, and until when, in words."""
        if self.demand is None:
            return "the limiter's store does not answer"
        return str(self.error)

    @property
    def error(self) -> Throttled:
        """What a task fails with that is given up."""
        assert self.limit is not None
        return Throttled(self.limit, self.retry_after, self.max_wait, self.key)

    def __str__(self) -> str:
        if self.demand is None:
            return (
                f"throttled while the limiter's store does not answer: {_SAID[self.what]} for {self.retry_after:.3f} s"
            )
        key = f", key {self.key!r}" if self.key else ""
        what = f"sent on to queue {self.to!r}" if self.what == "diverted" else _SAID[self.what]
        return f"throttled by limit {self.limit!r} ({self.rate}{key}): {what}, {self._when()}"

    def _when(self) -> str:
        seconds = f"{self.retry_after:.3f} s"
        if self.full:
            return f"as there is no room to wait, but in {seconds}"
        if self.max_wait is not None:
            after = f" after {self.waited:.3f} s of waiting" if self.waited >= 0.01 else ""
            return f"as its turn would be in {seconds}{after}, beyond max_wait={self.max_wait:g} s"
        if self.what in ("dropped", "failed"):
            return f"a permit is free in {seconds}"
        return f"its turn is in {seconds}"

    def fields(self) -> dict[str, Any]:
        """As the event and the signal have it."""
        return {
            "retry_after": self.retry_after,
            "limit": self.limit,
            "outcome": self.what,
            "rate": self.rate,
            "key": self.key,
            "reason": self.reason,
        }
