"""Parks the requests that the worker's gate turns away, and publishes parked tasks of any worker whose turn is near.

No worker leads. The store says which buckets are due; the worker that asks first gets the tasks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from .._celery import Worker
from .._celery.requests import deadline_of
from .._celery.saved_message import copy_in, expires_at, marker_in, parcel_of
from ..app.app_limits import AppLimits
from ..app.plan import Plan
from ..limiter.limit_request import LimitRequest
from ..limits.key_rates import limit_of_key
from ..limits.share_weights import USUAL
from ..store.keys import escape
from ..store_calls.outage import Outage
from ..store_calls.store_calls import Asks, StoreCalls, asked
from ..store_calls.store_clock import StoreClock
from . import tuning
from .backlog import Backlog, ParkResult, PollResult, ToPark
from .backlog_contents import OccupiedBucketCache
from .deduplicator import Deduplicator, GateRequest
from .fleet_registry import QueueHeartbeat
from .messages import Bucket, written
from .poll_timer import DueBuckets, PollTimer, Rescheduler
from .publisher import Publisher
from .store_memory import StoreMemory
from .unattended_tasks import UnattendedTaskWatcher

__all__ = ["ReturnScheduler", "ToBeParked"]


#: Requests, each with its message as it is parked, by bucket.
ToBeParked = Mapping[Bucket, Sequence[tuple[GateRequest, ToPark]]]


class ReturnScheduler:
    """Parks and returns the tasks of one worker's limits. There may be more limits later.

    Attributes:
        arrivals: messages that come back.
        occupied: buckets in which tasks are known to be parked.
        memory: whether the store has memory for parked tasks.
        rescheduler: makes buckets due earlier after a change.
        on_notification: called in another thread with a notification's text (``lua/include/wake_idle_workers.lua``).
    """

    def __init__(
        self,
        worker: Worker,
        parking: Backlog,
        limits: AppLimits,
        outage: Outage,
        calls: StoreCalls,
        orphans_after: float,
        clock: StoreClock,
    ) -> None:
        self._worker, self._limits, self._outage = worker, limits, outage
        self.parking = parking
        self.clock = clock
        self._unattended_watcher = UnattendedTaskWatcher(worker, parking, limits, orphans_after, outage)
        self.arrivals: Deduplicator = Deduplicator(worker, parking, outage)
        self.rescheduler: Rescheduler = Rescheduler(worker, parking, limits, outage)
        self._publisher = Publisher(worker, parking, self._unattended_watcher.note_return_queue, clock)
        self._revoked: list[str] = []  # tasks
        self._revoked_in: list[tuple[Bucket, Sequence[str]]] = []  # what the store knows them by
        self._heartbeat = QueueHeartbeat(
            worker, parking.register, self._unattended_watcher.report_now, self.rescheduler.recall
        )
        self.occupied: OccupiedBucketCache = OccupiedBucketCache(limits)
        self.memory: StoreMemory = StoreMemory(parking)
        self._due = DueBuckets(parking, limits)
        self._not_acknowledged: deque[tuple[Bucket, GateRequest]] = deque()
        self.on_notification: Callable[[str | None], None] = lambda said: None
        self._listener = parking.notification_listener(lambda said: self.on_notification(said))
        self._polls = PollTimer(worker, outage, calls, self._poll, self._pause, self._may_poll)
        self._polled_at, self._polls_from = time.monotonic(), 0.0
        self._busy_at = float("-inf")  # when something was found or parked last

    def may_park(self, plan: Plan) -> bool:
        """Whether tasks of a plan wait in the store. Else they wait in the broker, on a countdown to their slots."""
        return plan.parks and self.parking.can_park

    @property
    def is_idle(self) -> bool:
        """No task is parked, as far as it is known."""
        return self._is_quiet and not self._due.any_parked

    @property
    def _is_quiet(self) -> bool:
        return time.monotonic() - self._busy_at >= tuning.MAX_POLL_INTERVAL

    # -- In --------------------------------------------------------------------------------------------------------

    def to_park(self, held: GateRequest, demand: LimitRequest, since: int = 0) -> ToPark:
        """A request's message, as it is parked where ``demand`` is asked."""
        request = held.request
        marker = marker_in(request.message)
        back = self._worker.return_addresses.address(held.queue)
        deadline = deadline_of(request, back.ttl, self.clock.now)
        parcel = parcel_of(request, held.queue, back, held.id, deadline)
        return ToPark(
            held.id,
            demand.cost,
            written(parcel),
            task=request.id,
            queue=held.queue,
            copy=int(copy_in(request.message).get("copy", 0)) + 1,
            token=held.token,
            since=int(marker.get("since", since)),
            expires=expires_at(request, deadline) or 0.0,
            attempt=held.attempt,
            order=self._worker.consumption.broker_order(request.message, held.queue),
            leaves=demand.leaves_in_record,
            unique=held.coalesce_key,
            share=None if demand.share is None else escape(demand.share),
            weight=demand.limit.weights.get(demand.share or "", USUAL),
        )

    def parks(
        self, requests_of: ToBeParked, *, only_behind: bool, most: int | None = None
    ) -> Asks[dict[Bucket, list[ParkResult]]]:
        """Park the messages of requests, in their order, and acknowledge them. See :meth:`Backlog.park`: of buckets
        that one script may see.

        Raises what the store raises; nothing has changed then.
        """
        self._note_acknowledged()
        for name, _ in requests_of:
            self._unattended_watcher.ensure_reported(name)
        messages_of = {bucket: [each for _, each in several] for bucket, several in requests_of.items()}
        later = {bucket: self.occupied.looks_in(bucket) - tuning.FIRST_POLL_DELAY for bucket in requests_of}
        said_of = yield from self.parking.parks(messages_of, only_behind=only_behind, most=most, later=later)
        for bucket, said in said_of.items():
            for (held, each), result in zip(requests_of[bucket], said, strict=True):
                if result.is_parked and not held.gone:
                    self.memory.note_parked(len(each.message))
                    self._acknowledge(held, bucket, result.ahead)
                elif result.outcome == "empty":
                    self.occupied.forget(bucket)
        return said_of

    def _acknowledge(self, held: GateRequest, bucket: Bucket, ahead: int) -> None:
        self.occupied.note(bucket)
        if ahead == 0 or self._is_quiet:  # the first task of a bucket may have its turn before the next poll
            self._polls.soon(self.occupied.looks_in(bucket))
        self._busy_at = time.monotonic()
        self._worker.republisher.acknowledge(held.request)
        self._not_acknowledged.append((bucket, held))

    def _note_acknowledged(self) -> None:
        """The worker acknowledges in its next turn: the store hears of it with the next call."""
        while self._not_acknowledged and self._not_acknowledged[0][1].request.message.acknowledged:
            bucket, held = self._not_acknowledged.popleft()
            self.parking.untold.note_acknowledged(bucket, held.id, held.token)

    # -- Out -------------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Poll from now on."""
        if not self._polls.is_running:
            self._polls.begin(tuning.POLL_INTERVAL)
            self._outage.ask(partial(asked, self.memory.look(is_idle=False)), None, quietly=True)
            if self.parking.can_park:
                self._listener.listen()
            self._unattended_watcher.report_now()
            self.rescheduler.begin()

    def store_is_back(self) -> None:
        """Report at once what has arrived: a worker that polls might publish these tasks once more."""
        now = time.monotonic()
        if now - self._polled_at > tuning.PUBLISH_TIMEOUT / 2:
            self._polls_from = now + tuning.REPORT_DELAY
        self.arrivals.tell_soon()

    def close(self) -> None:
        self._polls.end()
        end = self._heartbeat.end()
        if self.parking.can_park:
            self._outage.ask(self.parking.published, None, quietly=True)
            self._outage.ask(end, None, quietly=True)
        self._listener.close()
        self._unattended_watcher.close()
        self.arrivals.close()
        self.rescheduler.close()
        self._due.clear()
        self._not_acknowledged.clear()

    def _may_poll(self, now: float) -> bool:
        return self.parking.can_park and now >= self._polls_from

    def _pause(self) -> float:
        """Seconds until the next poll."""
        return max(tuning.QUIET_POLL_INTERVAL if self._is_quiet else 0.0, self._due.pause())

    def _poll(self, until: float) -> Asks[bool]:
        """One poll. False: there is more to do, and time is up."""
        self._polled_at = time.monotonic()
        yield from self._heartbeat.report(is_idle=self.is_idle)
        yield from self.memory.look(is_idle=self.is_idle)
        if time.monotonic() >= until:  # the store is far away
            return False
        self.rescheduler.begin()  # tasks may have been registered
        self._note_acknowledged()  # to be told with what is let out
        done = self._release_revoked(until) and (yield from self._take_due(until))
        yield from self.parking.tells(at_once=False)
        return done

    def _release_revoked(self, until: float) -> bool:
        """Publish revoked tasks now: the worker that a task comes to says that it is revoked. False: time is up."""
        names = self._limits.names
        self._revoked += self._worker.newly_revoked() if names else ()
        while self._revoked or self._revoked_in:
            if self._revoked_in:
                bucket, ids = self._revoked_in[-1]
                _, leaving, remaining = self.parking.contents.remove(bucket, ids[: tuning.STEP_BUDGET], purge=False)
                self._revoked_in.pop()
                if remaining := [*remaining, *ids[tuning.STEP_BUDGET :]]:
                    self._revoked_in.append((bucket, remaining))
                self._publisher.publish({bucket: leaving} if leaving else {})
            else:
                asked = self._revoked[: max(1, tuning.LOOKUPS // len(names))]
                found = [each for step in self.parking.contents.find(names, asked) for each in step.items()]
                self._revoked_in = [(bucket, list(ids)) for bucket, ids in found]
                del self._revoked[: len(asked)]
            if time.monotonic() >= until:
                return False
        return True

    def _take_due(self, until: float) -> Asks[bool]:
        """Publish tasks whose turn is near, of all buckets that are due. False: there are more, and time is up."""
        due = self._due
        if not due:
            if self.is_idle and not self._listener.was_notified() and not due.must_ask:
                return True
            yield from due.find()
            if due:
                self._busy_at = time.monotonic()
                if self._busy_at >= until:  # the store is far away: other calls come in between
                    return False
                yield from self._heartbeat.report(is_idle=False)  # an idle worker has asked long ago
            elif self._is_quiet:
                self.occupied.clear()  # a request that comes asks first, and is parked if it has to be
        while due:
            demands = [LimitRequest(limit_of_key(self._limits[name], key), name, key) for name, key in due.first()]
            take_due = partial(self.parking.take_due, demands, due=True, absent=self._heartbeat.absent or ())
            looked: Sequence[PollResult] = yield take_due
            due.note(looked)
            for each in looked:
                if (
                    each.again is None or each.again >= tuning.PUBLISH_TIMEOUT
                ):  # empty, or closed for long: a new request asks first
                    self.occupied.forget(each.bucket)
                if each.leaving:
                    self.occupied.note_turn(each.bucket, time.monotonic() + max(one.wait for one in each.leaving))
                if each.another:
                    self.rescheduler.has_another_code(each.bucket[0])
            self._publisher.publish({each.bucket: each.leaving for each in looked if each.leaving})
            if time.monotonic() >= until:
                return not due
            yield from due.find_more()
        return True
