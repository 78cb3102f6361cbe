"""What becomes of tasks in a worker's gate, for whoever observes it: one frozen value for each outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["OUTCOMES", "STARTED", "Asked", "Observation", "Observer"]

#: The outcomes by which a task starts.
STARTED = ("acquired", "waited")
#: Every outcome that is counted; "refused" is a :class:`~celery_ratelimit.Limiter`'s.
OUTCOMES = (*STARTED, "parked", "returned", "dropped", "failed", "diverted", "refused", "shadow", "store_error")

#: What was asked of one limit: its name, the bucket's key (``""``: it has only one), and the permits.
Asked = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Observation:
    """One outcome of one delivery of a task.

    Attributes:
        outcome: ``"acquired"``: it starts at once; ``"waited"``: it starts, after it was throttled; ``"waiting"``: it
            is held in the worker; ``"parked"`` (in the store), ``"returned"`` (to the broker, on a countdown),
            ``"dropped"``, ``"failed"``, ``"diverted"`` (to another queue); ``"store_error"``: the store did not
            answer, and it is handled as ``ratelimit_on_store_error`` says; ``"shadow"``: it starts, and all its limits
            are in shadow.
        task: the task's name.
        id: the task's id.
        queue: that it was sent to.
        limit: the limit that said no; of a task that starts, its first one; ``None``: the store did not say.
        key: of that limit's bucket; ``""``: it has only one.
        cost: permits, of that limit.
        retry_after: seconds until its turn, or until it would have been; 0.0: it starts.
        throttled_for: seconds that it has waited so far, as far as this worker and the store know.
        rate: that limit's, in words.
        reason: why, in words; ``""``: it starts.
        said: the same as it stands in the log.
        asked: of all its limits.
        shadow: of a task that starts, what limits in shadow were asked, which do not hold it up.
    """

    outcome: str
    task: str
    id: str
    queue: str
    limit: str | None
    key: str = ""
    cost: int = 1
    retry_after: float = 0.0
    throttled_for: float = 0.0
    rate: str = ""
    reason: str = ""
    said: str = ""
    asked: tuple[Asked, ...] = ()
    shadow: tuple[Asked, ...] = ()


class Observer(Protocol):
    """Is told of each outcome, in the worker's event loop: be quick. What it raises is logged once."""

    def __call__(self, seen: Observation, /) -> None: ...
