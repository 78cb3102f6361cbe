"""What comes back from a lot: the store is told, and says which copy of a message may run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from .._celery import Worker
from .._celery.parcel import marker_in
from ..limiter.demand import Demand
from ..limiter.outage import Outage
from .lot import Parking
from .parked import Bucket

__all__ = ["Arrivals"]

#: Seconds after which it is told which messages have come: they wait for their slots meanwhile.
TELL = 0.1
#: Seconds after which it is told in an outage, if that is over then.
IN_AN_OUTAGE = 0.2


class Arrived(Protocol):
    """A request in the gate: what the store knows it by, what it asks, and how often it was sent anew since it was not
    known whether it was parked.
    """

    request: Any
    id: str
    demands: tuple[Demand, ...]
    doubts: int


class Arrivals:
    """Messages that have come back to one worker.

    Args:
        worker: the worker.
        parking: the lots.
        outage: while it lasts nobody asks the store.
    """

    def __init__(self, worker: Worker, parking: Parking, outage: Outage) -> None:
        self._worker, self._parking, self._outage = worker, parking, outage
        self._arriving: dict[Bucket, dict[str, int]] = {}
        self._barred: set[tuple[str, int]] = set()
        self._telling = threading.Lock()
        self._cancel_telling: Callable[[], None] | None = None

    def on_message(self, message: Any) -> None:
        """A message has come in. If it comes from a lot, the store is told, together with those that come now."""
        marker = marker_in(message)
        if "lot" in marker:
            name, key = marker["lot"]
            self._arriving.setdefault((name, key), {})[str(marker["id"])] = int(marker["copy"])
            if self._cancel_telling is None:
                self._cancel_telling = self._worker.timers.call_after(TELL, self._tell)

    def may_run(self, held: Arrived) -> bool:
        """Whether a request is the one copy of its task that may run.

        Raises what the store raises, where it has to be asked.
        """
        request = held.request
        marker = marker_in(request.message)
        copy = int(marker.get("copy", 0))
        if request.delivery_info.get("redelivered") or marker.get("again"):
            # It may have been parked before its worker was killed, or before the store's answer was lost; in the lot of
            # any of its limits.
            buckets = [(demand.name, demand.key) for demand in held.demands]
            return not any(self._parking.arrive(bucket, {held.id: copy}, held.doubts) for bucket in buckets)
        if copy and (self._telling.locked() or any(held.id in copies for copies in self._arriving.values())):
            self._tell_all()
        if (held.id, copy) in self._barred:
            self._barred.discard((held.id, copy))
            return False
        return True

    def tell_soon(self) -> None:
        """After an outage: a worker that looks at the lots might send once more what has come meanwhile."""
        if self._arriving and self._cancel_telling is None:
            self._cancel_telling = self._worker.timers.call_after(0, self._tell)

    def _tell(self) -> None:
        self._cancel_telling = None
        if self._outage:
            self._cancel_telling = self._worker.timers.call_after(IN_AN_OUTAGE, self._tell)
            return
        if self._parking.can_park:
            self._outage.ask(self._tell_all, None)

    def _tell_all(self) -> None:
        with self._telling:  # where greenlets switch, others come in while the store is being told
            while self._arriving:
                copies_of = {bucket: self._arriving.pop(bucket) for bucket in self._parking.parts(self._arriving)[0]}
                try:
                    barred = self._parking.arrive_all(copies_of)
                except BaseException:
                    for bucket, copies in copies_of.items():
                        self._arriving[bucket] = {**copies, **self._arriving.get(bucket, {})}
                    raise
                self._barred.update((id, copies_of[bucket][id]) for bucket, id in barred)

    def close(self) -> None:
        if self._cancel_telling is not None:
            self._cancel_telling()
            self._cancel_telling = None
        self._arriving.clear()
