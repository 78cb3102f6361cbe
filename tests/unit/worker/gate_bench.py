"""A gate in one process on its own clock, with a pool, a broker and a store that do what a test says.

``Bench.on_step`` holds what happens next at a step ("ask", "start", "revoked", …): an error, or a call that another
greenlet makes meanwhile.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit import Concurrency, Limit, StoreUnavailable
from celery_ratelimit._celery.saved_message import ReturnAddress
from celery_ratelimit.app.options import Policy
from celery_ratelimit.app.plan import Plan
from celery_ratelimit.backlog.backlog import ParkResult, ToPark
from celery_ratelimit.errors import STORE_TROUBLES
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.shadow import KnownShadows
from celery_ratelimit.limits.decision import Decision, LimitState
from celery_ratelimit.store_calls import store_calls
from celery_ratelimit.store_calls.outage import NotAsked
from celery_ratelimit.worker import admission, concurrency, gate
from celery_ratelimit.worker.gate import Gate
from celery_ratelimit.worker.request import State
from celery_ratelimit.worker.request_queue import LimitQueue
from tests.parks import EMPTY

__all__ = ["Bench", "Lost", "Request", "ends"]

#: Modules that read the clock.
TIMED = ("celery_ratelimit.worker.", "celery_ratelimit.store_calls.")


class Lost(Exception):
    """The connection to the broker is lost."""


class Request:
    """A received message."""

    expires: datetime | None = None

    def __init__(self, bench: Bench, id: str, task: Any, queue: str, returned: bool, via_return_queue: bool) -> None:
        self.bench, self.id, self.task, self.queue = bench, id, task, queue
        self.returned, self.via_return_queue = returned, via_return_queue
        self.name, self.args, self.kwargs, self.worker_pid = task.name, (), {}, None
        body = str(next(bench.numbers)).encode()
        self.message = SimpleNamespace(headers={}, properties={}, delivery_info={}, body=body, channel=None)
        self.request_dict: dict[str, Any] = {"properties": {}}
        self.delivery_info: dict[str, Any] = {}
        self.acknowledged = self.is_revoked = False
        self.ends: list[str] = []

    def __repr__(self) -> str:
        return f"<{self.id} {self.name} from {self.queue}: {self.ends}>"

    def revoked(self) -> bool:
        self.bench.step("revoked")
        if self.is_revoked and not self.ends:
            self.end("revoked")
        return self.is_revoked

    def end(self, how: str) -> None:
        self.ends.append(how)
        self.acknowledged = True


def ends(requests: Sequence[Request]) -> list[str]:
    """How each request has ended; "": it waits."""
    return [" ".join(request.ends) for request in requests]


class Task(SimpleNamespace):
    """A task that signals can keep as a key."""

    __hash__ = object.__hash__


class Ignores:
    """Takes any call and does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class Bench:
    """The gate and its surroundings."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        on_store_error: str = "defer",
        processes: int = 2,
        *,
        seconds_away: float = 0.0,
    ) -> None:
        self.seconds_away = seconds_away  # of the store; 0.0: calls are made in the loop
        self.is_far = True  # threads make calls if there is an event loop
        self.decides_at_submit = False
        self.lost_connections = 0
        self.now, self.processes, self.workers = 1000.0, processes, 2
        self.paused = False  # the return queues are paused
        self.pauses_late = False  # the broker confirms the pause later
        self.keeps_only_process = False
        self.on_step: dict[str, list[Any]] = {}
        self.timers: list[tuple[float, int, list[Any]]] = []
        self.acquire_sizes: list[int] = []  # requests of each acquire call
        self.park_sizes: list[int] = []  # requests of each park call
        self.attempts: list[list[int]] = []  # attempt numbers of each park call
        self.numbers = itertools.count(1)
        self.shadows = KnownShadows()
        self.lost = False
        self.tats: dict[str, float] = {}
        self.leases_of: dict[str, set[str]] = {}
        self.kept: set[str] = set()
        self.running: dict[Request, float] = {}
        self.runtimes: dict[str, float] = {}  # seconds, by task name
        self.requests: list[Request] = []
        self.left: set[str] = set()
        self.widened = 0
        self.has_parked_tasks = False
        self.park_results: list[ParkResult] = []  # replies to the next park calls
        self.bounds: list[int | None] = []  # max_parked of each request to park
        for name, module in list(sys.modules.items()):
            if name.startswith(TIMED) and hasattr(module, "monotonic"):
                monkeypatch.setattr(module, "monotonic", lambda: self.now)
        monkeypatch.setattr(store_calls, "ThreadPoolExecutor", lambda *_: self)
        monkeypatch.setattr(
            store_calls.StoreCalls, "_use_threads", property(lambda calls: calls._has_loop and self.is_far)
        )
        for name in ("Outage", "LimitWatcher", "ReturnScheduler"):
            monkeypatch.setattr(gate, name, lambda *_: self)
        monkeypatch.setattr(admission, "acquire_in_order", lambda asker, *asked, **how: self.ask_next(*asked, **how))
        monkeypatch.setattr(concurrency, "release_and_acquire", lambda asker, *asked: self.release_and_acquire(*asked))
        monkeypatch.setattr(concurrency, "NotificationListener", self.notification_listener)
        monkeypatch.setattr(gate, "StoredLimitLabels", lambda *_: Ignores())
        monkeypatch.setattr(gate, "StoreClock", lambda *_: self.clock)
        monkeypatch.setattr(gate, "backlog_of", lambda app: None)
        monkeypatch.setattr(gate, "is_built_in", lambda name: False)
        for name, value in {
            "queue_of": lambda request: request.queue,
            "was_throttled": lambda request: request.returned,
            "via_return_queue": lambda request: request.via_return_queue,
            "delivery_age": lambda request: 0.0,
            "is_past_deadline": lambda request, now: False,
            "remove_marker": lambda request: None,
            "send_throttled_event": lambda request, fields: self.step("announce"),
            "fail": lambda request, error: request.end("failed"),
            "revoke": lambda request, outcome, reason: request.end("dropped"),
        }.items():
            monkeypatch.setattr(gate.requests, name, value)
        worker: Any = SimpleNamespace(
            app=None,
            pool=self,
            broker=SimpleNamespace(
                max_hold=lambda queue="": 1440.0,
                poll_delay=0.0,
                connection_errors=(Lost,),
                no_event_loop=not seconds_away,
            ),
            timers=SimpleNamespace(
                call_after=self.call_after,
                call_soon=lambda callback: self.call_after(0.0, callback),
                call_soon_wakes_loop=True,
                lock=nullcontext(),
                fire_early=lambda wanted: None,
                guarded=lambda function: function,
            ),
            consumption=self,
            return_addresses=SimpleNamespace(address=lambda queue: ReturnAddress(f"{queue}.throttled")),
            bulk_receive=self,
            republisher=SimpleNamespace(
                send_back=self._leaves("sent back"),
                redirect=self._leaves("redirected"),
                acknowledge=self._leaves("acknowledged"),
            ),
            acknowledgements=Ignores(),
            final_states=Ignores(),
            autoscaling=Ignores(),
            during_soft_shutdown=lambda poll, interval: None,
            start=self._start,
            live_workers=lambda: self.workers,
            keeps_only_process=lambda: self.keeps_only_process,
            is_stopping=False,
            can_gossip=True,
        )
        settings: Any = SimpleNamespace(on_store_error=on_store_error, orphans_after=60.0, counts=False)
        leases: Any = SimpleNamespace(
            begin=self._begin,
            end=self._end_lease,
            here=lambda demand: len(self.kept),
            ended=lambda demands: [],
            has_ended=False,
            confirm=lambda released: None,
        )
        limits: Any = SimpleNamespace(
            plan_of=lambda task, queue: task.plan,
            get=lambda name: None,
            has_any=lambda task, queue, names: any(limit.name in names for limit in task.plan.limits),
        )
        self.arrivals = SimpleNamespace(
            may_run=self._may_run,
            on_message=lambda message: None,
            forget=lambda pending: None,
            asks_along=lambda pending: False,
            told_along=lambda asking: nullcontext(None),
        )
        self.rescheduler = Ignores()
        self.gate = Gate(worker, self, leases, settings, limits)  # type: ignore[arg-type]

    def step(self, name: str) -> None:
        """Let the next event of this step happen."""
        happens = self.on_step[name].pop(0) if self.on_step.get(name) else None
        if isinstance(happens, Exception):
            raise happens
        if happens is not None:
            happens()

    # -- Time ------------------------------------------------------------------------------------------------------

    def call_after(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        waiting: list[Any] = [callback]
        heapq.heappush(self.timers, (self.now + seconds, next(self.numbers), waiting))
        return waiting.clear

    def _nothing(self, *_: Any, **__: Any) -> None:
        """What this bench takes no notice of."""

    shutdown = ping = request_more = forget_turns = note_coming = watch = store_is_back = _nothing

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Run a call on a thread: its reply comes ``seconds_away`` later, unless the connection is lost by then."""
        self.step("submit")
        future: Future[Any] = Future()
        connection = self.lost_connections
        replies = [call()] if self.decides_at_submit else []

        def answer() -> None:
            reply = replies.pop() if replies else call()
            if connection == self.lost_connections:
                future.set_result(reply)

        self.call_after(self.seconds_away, answer)
        return future

    def run(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        end = self.now + seconds
        while self.timers and self.timers[0][0] <= end:
            at, _, waiting = heapq.heappop(self.timers)
            self.now = max(self.now, at)
            if waiting:
                self.contained(waiting.pop())
                self.check()
        self.now = end

    def contained(self, call: Callable[[], None], request: Any = None) -> None:
        """Handle errors as Celery and ``Timers.guarded`` do."""
        try:
            call()
        except Lost:
            self.lose_connection()
        except Exception as error:
            if request is not None:
                self.gate.on_error(request, error)

    # -- Messages --------------------------------------------------------------------------------------------------

    def task(self, kind: str, *names: str, **options: Any) -> Any:
        """Make a task with limits: "r…" are rates of 10/s, "p…" are concurrency limits of 2."""
        if not names:
            return Task(name=kind, plan=None)
        limits = [Concurrency(2, name=name) if name[0] == "p" else Limit("10/s", name=name) for name in names]
        demands = tuple(LimitRequest(limit, name) for limit, name in zip(limits, names, strict=True))
        policy = Policy(**{"throttle": kind, "inline_wait": 0.02, "max_wait": None, "overflow": "fail", **options})
        return Task(name=f"{kind} {names}", plan=Plan(tuple(limits), policy, None, demands, "node"))

    def receive(
        self,
        task: Any,
        id: str | None = None,
        *,
        queue: str = "celery",
        returned: bool = False,
        via_return_queue: bool = False,
    ) -> Request:
        id = id or f"id-{next(self.numbers)}"
        request = Request(self, id, task, queue, returned or via_return_queue, via_return_queue)
        self.requests.append(request)
        self.contained(lambda: self.gate.on_request(request), request)
        return request

    def receive_batch(self, tasks: Sequence[Any], **options: Any) -> list[Request]:
        """Receive messages in one batch, up to a lost connection."""
        requests: list[Request] = []
        self.receiving = True
        for task in tasks:
            if not any(map(self.is_stale, requests)):
                requests.append(self.receive(task, **options))
        self.receiving = False
        self.contained(self.after_together)
        return requests

    def _leaves(self, how: str) -> Callable[..., None]:
        def leaves(request: Request, *_: Any) -> None:
            self.step(how)
            if not self.is_stale(request):
                request.end(how)

        return leaves

    def is_stale(self, request: Request) -> bool:
        """Its connection is lost: the broker delivers it again."""
        return "lost" in request.ends

    def lose_connection(self) -> None:
        requests = list(self.requests)
        self.lost_connections += 1
        self.gate.close()
        for request in requests:
            if not request.ends and request not in self.running:
                request.ends.append("lost")
        self.widened = 0
        self.left.clear()
        self.gate.begin()

    # -- The pool --------------------------------------------------------------------------------------------------

    has_queue = True

    def _start(self, request: Request, permit: Any = None) -> None:
        try:
            self.step("start")
        except ZeroDivisionError as error:  # as Worker.start does
            self.gate.on_error(request, error)
            return
        if request.is_revoked:
            request.end("revoked")
            return
        request.ends.append("started")
        self.running[request] = self.now

    def finish(self) -> None:
        """End the task that has run for longest."""
        if self.running:
            request = next(iter(self.running))
            del self.running[request]
            request.acknowledged = True
            self.contained(lambda: self.gate.on_end(request))

    def idle(self, pending: int) -> int:
        inside = sum(not request.ends for request in self.requests)
        return self.processes - (len(self.running) + inside - pending)

    def mean_runtime(self, name: str) -> float:
        return self.runtimes.get(name, 0.05)

    def may_free(self, number: int, now: float, seconds: float) -> bool:
        return sum(now - since < 0.05 for since in self.running.values()) >= number

    def frees_soon(self, now: float, seconds: float) -> bool:
        return self.mean_runtime("") <= seconds

    def has(self, request: Any) -> bool:
        return request in self.running

    # -- The broker ------------------------------------------------------------------------------------------------

    prefetch_is_full = has_several_queues = True

    def may_pause_queue(self, queue: str) -> bool:
        return True

    def nears_delivery_limit(self, request: Any, queue: str) -> bool:
        return False

    def pause_queue(self, queue: str) -> None:
        assert queue not in self.left
        self.left.add(queue)

    def resume_queue(self, queue: str) -> None:
        self.left.discard(queue)

    def pause_return_queues(self, paused: bool, then: Callable[[], None]) -> None:
        assert paused != self.paused
        self.paused = paused
        if paused and not self.pauses_late:
            then()
        self.then = then

    @property
    def prefetch(self) -> Any:
        return self

    def widen(self, number: int) -> None:
        self.widened += number

    receiving = False

    def configure(self, source: str, after: Callable[[], None]) -> None:
        self.after_together = after

    # -- The store -------------------------------------------------------------------------------------------------

    def may_park(self, plan: Plan) -> bool:
        return plan.parks

    def pause_while(self, is_late: Any) -> None:
        self.is_late = is_late

    @property
    def clock(self) -> Any:
        return SimpleNamespace(slot_in=lambda seconds: None, seconds_until=lambda slot_us: None, now=lambda: 0.0)

    @property
    def parking(self) -> Any:
        """All parts of the return scheduler are this bench."""
        return self

    register = occupied = memory = parking
    is_full = False

    def note(self, used: int, most: int) -> None:
        self.is_full = True

    @property
    def _asker(self) -> Any:
        return self

    is_a_move = False
    error = StoreUnavailable("no answer")

    def __bool__(self) -> bool:
        return self.lost

    def ask(self, question: Any, otherwise: Any = None, *, quietly: bool = False) -> Any:
        return otherwise if self.lost else self.read(question, otherwise, quietly=quietly)

    def read(self, reply: Any, otherwise: Any, *, quietly: bool = False) -> Any:
        try:
            return reply()
        except NotAsked:
            pass
        except STORE_TROUBLES as error:
            if not quietly:
                self.begin(error)
        return otherwise

    def begin(self, error: Any = None, on_end: Any = None) -> None:
        self.lost = self.lost or error is not None

    def end_outage(self) -> None:
        if self.lost:
            self.lost = False
            self.contained(self.gate._store_is_back)

    def pause(self) -> float:
        return 1.0

    def ask_next(self, demands: Any, ids: Sequence[str], *, horizon: float, claim: float) -> list[Decision]:
        self.step("ask")
        self.acquire_sizes.append(len(ids))
        decisions = []
        for id in ids:
            decisions.append(self._decide(demands, id=id, horizon=horizon))
            if not decisions[-1].allowed:
                break
        return decisions

    is_cluster, client, prefix, core = False, None, "", None

    def notification_listener(self, *_: Any) -> Any:
        return SimpleNamespace(is_up=False, listen=lambda: None, close=lambda: None)

    def release_and_acquire(self, demands: Any, asking: Any, ended: Any) -> list[Decision]:
        assert not ended
        assert not asking.waiter
        decisions: list[Decision] = []
        for id in asking.lease_ids:  # one lease each
            horizon = asking.horizon / 1e6 if len(decisions) < asking.most else -1e6
            decisions += self.ask_next(demands, [id], horizon=horizon, claim=asking.claim / 1e6)
            if not decisions[-1].allowed:
                break
        return decisions

    def _wait(self, demand: LimitRequest, id: str) -> float:
        if isinstance(demand.limit, Limit):
            return max(0.0, self.tats.get(demand.name, 0.0) - self.now)
        return 0.5 if len(self.leases_of.setdefault(demand.name, set()) - {id}) >= 2 else 0.0

    def _decide(self, demands: Any, *, id: str, horizon: float) -> Decision:
        waits = [self._wait(demand, id) for demand in demands]
        wait = max(waits)
        rates = [demand for demand in demands if isinstance(demand.limit, Limit)]
        leased = [demand for demand in demands if demand not in rates]
        allowed = wait <= horizon and not any(self._wait(demand, id) for demand in leased)
        if allowed:
            for demand in rates:
                self.tats[demand.name] = max(self.now, self.tats.get(demand.name, 0.0)) + 0.1
            for demand in leased:
                self.leases_of[demand.name].add(id)
        states = tuple(
            LimitState(demand.name, "", 1, 0, self._wait(demand, id), 0.1)
            if demand in rates
            else LimitState(demand.name, "", 2, 0, wait, 0.0)
            for demand in demands
        )
        binding = None if allowed else demands[waits.index(wait)].name
        return Decision(allowed, 1, 0, wait, wait, binding, states, False, id, int(self.now * 1e6), tuple(demands))

    def forget(self, *_: Any, **__: Any) -> None:
        self.step("forget")

    def _begin(self, holder: str, demands: Any, granted_at: int) -> None:
        if any(isinstance(demand.limit, Concurrency) for demand in demands):
            self.kept.add(holder)

    def _end_lease(self, holder: str, *, later: bool, unconfirmed: Sequence[LimitRequest]) -> None:
        if holder in self.kept or unconfirmed:
            self.kept.discard(holder)
            for holders in self.leases_of.values():
                holders.discard(holder)
            self.step("release")

    # -- Backlog ---------------------------------------------------------------------------------------------------

    def _may_run(self, pending: Any) -> bool:
        self.step("may run")
        return True

    def lot_of(self, demands: Any) -> Any:
        return demands[0] if self.has_parked_tasks else None

    def to_park(self, pending: Any, *_: Any) -> Any:
        self.step("pack")
        return ToPark("", 1, "{}", 1, pending.token, attempt=pending.attempt)

    def is_closed(self, bucket: Any) -> bool:
        return False

    def parts(self, buckets: Any) -> Any:
        return [[bucket] for bucket in buckets]

    def parks(self, requests_of: Any, *, only_behind: bool, **_: Any) -> Any:
        self.attempts.append([packed.attempt for requests in requests_of.values() for _, packed in requests])
        self.bounds += [packed.max_parked for requests in requests_of.values() for _, packed in requests]
        yield lambda: self.step("park")
        self.park_sizes.append(sum(map(len, requests_of.values())))
        return {
            bucket: [self._park(pending, only_behind) for pending, _ in requests]
            for bucket, requests in requests_of.items()
        }

    def _park(self, pending: Any, only_behind: bool) -> ParkResult:
        answer = self.park_results.pop(0) if self.park_results else ParkResult("parked")
        if answer == EMPTY:
            self.has_parked_tasks = False
            answer = EMPTY if only_behind else ParkResult("parked")
        if answer.is_parked and not pending.gone and not self.is_stale(pending.request):
            pending.request.end("parked")
        return answer

    def close(self) -> None:
        self.lost = False

    # -- Invariants --------------------------------------------------------------------------------------------------

    def pending(self) -> list[tuple[LimitQueue, Any]]:
        return [(limit_queue, pending) for limit_queue in self.gate._queues for pending in limit_queue]

    def check(self) -> None:
        """Check that each request is in one state and one queue, and counted once."""
        capacity, prefetch = self.gate._capacity, self.gate._prefetch
        pending = self.pending()
        assert len({id(each) for _, each in pending}) == len(pending)
        for limit_queue, each in pending:
            leases_of = (each in limit_queue.reserved, each in limit_queue.new, each in list(limit_queue.due))
            expected = {
                State.QUEUED: (each.has_reservation, not each.has_reservation, False),
                State.ACQUIRING: (each.has_reservation, not each.has_reservation, False),
                State.DEFERRED: (False, False, True),
                State.GRANTED: (False, False, True),
                State.PARKING: (False, False, False),
            }
            assert leases_of == expected[each.state]
            assert (each in limit_queue.parking) == (each.state is State.PARKING)
            in_flight = limit_queue.acquire is not None and each in limit_queue.acquire.requests
            assert in_flight == (each.state is State.ACQUIRING)
        assert prefetch.limited == len(pending)
        assert capacity.pending == len(pending) + len(self.gate._pool_scheduler)
        holding = sorted(each.at for _, each in pending if each.state is State.GRANTED)
        assert capacity.reservations.times == holding
        assert prefetch._outside == self.widened >= 0
        assert self.left == set(prefetch._suspended)
        assert {request.id for request in self.requests if len(request.ends) > 1 and request.ends[0] != "lost"} == set()
        waiting = {id(each.request) for _, each in pending} | {
            id(each.request) for each in self.gate._pool_scheduler._unlimited
        }
        assert waiting == {id(request) for request in self.requests if not request.ends}
        keep = {each.run_id for _, each in pending} | {each.run_id for each in self.gate._concurrency._running.values()}
        assert self.kept <= keep
        assert not self.gate._scheduler._is_running

    def check_empty(self) -> None:
        """Check that no request has left anything behind."""
        self.check()
        assert not self.pending()
        assert not len(self.gate._pool_scheduler)
        queues = self.gate._queues
        assert not {*queues._by_key, *queues._by_bucket, *queues.needing_process}
        assert not self.gate._concurrency._running
        assert not self.kept
        assert not any(self.leases_of.values())
        assert not self.left
        assert not len(self.gate._batch)
        assert self.gate._capacity.reservations.by(float("inf")) == 0
