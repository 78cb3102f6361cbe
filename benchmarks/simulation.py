"""A fleet in one process, on a clock that is moved: real gates and real scripts, on workers that are modelled.

Real is what this package consists of: the gates with all that they need, what is parked and how, the scripts, on a
server whose clock is moved and whose keys expire by it. Modelled are Celery and the broker: a worker does one thing
after the other, each takes a while, and while it waits for the store others go on; messages lie in lists, from which
whoever asked first gets the next one; a pool runs tasks for so many seconds.

Time passes from one event to the next. All who read a clock in this process (``time.time``, ``time.monotonic``) read
that of the simulation, and a script reads it in place of the server's.
"""

from __future__ import annotations

import heapq
import itertools
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import greenlet
from celery import Celery
from redis.exceptions import ResponseError

from celery_ratelimit import RateLimitedTask
from celery_ratelimit._celery import MAX_RETURNED, requests
from celery_ratelimit._celery.bulk_receive import FIRST_PAUSE, MAX_BYTES, MAX_MESSAGES, MAX_PAUSE
from celery_ratelimit._celery.pool import Pool, _Job
from celery_ratelimit._celery.publish_again import publish
from celery_ratelimit._celery.saved_message import Parcel, ReturnAddress, parcel_of
from celery_ratelimit.app.app_limits import AppLimits
from celery_ratelimit.app.app_store import leases_of, limiter_of
from celery_ratelimit.app.settings import settings_of
from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.store.link import Link
from celery_ratelimit.store.resp import bulk
from celery_ratelimit.testing import embedded_server
from celery_ratelimit.worker import gate
from tests.lua.frozen import FROZEN_STORE

__all__ = ["Fleet", "Started", "simulated"]

QUEUE = "celery"
TASK = "simulated.limited"
EPOCH = 1_700_000_000.0
#: Messages that a worker takes in, for each process of its pool: Celery's own.
PREFETCH = 4
#: What a message weighs for a script at the broker that takes many.
MESSAGE_BYTES = 1000


@dataclass(frozen=True)
class Takes:
    """Seconds that each step takes a worker: about what it takes one on two cores.

    ``store``: a round trip to the store, ``broker``: one to the broker; ``receive``: a message; ``follow``: one that
    comes with others; ``start``: a task is handed to the pool; ``end``: the pool says that it has ended; ``publish``: a
    message is sent to the broker, with others.
    """

    store: float = 0.0003
    broker: float = 0.0003
    receive: float = 0.0005
    follow: float = 0.0002
    start: float = 0.0003
    end: float = 0.0002
    publish: float = 0.0001


@dataclass(frozen=True)
class Started:
    """A task has started: at that time, with a permit that was good at that time, in the order in which it was sent."""

    index: int
    at: float
    permit_at: float


class World:
    """Time, and what happens when.

    Attributes:
        now: seconds.
    """

    def __init__(self) -> None:
        self.now = EPOCH
        self._events: list[tuple[float, int, Callable[[], Any]]] = []
        self._numbers = itertools.count()
        self._hub = greenlet.getcurrent()

    def at(self, when: float, call: Callable[[], Any]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), call))

    def pass_for(self, seconds: float) -> None:
        """Whoever is at work is at it for so long: what others do meanwhile happens."""
        here = greenlet.getcurrent()
        if here is not self._hub:  # while the fleet is made no time passes
            self.at(self.now + seconds, here.switch)
            self._hub.switch()

    def run(self, is_over: Callable[[], bool], until: float) -> None:
        while self._events and not is_over() and self.now < until:
            at, _, call = heapq.heappop(self._events)
            self.now = at
            call()


class MovedLink(Link):
    """The way to a store whose clock is that of the simulation. Counts what it is asked, by script.

    Args:
        link: the way that it takes the place of.
        world: whose clock it is.
        takes: what a round trip takes.
    """

    def __init__(self, link: Any, world: World, takes: Takes) -> None:
        super().__init__(link._client)
        self._world, self._takes = world, takes
        self.asked: Counter[str] = Counter()

    def exchange(self, command: bytes) -> Any:
        self._world.pass_for(self._takes.store / 2)
        verb = command.split(b"\r\n", 5)
        self.asked[(verb[4] if verb[2] == b"EVALSHA" else verb[2]).decode()] += 1
        try:
            return super().exchange(command)
        finally:
            self._world.pass_for(self._takes.store / 2)

    def _exchange(self, command: bytes) -> Any:
        connection = self._take()
        try:
            clock = b"*3\r\n" + bulk("SET", "test:clock", int(self._world.now * 1e6))
            connection.begin()
            connection.send_packed_command([clock, command], check_health=False)
            connection.read_response()
            return connection.read_response()
        except ResponseError:
            raise
        finally:
            self._idle.append(connection)


# -- Celery and the broker, as far as a gate sees them -----------------------------------------------------------------


@dataclass(eq=False, slots=True, weakref_slot=True)
class Message:
    """What lies at the broker. ``from_``: whose window it is part of, as long as it is not acknowledged."""

    headers: dict[str, Any]
    body: str
    properties: dict[str, Any]
    eta: float = 0.0
    channel: Any = None
    delivery_info: dict[str, Any] = field(default_factory=lambda: {"exchange": "", "routing_key": QUEUE})
    content_type: str = "application/json"
    content_encoding: str = "utf-8"
    ratelimit_queue: str = ""
    ratelimit_arrived: bool = False
    acknowledged: bool = False


class Returned(Message):
    """The same, by a return queue. (That is asked of each message.)"""

    ratelimit_via_return_queue = True


class Request:
    """A message in a worker."""

    worker_pid = expires = tzlocal = _eventer = None
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}

    def __init__(self, message: Message, task: Any) -> None:
        self.message, self.task, self.name = message, task, task.name
        self.id = message.headers["id"]
        self.request_dict = dict(message.headers)
        self.delivery_info = dict(message.delivery_info)
        self.acknowledged = False

    def revoked(self) -> bool:
        return False

    @property
    def index(self) -> int:
        return int(self.id)


class Queues:
    """The broker's, and who waits for a message of each."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.messages: dict[str, deque[Message]] = {}
        self.waiting: dict[str, dict[Channel, None]] = {}

    def declare(self, name: str) -> None:
        self.messages.setdefault(name, deque())
        self.waiting.setdefault(name, {})

    def put(self, name: str, message: Message) -> None:
        self.messages[name].append(message)
        self.serve(name)

    def serve(self, name: str) -> None:
        messages, waiting = self.messages[name], self.waiting[name]
        while messages and waiting:
            channel = next(iter(waiting))
            del waiting[channel]
            channel.gets(messages.popleft())

    def take(self, name: str, most: int) -> list[Message]:
        messages = self.messages[name]
        return [messages.popleft() for _ in range(min(most, len(messages)))]


class Channel:
    """What one worker consumes by itself: a queue and a window."""

    def __init__(self, worker: Worker, queue: str, window: int, kind: type[Message]) -> None:
        self._worker, self.queue, self.window, self.kind = worker, queue, window, kind
        self.unacknowledged = 0
        self.paused = False
        self._asks = False
        self._rest = FIRST_PAUSE
        self._rests_until = 0.0

    def room(self) -> int:
        return self.window - self.unacknowledged

    def ask(self) -> None:
        """Ask the broker for the next message, unless that is out already, or all have come in that may."""
        if not self._asks and not self.paused and self.room() > 0:
            self._asks = True
            queues = self._worker.fleet.queues
            queues.waiting[self.queue][self] = None
            queues.serve(self.queue)

    def leave(self, paused: bool) -> None:
        self.paused = paused
        if paused and self._worker.fleet.queues.waiting[self.queue].pop(self, 0) is None:
            self._asks = False

    def gets(self, message: Message) -> None:
        self._asks = False
        self.unacknowledged += 1
        worker = self._worker
        worker.fleet.world.at(
            worker.fleet.world.now + worker.fleet.takes.broker, lambda: worker.do(lambda: worker.receive(self, message))
        )

    def may_gather(self, now: float) -> bool:
        return now >= self._rests_until and self.room() > 0

    def take(self, most: int, now: float) -> list[Message]:
        """See :mod:`celery_ratelimit._celery.bulk_receive`."""
        taken = self._worker.fleet.queues.take(
            self.queue, min(MAX_MESSAGES, most, self.room(), MAX_BYTES // MESSAGE_BYTES)
        )
        if taken:
            self._rest = FIRST_PAUSE
            self.unacknowledged += len(taken)
        else:
            self._rests_until, self._rest = now + self._rest, min(2 * self._rest, MAX_PAUSE)
        return taken


class SimulatedPool(Pool):
    """Processes that run tasks for a while."""

    def __init__(self, worker: Worker, processes: int) -> None:
        super().__init__(SimpleNamespace(is_green=False, num_processes=processes))
        self._worker = worker
        self._queued: deque[Request] = deque()
        self._busy = 0
        self.reserved = 0

    def idle(self, held: int) -> int:
        return self.processes - (self.reserved - held)

    def has(self, request: Any) -> bool:
        return request in self._jobs

    def start(self, request: Request) -> None:
        self._jobs[request] = _Job(request.name, self._worker.fleet.world.now)
        self._queued.append(request)
        self._run_next()

    def _run_next(self) -> None:
        world = self._worker.fleet.world
        while self._queued and self._busy < self.processes:
            request = self._queued.popleft()
            self._busy += 1
            self._jobs[request].started_at = world.now
            self._worker.fleet.has_started(request)
            world.at(world.now + self._worker.fleet.task_seconds(), lambda request=request: self._ends(request))

    def _ends(self, request: Request) -> None:
        self._busy -= 1
        self._run_next()
        self._worker.do(lambda: self._has_ended(request))

    def _has_ended(self, request: Request) -> None:
        self._worker.fleet.world.pass_for(self._worker.fleet.takes.end)
        self.reserved -= 1
        self._ended(request)
        self._worker.gate.on_end(request)


class Worker:
    """A worker, as its gate sees it: its own timers and broker, too.

    Args:
        fleet: that it is one of.
        number: which.
    """

    lock = nullcontext()  # of its timers
    has_several_queues = False
    is_prefork = can_gossip = True
    is_stopping = False
    call_soon_wakes_loop = False  # no line is notified here

    def __init__(self, fleet: Fleet, number: int, processes: int) -> None:
        self.fleet, self.app = fleet, fleet.app
        self.hostname = f"w{number}@simulated"
        self.pool = SimulatedPool(self, processes)
        self.broker = SimpleNamespace(
            no_event_loop=True,
            visibility_timeout=3600.0,
            max_hold=lambda queue="": 0.4 * 3600.0,
            poll_delay=0.0,
            connection_errors=(),
        )
        self.acknowledgements = SimpleNamespace(close=lambda: None)
        self.timers = self.consumption = self.bulk_receive = self.queue_pauser = self.republisher = self
        self.return_addresses = self
        self.autoscaling = SimpleNamespace(leave_out=lambda waiting: None, update=lambda: None)
        self.during_soft_shutdown: Callable[..., None] = lambda *_: None
        self.queues = [QUEUE]
        self.receiving = False
        self._after: Callable[[], None] = lambda: None
        self._wanted = 0
        self._reading: Channel | None = None
        self._is_busy = False
        self._to_do: deque[Callable[[], Any]] = deque()
        self._on_countdown: dict[Request, Callable[[], None]] = {}
        self.own = Channel(self, QUEUE, PREFETCH * processes, Message)
        self.return_channel = Channel(self, self.return_queue_for(QUEUE), MAX_RETURNED, Returned)
        for channel in (self.own, self.return_channel):
            fleet.queues.declare(channel.queue)
        worker: Any = self
        self.gate = gate.Gate(worker, fleet.limiter, leases_of(fleet.app), settings_of(fleet.app), fleet.limits)

    # -- Its loop --------------------------------------------------------------------------------------------------

    def do(self, call: Callable[[], Any]) -> None:
        """Do it when all is done that was to be done before."""
        self._to_do.append(call)
        if not self._is_busy:
            self._is_busy = True
            greenlet.greenlet(self._work).switch()

    def _work(self) -> None:
        while self._to_do:
            self._to_do.popleft()()
            self.own.ask()
            self.return_channel.ask()
        self._is_busy = False

    def call_after(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        waiting = [callback]

        def fire() -> None:
            if waiting:
                waiting.pop()()

        self.fleet.world.at(self.fleet.world.now + seconds, lambda: self.do(fire) if waiting else None)
        return waiting.clear

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.call_after(0, callback)

    def guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        return function

    def fire_early(self, wanted: Callable[[Any], bool]) -> None:
        for request in [each for each in self._on_countdown if wanted(each)]:
            self._on_countdown.pop(request)()
            self._come(request)

    # -- In --------------------------------------------------------------------------------------------------------

    def receive(self, channel: Channel, message: Message) -> None:
        """A message has come from the broker, and others with it, if that is wanted."""
        world, takes = self.fleet.world, self.fleet.takes
        world.pass_for(takes.receive)
        self._reading = channel
        self._deliver(channel, message)
        self._reading = None
        if self._wanted:
            wanted, self._wanted = self._wanted, 0
            world.pass_for(takes.broker)
            for each in channel.take(wanted, world.now):
                world.pass_for(takes.follow)
                self._deliver(channel, each)
            self.receiving = False
            self._after()

    def _deliver(self, channel: Channel, message: Message) -> None:
        message.channel = channel
        message.ratelimit_queue = channel.queue
        request = Request(message, self.fleet.task)
        self.gate.on_message(message)
        seconds = message.eta - self.fleet.world.now
        if seconds > 0:
            self._on_countdown[request] = self.call_after(seconds, lambda: self._end_countdown(request))
        else:
            self._come(request)

    def _end_countdown(self, request: Request) -> None:
        if self._on_countdown.pop(request, None):
            self._come(request)

    def _come(self, request: Request) -> None:
        self.pool.reserved += 1
        requests.note_arrived(request)
        self.gate.on_request(request)

    def configure(self, source: str, after: Callable[[], None]) -> None:
        self._after = after

    def request_more(self, message: Message, most: int = MAX_MESSAGES) -> None:
        if self._reading is message.channel and self._reading.may_gather(self.fleet.world.now) and most > 0:
            self._wanted, self.receiving = most, True

    def pause_while(self, is_late: Callable[[], bool]) -> None:
        """Its store is near."""

    def return_queue_for(self, queue: str) -> str:
        return settings_of(self.app).return_queue_for(queue)

    def address(self, queue: str) -> ReturnAddress:
        return ReturnAddress(self.return_queue_for(queue))

    def usable(self, parcel: Any) -> Any:
        return parcel

    def attended(self) -> set[tuple[str, str]]:
        return {(self.return_queue_for(QUEUE), QUEUE)}

    def pause_return_queues(self, paused: bool, then: Callable[[], None]) -> None:
        self.return_channel.leave(paused)
        if paused:
            then()

    def does_anybody_wait_to_return(self) -> bool:
        self.fleet.world.pass_for(self.fleet.takes.broker)
        return bool(self.fleet.queues.messages[self.return_channel.queue])

    def broker_order(self, message: object, queue: str) -> int:
        return 0  # no task has a priority

    @property
    def prefetch_is_full(self) -> bool:
        return self.own.room() <= 0

    def widen_prefetch(self) -> None:
        self.own.window += 1

    def narrow_prefetch(self) -> None:
        self.own.window -= 1

    def keeps_only_process(self) -> bool:
        return False  # there are several

    def live_workers(self) -> int:
        return len(self.fleet.workers)

    def newly_revoked(self) -> list[str]:
        return []

    # -- Out -------------------------------------------------------------------------------------------------------

    def start(self, request: Request, permit: Mapping[str, Any]) -> None:
        self.fleet.world.pass_for(self.fleet.takes.start)
        self.fleet.permits[request.index] = permit["granted_at"] / 1e6
        self._acknowledge(request)
        self.pool.start(request)

    def acknowledge(self, request: Request) -> None:
        self._acknowledge(request)
        self.pool.reserved -= 1

    def _acknowledge(self, request: Request) -> None:
        request.acknowledged = request.message.acknowledged = True
        request.message.channel.unacknowledged -= 1

    def send_back(self, request: Request, queue: str, back: ReturnAddress, delay: float, _: Any) -> None:
        self.publish([(parcel_of(request, queue, back), max(0.0, delay), {})])
        self.fleet.sent_back += 1
        self.acknowledge(request)

    def publish(self, parcels: Sequence[tuple[Parcel, float, Mapping[str, Any]]]) -> set[str]:
        world, takes = self.fleet.world, self.fleet.takes
        world.pass_for(takes.broker + takes.publish * len(parcels))
        for parcel, delay, marker in parcels:
            eta = world.now + delay

            def put(body: str, *, routing_key: str, headers: dict[str, Any], eta: float = eta, **_: Any) -> None:
                kind = Returned if routing_key != QUEUE else Message
                self.fleet.queues.put(routing_key, kind(headers, body, {}, eta))

            publish(SimpleNamespace(publish=put, connection=None), parcel, delay, marker)  # type: ignore[arg-type]
        return set()


def _nothing() -> None:
    """What the task does."""


class Fleet:
    """Workers, and a broker.

    Args:
        world: whose time it is.
        url: of the store.
        workers: how many.
        processes: of each.
        rate: of the limit, a second.
        seconds: that a task takes, on average.
        takes: what takes how long.

    Attributes:
        started: each start.
    """

    def __init__(
        self, world: World, url: str, *, workers: int, processes: int, rate: int, seconds: float, takes: Takes
    ) -> None:
        self.world, self.takes, self._seconds = world, takes, seconds
        self.app = app = Celery("simulated", broker=url, set_as_current=False)
        app.conf.ratelimit_url = url
        self.task = app.task(base=RateLimitedTask, limits=f"{rate}/s", name=TASK)(_nothing)
        app.finalize()
        self.limits = AppLimits(app)
        self.limiter = limiter_of(app)
        asker: Any = self.limiter._asker
        asker.replace_includes = {"now": FROZEN_STORE}
        self.link = asker.link = MovedLink(asker.link, world, takes)
        for script in vars(asker.core.scripts).values():
            script._replace = asker.replace_includes
        self.queues = Queues(world)
        self.permits: dict[int, float] = {}
        self.started: list[Started] = []
        self.sent_back = 0
        self._random = random.Random(1)
        self._parking: list[Backlog] = []
        with mock.patch.object(gate, "backlog_of", self._park):
            self.workers = [Worker(self, number, processes) for number in range(workers)]
        for worker in self.workers:  # not all in one moment
            world.at(world.now + self._random.uniform(0, 0.5), lambda worker=worker: worker.do(worker.gate.begin))
        for channel in (channel for worker in self.workers for channel in (worker.own, worker.return_channel)):
            world.at(world.now + 1.0, channel.ask)

    def _park(self, app: Celery) -> Backlog:
        parking: Any = Backlog(self.limiter, "fleet", 3600.0)
        # No simulated worker is notified: an idle worker asks each second.
        listener = SimpleNamespace(was_notified=lambda: True, listen=lambda: None, close=lambda: None)
        parking.notification_listener = lambda on_notification=None: listener
        self._parking.append(parking)
        return parking

    def send(self, index: int) -> None:
        headers = {"id": str(index), "task": TASK, "retries": 0, "eta": None, "expires": None}
        body = f'[[], {{}}, {{"index": {index}}}]'
        self.queues.put(QUEUE, Message(headers, body, {"delivery_tag": str(index)}))

    def task_seconds(self) -> float:
        return self._seconds * self._random.uniform(0.5, 1.5)

    def has_started(self, request: Request) -> None:
        self.started.append(Started(request.index, self.world.now, self.permits[request.index]))

    def asked(self) -> Counter[str]:
        """What the store was asked, by script."""
        scripts = [*vars(self.limiter._asker.core.scripts).values()]
        scripts += [script for parking in self._parking for script in parking.scripts.by_name.values()]
        names = {script.digest: script.name for script in scripts}
        asked: Counter[str] = Counter()
        for what, count in self.link.asked.items():
            asked[names.get(what, what)] += count
        return asked


@contextmanager
def simulated(takes: Takes | None = None, **fleet: Any) -> Iterator[Fleet]:
    """A fleet; within, the clocks of this process are moved."""
    with embedded_server() as server:
        world = World()

        def clock() -> float:
            return world.now

        def set_countdown(message: Any, *_: Any) -> float | None:
            return message.eta - world.now if message.eta else None

        with ExitStack() as stack:
            for module in (time, *_with_monotonic()):
                stack.enter_context(mock.patch.object(module, "monotonic", clock))
            stack.enter_context(mock.patch.object(time, "time", clock))
            stack.enter_context(mock.patch.object(gate, "set_countdown", set_countdown))
            yield Fleet(world, server.url, takes=takes or Takes(), **fleet)


def _with_monotonic() -> list[ModuleType]:
    """The modules of the package that have imported ``monotonic`` by its name."""
    own = [module for name, module in sys.modules.items() if name.startswith("celery_ratelimit.")]
    return [module for module in own if getattr(module, "monotonic", None) is time.monotonic]
