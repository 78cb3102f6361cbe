"""A worker's part in the parking lots: parks what its gate turns away, and publishes what any worker has parked.

No worker leads. The store says which lots are due; whoever asks first lets those out whose turn is near.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kombu.utils.json import dumps, loads

from ._celery import Worker
from .errors import STORE_TROUBLES
from .limiter import Demand
from .limits import AnyLimit
from .line import Held, stored_id
from .outage import Outage
from .parcels import expires_at, marker_in, parcel_of
from .parking import NOBODY, Bucket, Parked, Parking, marker_of

__all__ = ["Attendant"]

logger = logging.getLogger("celery_ratelimit")

#: Seconds between two looks for lots that are due; and where a worker has found and parked nothing for so many looks.
LOOK, RARELY, QUIET = 0.2, 1.0, 10
#: Seconds after which a lot is looked after that nobody was in before: those who come together leave together.
SOON = 0.05
#: Seconds after which it is told which messages have come: they wait for their slots meanwhile.
TELL = 0.1
#: Seconds before its slot at which a task should be back: what brokers and timers are usually late.
LEAD = 0.05
#: Revoked tasks that are looked for in a lot at once.
_REVOKED = 1000


class Attendant:
    """Looks after the parking lots of one worker's limits.

    Args:
        worker: publishes.
        parking: the lots.
        limits: by name.
        return_queue_for: the queue that a task comes back by.
        outage: while it lasts nobody asks the store.
        on_store_lost: called with the error when the store does not answer.
    """

    def __init__(
        self,
        worker: Worker,
        parking: Parking,
        limits: Mapping[str, AnyLimit],
        return_queue_for: Callable[[str], str],
        outage: Outage,
        on_store_lost: Callable[[Any], None],
    ) -> None:
        self._worker, self._parking, self._limits, self._outage = worker, parking, limits, outage
        self._return_queue_for = return_queue_for
        self._on_store_lost = on_store_lost
        self._names = sorted(limits)
        self._known: set[Bucket] = set()
        self._let_go: deque[tuple[Bucket, str, Any]] = deque()
        self._arriving: dict[Bucket, dict[str, int]] = {}
        self._barred: set[tuple[str, int]] = set()
        self._telling = threading.Lock()
        self._cancel: Callable[[], None] | None = None
        self._cancel_telling: Callable[[], None] | None = None
        self._soon = False
        self._quiet = QUIET  # looks in a row in which nothing was found

    # -- In --------------------------------------------------------------------------------------------------------

    def lot_of(self, demands: Sequence[Demand]) -> Demand | None:
        """The demand in whose lot others are known to wait: who comes now stands behind them."""
        if self._known:
            for demand in demands:
                if (demand.name, demand.key) in self._known:
                    return demand
        return None

    def park(self, held: Held, demand: Demand, *, only_behind: bool, most: int | None, since: int) -> int:
        """Park a request's message where ``demand`` is asked, and let go of it. See :meth:`Parking.park`.

        Raises what the store raises; nothing has changed then.
        """
        request, bucket = held.request, (demand.name, demand.key)
        marker = marker_in(request.message)
        self._note_acknowledged()
        ahead = self._parking.park(
            demand,
            held.id,
            dumps(parcel_of(request, held.queue, self._return_queue_for(held.queue))),
            copy=int(marker.get("copy", 0)) + 1,
            since=int(marker.get("since", since)),
            expires=expires_at(request) or 0.0,
            only_behind=only_behind,
            most=most,
        )
        if ahead < 0:
            if ahead == NOBODY:
                self._known.discard(bucket)
            return ahead
        self._known.add(bucket)
        if ahead == 0 or self._quiet >= QUIET:
            self._look_soon()
        self._quiet = 0
        self._worker.let_go(request)
        self._let_go.append((bucket, held.id, request.message))
        return ahead

    def _note_acknowledged(self) -> None:
        """The worker acknowledges in its next turn: what that has reached is told with what is sent next."""
        while self._let_go and self._let_go[0][2].acknowledged:
            bucket, id, _ = self._let_go.popleft()
            self._parking.acknowledged(bucket, id)

    # -- Coming back -----------------------------------------------------------------------------------------------

    def on_message(self, message: Any) -> None:
        """A message has come in. If it comes from a lot, the store is told, together with those that come now."""
        marker = marker_in(message)
        if "lot" in marker:
            name, key = marker["lot"]
            self._arriving.setdefault((name, key), {})[str(marker["id"])] = int(marker["copy"])
            if self._cancel_telling is None:
                self._cancel_telling = self._worker.call_after(TELL, self._tell)

    def may_run(self, held: Held) -> bool:
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
            return not any(self._parking.arrive(bucket, {held.id: copy}) for bucket in buckets)
        if copy and (self._telling.locked() or any(held.id in copies for copies in self._arriving.values())):
            self._tell_all()
        if (held.id, copy) in self._barred:
            self._barred.discard((held.id, copy))
            return False
        return True

    def _tell(self) -> None:
        self._cancel_telling = None
        if self._outage or not self._parking.in_use:
            return  # who starts will ask
        try:
            self._tell_all()
        except STORE_TROUBLES as error:
            self._on_store_lost(error)

    def _tell_all(self) -> None:
        with self._telling:  # where greenlets switch, others come in while the store is being told
            while self._arriving:
                bucket, copies = self._arriving.popitem()
                try:
                    barred = self._parking.arrive(bucket, copies)
                except BaseException:
                    self._arriving[bucket] = {**copies, **self._arriving.get(bucket, {})}
                    raise
                self._barred.update((id, copies[id]) for id in barred)

    # -- Out -------------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Look after the lots from now on."""
        if self._names and self._cancel is None:
            self._cancel = self._worker.call_after(LOOK, self._look)

    def _look_soon(self) -> None:
        """The first in a lot may have its turn before the next look."""
        if self._cancel is not None and not self._soon:
            self._soon = True
            self._cancel()
            self._cancel = self._worker.call_after(SOON, self._look)

    def close(self) -> None:
        for cancel in (self._cancel, self._cancel_telling):
            if cancel is not None:
                cancel()
        self._cancel = self._cancel_telling = None
        self._arriving.clear()
        self._let_go.clear()

    def _look(self) -> None:
        pause = RARELY if self._quiet >= QUIET else LOOK
        self._cancel, self._soon = self._worker.call_after(pause, self._look), False
        if self._outage or not self._parking.in_use:
            return
        try:
            self._let_revoked_out()
            self.let_out()
            self._note_acknowledged()
            self._parking.flush()
        except STORE_TROUBLES as error:
            self._on_store_lost(error)

    def let_out(self) -> None:
        """Publish those whose turn is near, of all lots that are due."""
        due = self._parking.due(self._names)
        self._quiet = 0 if due else self._quiet + 1
        if self._quiet >= QUIET:
            self._known.clear()  # who comes asks first, and is parked if it has to be
        for name, key in due:
            self._publish((name, key), self._parking.unpark(Demand(self._limits[name], name, key)))

    def _let_revoked_out(self) -> None:
        """A task that was revoked leaves its lot at once: the worker that it comes to says that it is revoked."""
        queues = self._worker.queues
        revoked = [stored_id(id, 0, queue) for id in self._worker.newly_revoked() for queue in queues]
        for first in range(0, len(revoked), _REVOKED):
            for lot in self._parking.lots(self._names):
                bucket = lot.name, lot.key
                self._publish(bucket, self._parking.pick(bucket, revoked[first : first + _REVOKED], purge=False))

    def _publish(self, bucket: Bucket, leaving: Sequence[Parked]) -> None:
        if not leaving:
            return
        try:
            parcels = [loads(each.message) for each in leaving]
            missing = self._worker.publish(
                [
                    (parcel, max(0.0, each.wait - LEAD), marker_of(bucket, each))
                    for parcel, each in zip(parcels, leaving, strict=True)
                ]
            )
        except self._worker.connection_errors:
            raise  # Celery connects anew
        except Exception as error:
            # Nothing is lost: whoever looks after the lot in some seconds publishes them once more.
            logger.warning("%d parked tasks could not be published (%r): tried again", len(leaving), error)
        else:
            if missing:
                logger.warning("The broker has no queue %s: parked tasks stay parked", ", ".join(sorted(missing)))
            there = [each for parcel, each in zip(parcels, leaving, strict=True) if parcel["to"] not in missing]
            self._parking.published(bucket, there)
