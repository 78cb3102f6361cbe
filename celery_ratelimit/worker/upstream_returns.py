"""Puts tasks back whose upstream has refused their call: as they came, at the head of their backlog.

After a short pause the task starts here again, with the first permit. Else it is parked, before the tasks that were
throttled after it. Without ``acks_late`` the broker has forgotten its message long ago, and nothing else knows it: so
it is parked at once, and not with the next batch; the worker's loop waits for the reply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

from .._celery import ReturnToBacklog, Worker, requests
from .._celery.message_fields import priority_of
from .._celery.saved_message import count_upstream_throttle, marker_in
from ..app.app_limits import AppLimits
from ..app.permits import demands_in
from ..app.upstream_errors import key_meant, report_refusal
from ..backlog.backlog import ParkResult
from ..backlog.return_scheduler import ReturnScheduler
from ..backlog.tuning import RETURN_EARLY
from ..errors import StoreFull
from ..limiter.limit_request import LimitRequest
from ..limiter.sync_store import StoreRunner
from ..limiter.upstream_methods import Paused
from ..store.keys import bucket_key
from ..store_calls.outage import Outage
from ..store_calls.store_calls import asked
from .announce_outcomes import Reporter, ThrottleReport
from .deduplication import Deduplication, coalesce_key
from .flow_control import HeldRequests
from .next_action import GiveUp, Park, PermitRequest, Republish, StartAt
from .perform_action import AGAIN
from .request import PendingRequest, State
from .request_queue import LimitQueue
from .request_queues import RequestQueues
from .request_resources import RequestResources

__all__ = ["UpstreamReturns", "put_back"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Seconds: a task that may wait for less does not take the first permit after a pause: it might be given up.
LONGEST_HELD = 1.0


def put_back(
    pending: PermitRequest, demand: LimitRequest, paused: Paused, now: float, *, since: int, parks: bool
) -> StartAt | Park | Republish | GiveUp:
    """The task has run, and its upstream has refused its call: the limit of ``demand`` is paused.

    Args:
        since: when the task was throttled first, or its permit was good, in microseconds by the store's clock.
        parks: whether it may wait in the store now.
    """
    policy, wait = pending.plan.policy, paused.seconds
    if not policy.waits or wait > policy.claim:
        return GiveUp(policy.overflow if policy.waits else policy.throttle, demand, wait)
    if paused.wait is not None:
        return StartAt(now + paused.wait, paused.granted_at)
    return Park(demand, wait, since=since) if parks else Republish(wait, demand)


class UpstreamReturns:
    """Puts tasks of one worker back whose runs have ended so.

    Args:
        dispatch: called with the queue of a request that waits here for its permit.
    """

    def __init__(
        self,
        worker: Worker,
        asker: StoreRunner,
        limits: AppLimits,
        attendant: ReturnScheduler,
        outage: Outage,
        reporter: Reporter,
        deduplication: Deduplication,
        queues: RequestQueues,
        prefetch: HeldRequests,
        resources: RequestResources,
        dispatch: Callable[[list[LimitQueue]], None],
    ) -> None:
        self._worker, self._asker, self._limits = worker, asker, limits
        self._attendant, self._outage, self._queues, self._prefetch = attendant, outage, queues, prefetch
        self._resources, self._dispatch = resources, dispatch
        attendant.on_notification = self._on_notification
        self._reporter, self._deduplication = reporter, deduplication

    def put_back(self, request: Any, refusal: ReturnToBacklog) -> None:
        """The run of a request has ended, as its upstream has refused its call."""
        try:
            queue, now = requests.queue_of(request), monotonic()
            plan = self._limits.plan_of(request.task, queue)
            priority = priority_of(request.message.properties.get("priority"))
            permit = requests.permit_in(request)
            assert plan is not None
            assert permit is not None  # or the run would not have ended so
            demands = demands_in(permit, plan, priority)
            until = now + self._worker.broker.max_hold(queue) - requests.delivery_age(request)
            pending = PendingRequest(request, queue, plan, demands, 0, now, until, has_reservation=True, returned=True)
            pending.can_park, pending.coalesce_key = self._attendant.may_park(plan), coalesce_key(plan, request)
            demand = pending.demand(refusal.limit)
            paused = self._pause(pending, demand, refusal)
            count_upstream_throttle(request.message)
            since = int(marker_in(request.message).get("since") or refusal.granted_at)
            is_other = refusal.key is not None and key_meant(demand.limit, refusal.key, plan.node) != demand.key
            parks = pending.parks and not self._outage and not is_other  # its own bucket is not paused
            action = put_back(pending, demand, paused, monotonic(), since=since, parks=parks)
        except Exception as error:
            logger.error("Task %s[%s] cannot be put back: %r", request.name, request.id, error, exc_info=error)
            requests.fail(request, error)
        else:
            self._carry_out(pending, action)

    def close(self, pending_requests: Sequence[PendingRequest]) -> None:
        """The connection is lost, or the worker stops: park tasks that it holds whose messages the broker has not."""
        for pending in pending_requests:
            if pending.request.acknowledged:
                since = int(marker_in(pending.request.message).get("since") or pending.permit_at_us)
                demand = pending.demands[0]
                self._carry_out(pending, Park(demand, 0.0, since=since) if pending.parks else Republish(0.0, demand))

    def _on_notification(self, said: str | None) -> None:
        """In another thread: if an upstream has paused a limit for long, permits that were taken ahead are void."""
        if said is not None and said.endswith(":refused"):
            self._worker.timers.call_soon(self._worker.timers.guarded(partial(self._requeue_granted, said)))

    def _requeue_granted(self, refused_key: str) -> None:
        prefix, changed = self._asker.prefix, []
        for limit_queue in self._queues:
            keys = {bucket_key(prefix, name, each, "refused") for name, key in limit_queue.key for each in (key, "")}
            granted = [pending for pending in limit_queue.due.in_order() if pending.state is State.GRANTED]
            if granted and refused_key in keys:
                for number, pending in enumerate(granted):
                    self._resources.requeue(limit_queue, pending, behind=granted[:number])
                changed.append(limit_queue)
        self._dispatch(changed)

    def _pause(self, pending: PendingRequest, demand: LimitRequest, refusal: ReturnToBacklog) -> Paused:
        """Pause the limit. A store that does not answer pauses nothing; the task waits all the same."""
        request = pending.request
        policy = pending.plan.policy
        takes = len(pending.demands) == 1 and demand.share is None and policy.waits and policy.claim >= LONGEST_HELD
        takes = takes and not self._worker.is_stopping
        node = pending.plan.node
        report = partial(report_refusal, self._asker, demand, refusal, request.task.name, request.id, node, takes=takes)
        paused = self._outage.ask(report, None)
        logger.info(
            "Task %s[%s]: its upstream has refused its call, and limit %r is %s",
            *(request.name, request.id, demand.name),
            "not paused, as the store does not answer"
            if paused is None
            else f"paused for {paused.seconds:.3f} s"
            if paused.seconds
            else "slower for a while",
        )
        return paused or Paused(max(1.0, refusal.retry_after or 0.0))

    def _carry_out(self, pending: PendingRequest, action: StartAt | Park | Republish | GiveUp) -> None:
        """Carry an action out, again and again until the store or the broker has taken the task."""
        request = pending.request
        try:
            match action:
                case StartAt(at, permit_at_us):
                    self._hold(pending, at, permit_at_us)
                case Park(demand, wait):
                    if not self._is_parked(pending, demand, wait, action.since):
                        self._send_back(pending, Republish(wait, demand))
                case Republish():
                    self._send_back(pending, action)
                case GiveUp():
                    self._give_up(pending, action)
        except Exception as error:
            logger.warning(
                "Task %s[%s] could not be put back after its upstream has refused its call (%r): held, and tried again",
                *(request.name, request.id, error),
            )
            self._worker.timers.call_after(AGAIN, partial(self._carry_out, pending, action))

    def _hold(self, pending: PendingRequest, at: float, permit_at_us: int) -> None:
        """Let a request wait here for its permit."""
        requests.reserve_again(pending.request)
        pending.not_before = at  # should its permit be stale then
        limit_queue = self._queues.get_or_create(pending.plan.buckets(pending.demands))
        limit_queue.enqueue(pending, is_new=True)
        self._prefetch.enter(pending)
        self._resources.grant(limit_queue, pending, at, permit_at_us)
        self._reporter.announce(pending, ThrottleReport("waiting", max(0.0, at - monotonic()), pending.demands[0]))
        self._dispatch([limit_queue])

    def _is_parked(self, pending: PendingRequest, demand: LimitRequest, wait: float, since: int) -> bool:
        """Park a task. False: the store has not taken it, or has not replied."""
        bucket = demand.name, demand.key
        packed = self._attendant.to_park(pending, demand, since)
        parks = self._attendant.parks({bucket: [(pending, packed)]}, only_behind=False)
        try:
            said = self._outage.ask(lambda: asked(parks), None)
        except StoreFull:
            said = None
        if said is None:
            return False
        (result,) = said[bucket]
        self._on_parked(pending, ThrottleReport("parked", wait, demand), result)
        return True

    def _on_parked(self, pending: PendingRequest, report: ThrottleReport, result: ParkResult) -> None:
        if result.outcome == "replaced":
            self._deduplication.end_coalesced(pending, result.survivor)
        else:
            self._reporter.announce(pending, report)

    def _send_back(self, pending: PendingRequest, action: Republish) -> None:
        """Publish a task's message, to return after the pause: the worker that has it next knows how often it ran."""
        delay = min(action.wait, self._worker.broker.max_hold(pending.queue)) - RETURN_EARLY
        back = self._worker.return_addresses.address(pending.queue)
        slot_us = self._attendant.clock.slot_in(delay + RETURN_EARLY)
        self._worker.republisher.send_back(pending.request, pending.queue, back, delay, slot_us)
        self._deduplication.forget(pending)
        self._reporter.announce(pending, ThrottleReport("returned", action.wait, action.demand))

    def _give_up(self, pending: PendingRequest, action: GiveUp) -> None:
        report = ThrottleReport("", action.wait, action.demand).given_up(action.how, pending.plan.policy)
        if report.to is not None:
            self._worker.republisher.redirect(pending.request, report.to)
        self._reporter.announce(pending, report)
        if action.how == "drop":
            requests.revoke(pending.request, "dropped", report.reason)
        elif action.how == "fail":
            requests.fail(pending.request, report.error)
