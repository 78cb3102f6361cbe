"""Leases pass from an ended task to the next one in one step; waiting workers are notified."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence

import pytest
import redis

from celery_ratelimit import Concurrency, Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.operation import UninterruptedAcquire
from celery_ratelimit.limiter.script_calls import LeaseRequests, LeasesToRelease
from celery_ratelimit.testing import EmbeddedServer
from celery_ratelimit.worker.concurrency import release_and_acquire
from tests.conftest import START, Clock

from .frozen import expiries, us

PLACE = LimitRequest(Concurrency(2, name="places"), "places")
LEASES = "ratelimit:v1:{places}::leases"
WORKER_A, WORKER_B = "sa11.1", "sbe1.7"  # lines of two workers


def ask(
    limiter: Limiter,
    *ids: str,
    channel: str = "",
    most: int = 1,
    ended: Sequence[str] = (),
    all: bool = False,
    demands: Sequence[LimitRequest] = (PLACE,),
    claim: float = 60.0,
) -> list[bool]:
    asking = LeaseRequests(ids, 100_000, us(claim), channel, most, all)
    ended_leases = [LeasesToRelease(id, (PLACE,), START) for id in ended]
    return [each.allowed for each in release_and_acquire(limiter._asker, demands, asking, ended_leases)]


class NotificationListener:
    """Receives the notifications of workers."""

    def __init__(self, store: redis.Redis) -> None:
        self._pubsub = store.pubsub()

    def subscribe(self, *workers: str) -> None:
        for worker in workers:
            self._pubsub.subscribe(f"ratelimit:v1:bell:{worker}")
            assert self._next()["type"] == "subscribe"

    def unsubscribe(self, worker: str) -> None:
        self._pubsub.unsubscribe(f"ratelimit:v1:bell:{worker}")
        assert self._next()["type"] == "unsubscribe"

    def received(self, store: redis.Redis) -> list[str]:
        """The lines that were notified since the last call."""
        store.publish("ratelimit:v1:bell:end", "")
        lines: list[str] = []
        while (said := self._next())["channel"] != "ratelimit:v1:bell:end":
            lines.append(f"{said['channel'].rpartition(':')[2]}.{said['data']}")
        return lines

    def _next(self) -> dict[str, str]:
        said = self._pubsub.get_message(timeout=10)
        assert said is not None
        return said

    def close(self) -> None:
        self._pubsub.close()


@pytest.fixture
def notifications(server: EmbeddedServer) -> Iterator[NotificationListener]:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        notifications = NotificationListener(client)
        with contextlib.closing(notifications):
            notifications.subscribe("sa11", "sbe1", "end")
            yield notifications


def holders(store: redis.Redis, clock: Clock) -> int:
    return int(store.zcount(LEASES, f"({clock.us}", "+inf"))


def test_lease_passes_to_the_next_request_in_one_step(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
    assert ask(frozen, "a", "b", "c", most=3, channel=WORKER_A) == [True, True, False]
    clock.advance(0.3)
    assert ask(frozen, "c", "d", most=2, channel=WORKER_A, ended=["a"]) == [True, False]
    assert (store.zscore(LEASES, "a"), holders(store, clock)) == (None, 2)
    assert ask(frozen, "d", "e", most=2, channel=WORKER_A, ended=["b", "c"]) == [True, True]


def test_only_as_many_leases_as_free_processes_are_granted(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
    assert ask(frozen, "a", "b", most=1, channel=WORKER_A) == [True, False]
    assert holders(store, clock) == 1
    assert store.zscore(LEASES, f"\1{WORKER_A} b") is None, (
        "no process is free for the next request, so it is not notified"
    )


def test_earlier_waiter_of_another_worker_is_notified(
    frozen: Limiter, clock: Clock, store: redis.Redis, notifications: NotificationListener
) -> None:
    assert ask(frozen, "a", "b", most=2, channel=WORKER_A) == [True, True]
    assert ask(frozen, "y", channel=WORKER_B) == [False]
    clock.advance(0.5)
    assert ask(frozen, "x", channel=WORKER_A) == [False]
    assert notifications.received(store) == []
    assert ask(frozen, "x", channel=WORKER_A, ended=["a"]) == [False], "its turn is half a second later"
    assert notifications.received(store) == [WORKER_B]
    assert ask(frozen, "x", channel=WORKER_A) == [True], "it was notified for once, and has not come"
    assert ask(frozen, "y", channel=WORKER_B) == [False]
    assert ask(frozen, "z", channel=WORKER_A, ended=["b"]) == [False], "a newcomer is behind waiting requests"
    assert notifications.received(store) == [WORKER_B]
    assert ask(frozen, "y", channel=WORKER_B) == [True]
    assert holders(store, clock) == 2


def test_lease_stays_with_a_worker_whose_turn_is_barely_later(
    frozen: Limiter, clock: Clock, store: redis.Redis, notifications: NotificationListener
) -> None:
    assert ask(frozen, "a", "b", most=2, channel=WORKER_A) == [True, True]
    assert ask(frozen, "y", channel=WORKER_B) == [False]
    assert ask(frozen, "x", channel=WORKER_A) == [False]
    assert ask(frozen, "x", channel=WORKER_A, ended=["a"]) == [True]
    assert notifications.received(store) == []


def test_waiters_are_kept_until_their_turn(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
    short = LimitRequest(Concurrency(1, name="places", lease=1.0), "places")
    assert ask(frozen, "a", channel=WORKER_A, demands=[short]) == [True]
    clock.advance(0.99)
    assert ask(frozen, "y", channel=WORKER_B, demands=[short]) == [False]
    turn = store.zscore("ratelimit:v1:{places}::slots", "y")
    assert turn is not None
    assert expiries(store)[LEASES] >= turn + 1_000_000


def test_disconnected_worker_is_skipped(
    frozen: Limiter, clock: Clock, store: redis.Redis, notifications: NotificationListener
) -> None:
    assert ask(frozen, "a", "b", most=2, channel=WORKER_A) == [True, True]
    for number in range(5):
        assert ask(frozen, f"gone {number}", channel=f"s0e{number}.1") == [False]
    assert ask(frozen, "y", channel=WORKER_B) == [False]
    clock.advance(0.5)
    assert ask(frozen, "x", channel=WORKER_A, ended=["a"]) == [False]
    assert notifications.received(store) == [WORKER_B]


def test_on_a_cluster_a_silent_waiter_is_notified_once(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
    assert ask(frozen, "a", "b", most=2, channel="ca11.1") == [True, True]
    assert ask(frozen, "gone", channel="c0e.1") == [False]
    clock.advance(0.5)
    assert ask(frozen, "x", channel="ca11.1", ended=["a"]) == [False]
    assert ask(frozen, "x", channel="ca11.1") == [True], "only once"


def test_release_notifies_the_next_waiter(
    frozen: Limiter, clock: Clock, store: redis.Redis, notifications: NotificationListener
) -> None:
    mine = frozen.acquire(PLACE.limit)
    assert ask(frozen, "a", channel=WORKER_A) == [True]
    assert ask(frozen, "y", channel=WORKER_B) == [False]
    assert frozen.release(mine)
    assert notifications.received(store) == [WORKER_B]
    assert not frozen.release(mine)
    assert notifications.received(store) == []
    assert ask(frozen, "y", channel=WORKER_B) == [True]


def test_lease_is_reserved_for_a_polling_caller(
    frozen: Limiter, clock: Clock, store: redis.Redis, notifications: NotificationListener
) -> None:
    """Or workers whose tasks go on to one another would keep all places for ever."""
    caller = UninterruptedAcquire((PLACE,), "caller", 1.0, 10.0)
    assert ask(frozen, "a", "b", most=2, channel=WORKER_A) == [True, True]
    assert not frozen._asker.drive(frozen._asker.core.ask_for_turn(caller)).allowed
    clock.advance(0.5)
    assert ask(frozen, "x", channel=WORKER_A) == [False]
    assert ask(frozen, "x", channel=WORKER_A, ended=["a"]) == [False]
    assert notifications.received(store) == []
    assert holders(store, clock) == 2
    clock.advance(0.9)
    assert ask(frozen, "x", channel=WORKER_A) == [False]
    assert frozen._asker.drive(frozen._asker.core.ask_for_turn(caller)).allowed
    clock.advance(30)
    assert holders(store, clock) == 2, "it has a lease as any other"


def test_late_polling_caller_keeps_its_turn(
    frozen: Limiter, clock: Clock, store: redis.Redis, notifications: NotificationListener
) -> None:
    """A late caller gets another slot each time, and would be the last again and again."""
    caller = UninterruptedAcquire((PLACE,), "caller", 1.0, 10.0)
    assert ask(frozen, "a", "b", most=2, channel=WORKER_A) == [True, True]
    assert not frozen._asker.drive(frozen._asker.core.ask_for_turn(caller)).allowed
    clock.advance(0.5)
    assert ask(frozen, "x", channel=WORKER_A) == [False]
    clock.advance(0.5)
    assert not frozen._asker.drive(frozen._asker.core.ask_for_turn(caller)).allowed
    assert ask(frozen, "x", channel=WORKER_A, ended=["a"]) == [False]
    assert frozen._asker.drive(frozen._asker.core.ask_for_turn(caller)).allowed


def test_absent_polling_caller_loses_its_reservation(
    frozen: Limiter, clock: Clock, store: redis.Redis, notifications: NotificationListener
) -> None:
    caller = UninterruptedAcquire((PLACE,), "caller", 1.0, 10.0)
    assert ask(frozen, "a", "b", most=2, channel=WORKER_A) == [True, True]
    assert not frozen._asker.drive(frozen._asker.core.ask_for_turn(caller)).allowed
    clock.advance(0.5)
    assert ask(frozen, "x", channel=WORKER_A, ended=["a"]) == [False]
    clock.advance(1.001)
    assert ask(frozen, "x", channel=WORKER_A) == [True]
    assert not frozen._asker.drive(frozen._asker.core.ask_for_turn(caller)).allowed
    frozen._asker.forget((PLACE,), id="caller")
    assert ask(frozen, "z", channel=WORKER_A, ended=["b"]) == [True], "it has given up"


def test_paused_limit_notifies_no_waiter(
    frozen: Limiter, clock: Clock, store: redis.Redis, notifications: NotificationListener
) -> None:
    assert ask(frozen, "a", "b", most=2, channel=WORKER_A) == [True, True]
    assert ask(frozen, "y", channel=WORKER_B) == [False]
    clock.advance(0.5)
    frozen.pause("places", 10, force=True)
    assert ask(frozen, "x", channel=WORKER_A, ended=["a"]) == [False]
    assert ask(frozen, "y", channel=WORKER_B) == [False], "or they would ring for one another"
    assert notifications.received(store) == []


def test_lowered_limit_notifies_no_waiter_until_a_permit_is_free(
    frozen: Limiter, clock: Clock, store: redis.Redis, notifications: NotificationListener
) -> None:
    assert ask(frozen, "a", "b", most=2, channel=WORKER_A) == [True, True]
    assert ask(frozen, "y", channel=WORKER_B) == [False]
    clock.advance(0.5)
    frozen.set_rate("places", Concurrency(1), force=True)
    assert ask(frozen, "x", channel=WORKER_A, ended=["a"]) == [False]
    assert notifications.received(store) == []
    assert ask(frozen, "x", channel=WORKER_A, ended=["b"]) == [False]
    assert notifications.received(store) == [WORKER_B]


def test_request_waiting_for_a_rate_leaves_the_lease_to_others(
    frozen: Limiter, clock: Clock, store: redis.Redis, notifications: NotificationListener
) -> None:
    both = (PLACE, LimitRequest(Limit("1/s", name="rate"), "rate"))
    assert ask(frozen, "a", channel=WORKER_A, demands=both) == [True]
    assert ask(frozen, "b", channel=WORKER_A) == [True]
    assert ask(frozen, "y", channel=WORKER_B) == [False]
    clock.advance(0.01)
    assert ask(frozen, "x", channel=WORKER_A, demands=both, ended=["a"]) == [False]
    assert notifications.received(store) == [WORKER_B]
    assert ask(frozen, "y", channel=WORKER_B) == [True]
    assert holders(store, clock) == 2


def test_every_waiting_request_keeps_its_slot(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
    assert ask(frozen, "a", "b", "c", most=3, channel=WORKER_A) == [True, True, False]
    assert ask(frozen, "c", "d", "e", channel=WORKER_A, all=True) == [False, False, False]
    before = dict(store.zrange("ratelimit:v1:{places}::slots", 0, -1, withscores=True))
    assert set(before) == {"c", "d", "e"}
    clock.advance(1.0)
    assert ask(frozen, "c", "d", "e", channel=WORKER_A, all=True) == [False, False, False]
    after = dict(store.zrange("ratelimit:v1:{places}::slots", 0, -1, withscores=True))
    assert all(after[id] > before[id] for id in before)
    assert store.zscore(LEASES, f"\1{WORKER_A} c") == -before["c"], (
        "the turn of the first is that of the line, for good"
    )


def test_released_permits_of_an_unrequested_limit_notify_its_waiters(
    frozen: Limiter, clock: Clock, store: redis.Redis, notifications: NotificationListener
) -> None:
    """Two tasks have ended that held a place of another limit as well: two lines wait for these."""
    other = LimitRequest(Concurrency(4, name="{places}.other"), "{places}.other")
    assert ask(frozen, "a", "b", most=2, channel=WORKER_A, demands=(PLACE, other)) == [True, True]
    assert ask(frozen, "y", channel="sbe1.7") == [False]
    clock.advance(0.05)
    assert ask(frozen, "z", channel="sbe1.8") == [False]
    assert ask(frozen, "x", channel=WORKER_A, demands=(other,), ended=["a", "b"]) == [True]
    assert notifications.received(store) == ["sbe1.7", "sbe1.8"]


def test_unused_release_wakes_the_backlog(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
    touched = "ratelimit:v1:{places}::touched"
    assert ask(frozen, "a", "b", "c", most=3, channel=WORKER_A) == [True, True, False]
    assert ask(frozen, "c", channel=WORKER_A, ended=["a"]) == [True]
    assert not store.exists(touched), "no place is free"
    assert ask(frozen, "d", channel=WORKER_A, ended=["b", "c"]) == [True]
    assert store.zcard(touched) == 1


@pytest.mark.parametrize("seed", range(12))
def test_random_workers_never_exceed_the_limit_or_leave_a_permit_idle(
    frozen: Limiter, clock: Clock, store: redis.Redis, notifications: NotificationListener, seed: int
) -> None:
    """Three workers and three permits; one worker is killed on the way. A notified line asks later."""
    place = LimitRequest(Concurrency(3, name="places", lease=5), "places")
    chance = random.Random(seed)
    notifications.subscribe("sca1")
    running: dict[str, list[str]] = {"sa11": [], "sbe1": [], "sca1": []}
    waiting: dict[str, list[str]] = {name: [] for name in running}
    notified: list[str] = []
    left, killed_at, done = [f"task {n}" for n in range(60)], chance.randrange(150), 0

    def move_on(worker: str, ended: Sequence[str] = ()) -> None:
        nonlocal notified
        free = 2 - len(running[worker])
        asking = LeaseRequests(waiting[worker][:free], 100_000, 60_000_000, f"{worker}.1", free, False)
        gone = [LeasesToRelease(id, (place,), clock.us - 100_000) for id in ended]
        if asking.ids and free > 0:
            said = release_and_acquire(frozen._asker, (place,), asking, gone)
            allowed = [decision.id for decision in said if decision.allowed]
            running[worker] += allowed
            waiting[worker] = [id for id in waiting[worker] if id not in allowed]
        else:
            for each in gone:
                frozen._asker.release([each])
        notified += notifications.received(store)

    for step in range(400):
        clock.advance(chance.uniform(0.001, 0.05))
        worker = chance.choice(list(running))
        if step == killed_at:
            notifications.unsubscribe(worker)
            del running[worker], waiting[worker]  # its places expire
            continue
        act = chance.random()
        if act < 0.4 and left:
            waiting[worker].append(left.pop())
            if len(waiting[worker]) == 1:
                move_on(worker)
        elif act < 0.7 and running[worker]:
            done += 1
            move_on(worker, [running[worker].pop(chance.randrange(len(running[worker])))])
        elif notified:
            name = notified.pop(chance.randrange(len(notified))).partition(".")[0]
            if name in running:
                move_on(name)
        assert sum(map(len, running.values())) <= 3
        assert holders(store, clock) <= 3
        assert set(store.scan_iter("ratelimit:*")) == set(expiries(store)), "law 9"
        if not notified and holders(store, clock) < 3:
            able = [name for name in running if waiting[name] and len(running[name]) < 2]
            assert not able or step > killed_at, f"{able} wait beside a free place"
    assert done > 20
