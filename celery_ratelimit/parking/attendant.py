"""A worker's part in the parking lots: parks what its gate turns away, and publishes what any worker has parked.

No worker leads. The store says which lots are due; whoever asks first lets those out whose turn is near.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from kombu.utils.json import dumps, loads

from .._celery import Worker
from .._celery.parcel import Parcel, expires_at, marker_among, marker_in, parcel_of
from ..limiter.demand import Demand
from ..limiter.outage import Outage
from ..limits.any_limit import AnyLimit
from .lot import AGAIN, FOUND, LOTS, NOBODY, Attendance, Bucket, Parked, Parking, marker_of
from .orphans import Orphans

__all__ = ["Attendant"]

logger = logging.getLogger("celery_ratelimit")

#: Seconds between two looks for lots that are due; and where a worker has found and parked nothing for so many looks.
LOOK, RARELY, QUIET = 0.2, 1.0, 10
#: Seconds after which a worker says again which queues it consumes, and after which it is taken for dead.
ATTEND, ATTENDED = 2.0, 6.0
#: Seconds after which a lot is looked after that nobody was in before: those who come together leave together.
SOON = 0.05
#: Seconds after which it is told which messages have come: they wait for their slots meanwhile.
TELL = 0.1
#: Seconds after a long outage in which workers say what has come meanwhile, before lots are looked at again.
OTHERS_TELL = 1.5
#: Seconds before its slot at which a task should be back: what brokers and timers are usually late.
LEAD = 0.05
#: Seconds after which what is not done with the lots waits for the next turn of the worker's loop: the last step may
#: take thirty milliseconds more, as it publishes fifty tasks. And revoked tasks that leave in one step.
TURN, REVOKED = 0.01, 25
#: Seconds until that next turn: a timer without any delay goes off in the same one.
NEXT = 0.001
#: Buckets in which others are known to wait: of more than that, those who come ask their limits first.
MOST_KNOWN = 10_000


class TurnedAway(Protocol):
    """A request that the gate turns away: the queue that it came from, what the store knows it by, what it asks, and
    how often it was sent anew since it was not known whether it was parked.
    """

    request: Any
    queue: str
    id: str
    demands: tuple[Demand, ...]
    doubts: int


class Attendant:
    """Looks after the parking lots of one worker's limits.

    Args:
        worker: publishes.
        parking: the lots.
        limits: by name; there may be more of them later.
        return_queue_for: the queue that a task comes back by.
        outage: while it lasts nobody asks the store.
        orphans_after: see :class:`~celery_ratelimit.parking.orphans.Orphans`.
    """

    def __init__(
        self,
        worker: Worker,
        parking: Parking,
        limits: Mapping[str, AnyLimit],
        return_queue_for: Callable[[str], str],
        outage: Outage,
        orphans_after: float,
    ) -> None:
        self._worker, self._parking, self._limits, self._outage = worker, parking, limits, outage
        self._return_queue_for = return_queue_for
        self._orphans = Orphans(worker, parking, limits, orphans_after, outage)
        self._sorted: list[str] = []
        self._known: OrderedDict[Bucket, None] = OrderedDict()
        self._due: dict[Bucket, None] = {}
        self._revoked: list[str] = []
        self._called_off: list[tuple[Bucket, list[str]]] = []
        self._attendance: Attendance | None = None
        self._attends: frozenset[str] = frozenset()
        self._attended_at = self._recall_until = 0.0
        self._recalling: dict[str, tuple[str | None, int]] = {}
        self._waking: dict[str, int] = {}
        self._woken: dict[str, int] = {}
        self._changed: set[str] = set()
        self._is_new = False
        self._cancel_waking: Callable[[], None] | None = None
        self._let_go: deque[tuple[Bucket, str, Any]] = deque()
        self._arriving: dict[Bucket, dict[str, int]] = {}
        self._barred: set[tuple[str, int]] = set()
        self._telling = threading.Lock()
        self._cancel: Callable[[], None] | None = None
        self._cancel_telling: Callable[[], None] | None = None
        self._soon = self._more_due = False
        self._looked_at, self._looks_from = time.monotonic(), 0.0
        self._quiet = QUIET  # looks in a row in which nothing was found
        self._apart: set[str] = set()  # those with which a publish failed: each is published by itself

    @property
    def _names(self) -> list[str]:
        """Of the limits; there may be more of them later."""
        if len(self._sorted) != len(self._limits):
            self._sorted = sorted(self._limits)
        return self._sorted

    # -- In --------------------------------------------------------------------------------------------------------

    def lot_of(self, demands: Sequence[Demand]) -> Demand | None:
        """The demand in whose lot others are known to wait: who comes now stands behind them."""
        if self._known:
            for demand in demands:
                if (demand.name, demand.key) in self._known:
                    return demand
        return None

    def park(self, held: TurnedAway, demand: Demand, *, only_behind: bool, most: int | None, since: int) -> int:
        """Park a request's message where ``demand`` is asked, and let go of it. See :meth:`Parking.park`.

        Raises what the store raises; nothing has changed then.
        """
        request, bucket = held.request, (demand.name, demand.key)
        marker = marker_in(request.message)
        self._note_acknowledged()
        self._orphans.say(demand.name)
        ahead = self._parking.park(
            demand,
            held.id,
            _text({"id": request.id, **parcel_of(request, held.queue, self._return_queue_for(held.queue), held.id)}),
            copy=int(marker.get("copy", 0)) + 1,
            since=int(marker.get("since", since)),
            expires=expires_at(request) or 0.0,
            only_behind=only_behind,
            most=most,
            doubts=held.doubts,
        )
        if ahead < 0:
            if ahead == NOBODY:
                self._known.pop(bucket, None)
            return ahead
        self._known[bucket] = None
        self._known.move_to_end(bucket)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        if ahead == 0 or self._quiet >= QUIET:
            self._look_soon()
        self._quiet = 0
        self._worker.departures.acknowledge(request)
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
                self._cancel_telling = self._worker.timers.call_after(TELL, self._tell)

    def may_run(self, held: TurnedAway) -> bool:
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

    def store_is_back(self) -> None:
        """It hears at once what has come meanwhile: who looks after the lots might send that once more."""
        if time.monotonic() - self._looked_at > AGAIN / 2:
            self._looks_from = time.monotonic() + OTHERS_TELL
        if self._arriving and self._cancel_telling is None:
            self._cancel_telling = self._worker.timers.call_after(0, self._tell)

    def _tell(self) -> None:
        self._cancel_telling = None
        if self._outage:
            self._cancel_telling = self._worker.timers.call_after(LOOK, self._tell)
            return
        if self._parking.in_use:
            self._outage.ask(self._tell_all, None)

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
        if self._cancel is None:
            self._cancel = self._worker.timers.call_after(LOOK, self._look)
            self._is_new = True
            self._orphans.begin()
            self._go_on_waking()

    def _look_soon(self) -> None:
        """The first in a lot may have its turn before the next look."""
        if self._cancel is not None and not self._soon:
            self._soon = True
            self._cancel()
            self._cancel = self._worker.timers.call_after(SOON, self._look)

    def close(self) -> None:
        self._attend_no_more()
        self._orphans.close()
        for cancel in (self._cancel, self._cancel_telling, self._cancel_waking):
            if cancel is not None:
                cancel()
        self._cancel = self._cancel_telling = self._cancel_waking = None
        self._due.clear()
        self._waking.clear()
        self._recalling.clear()
        self._arriving.clear()
        self._let_go.clear()

    def _look(self) -> None:
        pause = RARELY if self._quiet >= QUIET else LOOK
        self._cancel, self._soon = self._worker.timers.call_after(pause, self._look), False
        if self._outage or not self._parking.in_use or time.monotonic() < self._looks_from:
            return
        self._looked_at = time.monotonic()
        done = self._outage.ask(lambda: self._see_to_lots(self._looked_at + TURN), True)
        if not done and self._cancel is not None:  # the rest of the worker has a turn, and then this goes on
            self._cancel()
            self._cancel = self._worker.timers.call_after(NEXT, self._look)

    def _see_to_lots(self, until: float) -> bool:
        """False: something is left to do, and time is up."""
        self._attend()
        done = self._let_revoked_out(until) and self.let_out(until)
        self._note_acknowledged()
        self._parking.flush()
        return done

    def let_out(self, until: float) -> bool:
        """Publish those whose turn is near, of all lots that are due. False: some are left, and time is up."""
        if not self._due:
            self._ask_for_due()
            self._quiet = 0 if self._due else self._quiet + 1
            if self._quiet >= QUIET:
                self._known.clear()  # who comes asks first, and is parked if it has to be
        while self._due:
            first = itertools.islice(self._due, LOTS)
            demands = [Demand(self._limits[name], name, key) for name, key in first]
            looked = self._parking.unpark(demands, due=True, attendance=self._attendance)
            for each in looked:
                self._due.pop(each.bucket, None)
                if each.again is None:
                    self._known.pop(each.bucket, None)
                elif each.again <= 0:
                    self._due[each.bucket] = None  # behind the others
                if each.another:
                    self._wake([each.bucket[0]], -1)
            self._publish({each.bucket: each.leaving for each in looked if each.leaving})
            if time.monotonic() >= until:
                return not self._due
            if not self._due and self._more_due:
                self._ask_for_due()
        return True

    def _ask_for_due(self) -> None:
        due = self._parking.due(self._names)
        self._due.update(dict.fromkeys(due))
        self._more_due = len(due) >= LOTS

    # -- Whose tasks have somebody to run them ---------------------------------------------------------------------

    def _queues(self) -> frozenset[str]:
        """The queues whose tasks come here when they leave their lots: by their return queues."""
        before, behind = self._return_queue_for("\0").split("\0")  # what they are called is known once it consumes
        return frozenset(
            [
                queue[len(before) : len(queue) - len(behind)]
                if queue.startswith(before) and queue.endswith(behind) and len(queue) > len(before) + len(behind)
                else queue
                for queue in self._worker.intake.queues
            ]
        )

    def _attend(self) -> None:
        """Say which queues this worker consumes, and hear which nobody does: no slot is given to their tasks."""
        queues = self._queues()
        if queues == self._attends and time.monotonic() < self._attended_at + ATTEND:
            return
        absent = self._attendance.absent if self._attendance is not None else None
        left = sorted(self._attends - queues)
        self._attendance = self._parking.attend(self._worker.hostname, sorted(queues), left, ATTENDED)
        begun = queues - self._attends
        self._attends, self._attended_at = queues, time.monotonic()
        if begun:  # somebody who has not heard of it may set their tasks aside anew, and end before it hears
            self._recall_until = self._attended_at + ATTENDED
            self._orphans.say_now()
        new = absent is None or absent - self._attendance.absent  # of the first look nobody knows
        if new or self._attended_at < self._recall_until:
            self._recalling = dict.fromkeys(self._parking.occupied(self._names), (None, 0))
            self._go_on_waking()

    def _attend_no_more(self) -> None:
        """This worker ends, or connects anew: others need not wait until it is taken for dead."""
        left, self._attends, self._attendance = sorted(self._attends), frozenset(), None
        if left and self._parking.in_use:
            self._outage.ask(
                lambda: self._parking.attend(self._worker.hostname, (), left, ATTENDED), None, quietly=True
            )

    # -- When a limit is another one than it was -------------------------------------------------------------------

    def wake(self, names: Iterable[str]) -> None:
        """What is stored for these limits has changed: their lots may be due sooner than was foreseen."""
        names = [name for name in names if name in self._limits]
        self._changed.update(name for name in names if name in self._waking)
        for name in names:
            self._wake([name], self._woken.get(name, 0))

    def _wake(self, names: Iterable[str], since: int) -> None:
        if not self._parking.in_use:
            return
        for name in names:
            self._waking[name] = min(since, self._waking.get(name, since))
        self._go_on_waking()

    def _go_on_waking(self) -> None:
        if self._cancel_waking is None:
            self._cancel_waking = self._worker.timers.call_after(NEXT, self._wake_on)

    def _wake_on(self) -> None:
        """One step for one limit after the other, until the turn is over."""
        self._cancel_waking = None
        self._outage.ask(lambda: self._wake_some(time.monotonic() + TURN), None)
        if (self._waking or self._recalling or self._is_new) and self._cancel_waking is None:
            self._cancel_waking = self._worker.timers.call_after(LOOK if self._outage else NEXT, self._wake_on)

    def _wake_some(self, until: float) -> None:
        if self._is_new:
            # This worker's code may have other limits than those who were here before.
            names = self._parking.occupied(self._names) if self._parking.in_use else ()
            self._waking = {**dict.fromkeys(names, 0), **self._waking}
            self._is_new = False
        while self._waking and not self._outage and time.monotonic() < until:
            name, since = next(iter(self._waking.items()))
            now, more = self._parking.wake(Demand(self._limits[name], name), since)
            if more:
                self._waking[name] = -1  # it has changed, and not all have been told
                continue
            self._waking.pop(name, None)
            self._woken[name] = now
            if name in self._changed:  # once more meanwhile
                self._changed.discard(name)
                self._waking[name] = since
        while self._recalling and not self._outage and time.monotonic() < until:
            name, (after, offset) = next(iter(self._recalling.items()))
            after, offset = self._parking.recall(name, after, offset)
            self._recalling.pop(name, None)
            if after is not None:
                self._recalling[name] = after, offset

    def _let_revoked_out(self, until: float) -> bool:
        """A task that was revoked leaves its lot at once: the worker that it comes to says that it is revoked."""
        self._revoked += reversed(self._worker.newly_revoked())
        if not self._names:
            self._revoked.clear()
        while self._revoked or self._called_off:
            if not self._called_off:
                number = max(1, FOUND // len(self._names))
                asked, self._revoked = self._revoked[:number], self._revoked[number:]
                try:
                    found = [each for step in self._parking.find(self._names, asked) for each in step.items()]
                except BaseException:
                    self._revoked[:0] = asked
                    raise
                self._called_off += [(bucket, list(ids)) for bucket, ids in found]
            else:
                bucket, ids = self._called_off.pop()
                _, leaving, left = self._parking.pick(bucket, ids[:REVOKED], purge=False)
                if left := [*left, *ids[REVOKED:]]:
                    self._called_off.append((bucket, left))
                self._publish({bucket: leaving} if leaving else {})
            if time.monotonic() >= until:
                return False
        return True

    def _publish(self, leaving: Mapping[Bucket, Sequence[Parked]]) -> None:
        each_of = [(bucket, each) for bucket, several in leaving.items() for each in several]
        parcels = {each.id: _parcel(each) for _, each in each_of}
        self._apart.update(id for id, parcel in parcels.items() if not parcel)
        together = [pair for pair in each_of if pair[1].id not in self._apart]
        for some in [together, *[[pair] for pair in each_of if pair[1].id in self._apart]]:
            if not some:
                continue
            try:
                missing = self._worker.departures.publish(
                    [(parcels[each.id], max(0.0, each.wait - LEAD), marker_of(bucket, each)) for bucket, each in some]
                )
            except self._worker.broker.connection_errors:
                raise  # Celery connects anew
            except Exception as error:
                # Nothing is lost: whoever looks after the lot in some seconds publishes them once more, as other
                # copies; each by itself, lest one that cannot be published keeps the others.
                self._apart.update(each.id for _, each in some)
                ids = ", ".join(each.id for _, each in some[:5])
                logger.warning("%d parked tasks (%s) could not be published (%r): tried again", len(some), ids, error)
            else:
                self._apart.difference_update(each.id for _, each in some)
                for _, each in some:
                    self._orphans.uses(parcels[each.id]["to"], marker_among(parcels[each.id]["headers"])["queue"])
                if missing:
                    logger.warning("The broker has no queue %s: parked tasks stay parked", ", ".join(sorted(missing)))
                published: dict[Bucket, list[Parked]] = {}
                for bucket, each in some:
                    if parcels[each.id]["to"] in missing:
                        continue
                    published.setdefault(bucket, []).append(each)
                if published:
                    self._parking.published(published)


def _parcel(parked: Parked) -> Parcel:
    """What was parked; nothing if it cannot be read."""
    try:
        parcel = loads(parked.message)
    except ValueError:
        return {}
    return parcel if isinstance(parcel, dict) and "headers" in parcel else {}


def _text(parcel: Parcel) -> str:
    """As it is parked. What looks like kombu's own way to write other types than JSON's would not be read again."""
    text: str = dumps(parcel)
    expected = int(isinstance(parcel["body"], bytes))
    if text.count('"__type__"') > expected and loads(text) != parcel:
        raise ValueError("its headers cannot be parked: they have '__type__' and '__value__' in them")
    return text
