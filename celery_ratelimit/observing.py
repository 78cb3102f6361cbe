"""Outcomes of tasks in a worker's gate, for observers: one frozen value for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["OUTCOMES", "STARTED", "UPSTREAM", "Asked", "Observation", "Observer"]

#: The outcomes with which a task starts.
STARTED = ("acquired", "waited")
#: What upstreams have caused, each with its letter in the counts of a minute: calls that were refused, pauses for which
#: headers asked, and breakers that have opened.
UPSTREAM = {"upstream_refused": "u", "upstream_header": "h", "breaker_opened": "b"}
#: Every outcome that is counted; "refused" is a :class:`~celery_ratelimit.Limiter`'s.
OUTCOMES = (
    *STARTED,
    "parked",
    "returned",
    "dropped",
    "failed",
    "diverted",
    "refused",
    "shadow",
    "store_error",
    *UPSTREAM,
)

#: A request to one limit: its name, the bucket's key (``""``: a single bucket), and the permits.
Asked = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Observation:
    """One outcome of one delivery of a task.

    Attributes:
        outcome: ``"acquired"``: the task starts at once; ``"waited"``: it starts after it was throttled; ``"waiting"``:
            it is held in the worker; ``"parked"`` (in the store), ``"returned"`` (to the broker, on a countdown),
            ``"dropped"``, ``"failed"``, ``"diverted"`` (to another queue); ``"store_error"``: the store did not
            answer, and ``ratelimit_on_store_error`` applies; ``"shadow"``: the task starts, and all its limits are in
            shadow.
        task: the task's name.
        id: the task's id.
        queue: the queue that the task was sent to.
        limit: the limit that refused; of a task that starts, its first limit; ``None``: not known from the store.
        key: of that limit's bucket; ``""``: a single bucket.
        cost: permits of that limit.
        retry_after: seconds until the slot that the task has, or would have had; 0.0: the task starts.
        throttled_for: seconds that the task has waited, as far as this worker and the store know.
        rate: that limit's rate, as text.
        reason: the reason, as text; ``""``: the task starts.
        said: the outcome as logged.
        asked: the requests to all its limits.
        shadow: of a task that starts, the requests to limits in shadow, which do not delay it.
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
    """Gets each outcome, in the worker's event loop: be quick. Its errors are logged once."""

    def __call__(self, seen: Observation, /) -> None: ...
