"""Parks requests in batches: one script for all that arrived with one delivery, and one script in flight at a time.

Requests that arrive while a script is in flight are parked by the next one: two threads could have two scripts at the
store in either order.

A call whose reply is lost may have parked its requests: they are held, and parked again when the store answers. The
script knows what an earlier call has done.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import NamedTuple

from .._celery import Worker
from ..backlog.backlog import ParkResult, ToPark
from ..backlog.messages import Bucket
from ..backlog.return_scheduler import ReturnScheduler
from ..errors import StoreFull, StoreMisconfigured
from ..limiter.limit_request import LimitRequest
from ..store_calls.outage import NotAsked, Outage
from ..store_calls.store_calls import Reply, StoreCalls
from .expected_turns import ExpectedTurns
from .flow_control import HeldRequests
from .next_action import Park
from .request import PendingRequest, State
from .request_queue import LimitQueue, permit_interval

__all__ = ["ParkingBatch", "PendingPark"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Requests that wait for the script in flight, and bytes of their messages, up to which more are received: parking them
#: takes some milliseconds of the store.
MOST_BEHIND, BYTES = 48, 200_000
#: The share of an interval by which a slot may lie beyond ``max_wait``: the worker is some milliseconds late.
ROUNDING = 0.25


class PendingPark(NamedTuple):
    """A request that is about to be parked.

    ``most``: only if the tasks that are parked there cost fewer permits; such a request is parked by a script of its
    own, and so is one that is ``alone``, as parking it with others has failed.
    """

    limit_queue: LimitQueue
    pending: PendingRequest
    action: Park
    packed: ToPark
    most: int | None = None
    alone: bool = False

    @property
    def bucket(self) -> Bucket:
        return self.action.demand.name, self.action.demand.key

    @property
    def may_be_parked(self) -> bool:
        """Whether the reply to an earlier attempt was lost."""
        return self.packed.attempt > 0

    def repeated(self, *, alone: bool) -> PendingPark:
        """The next attempt."""
        self.pending.attempt += 1
        return self._replace(packed=self.packed._replace(attempt=self.pending.attempt), alone=alone)


#: Called with a request, and what the store says of it; ``None``: it refuses to serve, or has not answered for long.
OnParked = Callable[[PendingPark, "Reply[ParkResult | None]"], None]


class ParkingBatch:
    """The requests that one worker is about to park.

    Args:
        outage: while it lasts nothing is parked.
        prefetch: lets the worker receive another message in the place of one that waits here.
        turns: expects a parked task back.
    """

    def __init__(
        self,
        worker: Worker,
        attendant: ReturnScheduler,
        outage: Outage,
        store_calls: StoreCalls,
        prefetch: HeldRequests,
        turns: ExpectedTurns,
    ) -> None:
        self._worker, self._attendant, self._outage, self._store_calls = worker, attendant, outage, store_calls
        self._prefetch, self._turns = prefetch, turns
        self._waiting: list[PendingPark] = []
        self._in_flight: Sequence[PendingPark] = ()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_flight)

    def __iter__(self) -> Iterator[PendingPark]:
        return itertools.chain(self._waiting, self._in_flight)

    def lot_to_join(self, pending: PendingRequest) -> LimitRequest | None:
        """The demand in whose backlog tasks are known to be parked, behind which a new request is parked, too."""
        may_join = pending.parks and not pending.has_reservation and pending.plan.policy.max_wait is None
        if not may_join or self._outage:
            return None
        demands = [demand for demand in pending.demands if not demand.passes]
        return self._attendant.occupied.lot_of(demands) or self._refusing_demand(demands)

    def _refusing_demand(self, demands: Sequence[LimitRequest]) -> LimitRequest | None:
        """The demand that has refused a request that is about to be parked: one that comes now stands behind it."""
        closed = {park.bucket for park in self if not park.action.only_behind and not park.pending.gone}
        return next((demand for demand in demands if (demand.name, demand.key) in closed), None) if closed else None

    def add(self, limit_queue: LimitQueue, pending: PendingRequest, action: Park, now: float) -> None:
        """Park a request with the next script."""
        most, max_wait, interval = None, pending.plan.policy.max_wait, permit_interval(limit_queue, action.demand)
        if max_wait is not None and interval > 0 and not pending.returned:
            left = max_wait - action.wait - (now - pending.arrived_at)
            most = max(0, 1 + int(left / interval + ROUNDING))
        packed = self._attendant.to_park(pending, action.demand, action.since)
        if pending.queue != pending.plan.policy.overflow:  # there a task waits without a bound
            packed = packed._replace(max_parked=action.demand.limit.max_parked)
        limit_queue.start_parking(pending)
        self._waiting.append(PendingPark(limit_queue, pending, action, packed, most))
        size = sum(len(each.packed.message) for each in self._waiting)
        if self._in_flight and len(self._waiting) <= MOST_BEHIND and size < BYTES:
            self._prefetch.widen(pending)
        self._turns.expect_parked(pending.request.id, pending.request.task.name, action, interval, now)

    def flush(self, on_parked: OnParked, on_end: Callable[[list[LimitQueue]], None]) -> None:
        """Park what waits, unless a script is in flight: then it is called again at the reply.

        Args:
            on_parked: is called with each request.
            on_end: is called with their queues. A request that is left there asks: in an outage, unless it may be
                parked, or if nothing is parked any more where it was to stand behind others.
        """
        while self._waiting and not self._in_flight:
            if self._outage:
                self._wait_for_store(on_parked, on_end)
                return
            part, only_behind = self._next_part()
            if not part:
                continue
            self._in_flight = part
            requests_of: dict[Bucket, list[tuple[PendingRequest, ToPark]]] = {}
            for park in part:
                requests_of.setdefault(park.bucket, []).append((park.pending, park.packed))
            asks = self._attendant.parks(requests_of, only_behind=only_behind, most=part[0].most)
            self._store_calls.run(asks, partial(self._are_parked, part, on_parked, on_end))

    def _wait_for_store(self, on_parked: OnParked, on_end: Callable[[list[LimitQueue]], None]) -> None:
        """Hold the requests that may be parked, until the broker would take them for lost; the others ask."""
        now, waiting = monotonic(), self._waiting
        held = [park for park in waiting if park.may_be_parked and not park.pending.gone]
        self._waiting = [park for park in held if now < park.pending.release_deadline]
        _tell([park for park in held if now >= park.pending.release_deadline], None, on_parked)
        if asking := [park for park in waiting if not park.may_be_parked]:
            on_end(_ask(asking))

    def clear(self) -> None:
        """The connection is lost, or the worker stops: the broker has their messages."""
        self._waiting.clear()
        self._in_flight = ()

    def _next_part(self) -> tuple[Sequence[PendingPark], bool]:
        """Take out the requests that one script parks, and whether only if others are parked there.

        A request that was refused is parked in any case, and the ones behind it. So is one in a lot whose next turns
        are given away, though it may be empty: it would be refused.
        """
        self._waiting = [park for park in self._waiting if not park.pending.gone]
        if not self._waiting:
            return (), False
        first = self._waiting[0]
        if first.most is not None or first.alone:
            part = [first]
        else:
            together = [park for park in self._waiting if park.most is None and not park.alone]
            behind = {park.bucket: True for park in together}
            for park in together:
                behind[park.bucket] &= park.action.only_behind
            kinds = [
                [bucket for bucket in behind if self._only_behind(bucket, behind[bucket]) is only_behind]
                for only_behind in (False, True)
            ]
            buckets = set(self._attendant.parking.parts(kinds[0] or kinds[1])[0])
            part = [park for park in together if park.bucket in buckets]
        taken = set(map(id, part))
        self._waiting = [park for park in self._waiting if id(park) not in taken]
        by_bucket = all(park.action.only_behind for park in part if park.bucket == part[0].bucket)
        return part, self._only_behind(part[0].bucket, by_bucket)

    def _only_behind(self, bucket: Bucket, only_behind: bool) -> bool:
        return only_behind and not self._attendant.occupied.is_closed(bucket)

    def _are_parked(
        self,
        part: Sequence[PendingPark],
        on_parked: OnParked,
        on_end: Callable[[list[LimitQueue]], None],
        reply: Reply[Mapping[Bucket, Sequence[ParkResult]]],
    ) -> None:
        if self._in_flight is part:
            self._in_flight = ()
        if isinstance(reply.error, StoreFull):
            on_end(_ask(self._stay(part)))
            return
        ended: Sequence[PendingPark] = part
        try:
            results_of = self._outage.read(reply.get, None)
        except self._worker.broker.connection_errors:
            raise  # Celery connects anew, and the broker has all messages: nothing asks
        except Exception as error:
            if len(part) > 1:
                logger.error("%r where %d tasks are parked together: each is parked alone", error, len(part))
                self._waiting[:0] = [park.repeated(alone=True) for park in part]
                ended = ()
            else:
                on_parked(part[0], Reply(error=error))
        else:
            if results_of is not None or isinstance(reply.error, StoreMisconfigured):
                _tell(part, results_of, on_parked)
            else:
                ended = self._hold(part, was_sent=not isinstance(reply.error, NotAsked))
        on_end(_ask(ended))

    def _stay(self, part: Sequence[PendingPark]) -> list[PendingPark]:
        """The store is full: requests that may be parked are parked again, alone. Returns the others, which ask."""
        self._attendant.memory.note(1, 1)
        self._waiting[:0] = [park.repeated(alone=True) for park in part if park.may_be_parked]
        stay = [park for park in part if not park.may_be_parked]
        for park in stay:
            park.pending.plan = park.pending.plan.waiting
        return stay

    def _hold(self, part: Sequence[PendingPark], *, was_sent: bool) -> list[PendingPark]:
        """No reply came: hold the requests that may be parked, to park them again. Returns the others."""
        if was_sent:
            part = [park.repeated(alone=park.may_be_parked) for park in part]
        held = [park for park in part if park.may_be_parked and not park.pending.gone]
        for park in held:
            self._prefetch.widen(park.pending)
        self._waiting[:0] = held
        return [park for park in part if not park.may_be_parked]


def _tell(
    part: Sequence[PendingPark], results_of: Mapping[Bucket, Sequence[ParkResult]] | None, on_parked: OnParked
) -> None:
    results = {bucket: iter(said) for bucket, said in (results_of or {}).items()}
    for park in part:
        result = next(results[park.bucket]) if results else None
        if not park.pending.gone:
            on_parked(park, Reply(result))


def _ask(parks: Sequence[PendingPark]) -> list[LimitQueue]:
    """Requests that are not parked ask. Returns the queues of all."""
    for park in parks:
        if park.pending.state is State.PARKING:
            park.limit_queue.enqueue(park.pending)
    return list(dict.fromkeys(park.limit_queue for park in parks))
