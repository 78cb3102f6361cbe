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
LEASES, SLOTS = (f"ratelimit:v1:{{places}}::{kind}" for kind in ("leases", "slots"))
WORKER_A, WORKER_B = "sa11.1", "sbe1.7"  # lines of two workers


class Workers:
    """Workers that ask for leases, release them, and receive notifications."""

    def __init__(self, limiter: Limiter, clock: Clock, store: redis.Redis, client: redis.Redis) -> None:
        self.limiter, self.clock, self.store = limiter, clock, store
        self._pubsub = client.pubsub()
        self.caller = UninterruptedAcquire((PLACE,), "caller", 1.0, 10.0)

    def ask(
        self,
        *ids: str,
        channel: str = WORKER_A,
        most: int = 1,
        ended: Sequence[str] = (),
        all: bool = False,
        demands: Sequence[LimitRequest] = (PLACE,),
    ) -> list[bool]:
        asking = LeaseRequests(ids, 100_000, us(60.0), channel, most, all)
        ended_leases = [LeasesToRelease(id, (PLACE,), START) for id in ended]
        return [each.allowed for each in release_and_acquire(self.limiter._asker, demands, asking, ended_leases)]

    def poll(self) -> bool:
        """Whether a caller that polls has its lease."""
        return self.limiter._asker.drive(self.limiter._asker.core.ask_for_turn(self.caller)).allowed

    def holders(self) -> int:
        return int(self.store.zcount(LEASES, f"({self.clock.us}", "+inf"))

    def subscribe(self, *workers: str) -> None:
        for worker in workers:
            self._pubsub.subscribe(f"ratelimit:v1:wake:{worker}")
            assert self._next()["type"] == "subscribe"

    def unsubscribe(self, worker: str) -> None:
        self._pubsub.unsubscribe(f"ratelimit:v1:wake:{worker}")
        assert self._next()["type"] == "unsubscribe"

    def notified(self) -> list[str]:
        """The lines that were notified since the last call."""
        self.store.publish("ratelimit:v1:wake:end", "")
        lines: list[str] = []
        while (said := self._next())["channel"] != "ratelimit:v1:wake:end":
            lines.append(f"{said['channel'].rpartition(':')[2]}.{said['data']}")
        return lines

    def _next(self) -> dict[str, str]:
        said = self._pubsub.get_message(timeout=10)
        assert said is not None
        return said


@pytest.fixture
def workers(server: EmbeddedServer, frozen: Limiter, clock: Clock, store: redis.Redis) -> Iterator[Workers]:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        workers = Workers(frozen, clock, store, client)
        with contextlib.closing(workers._pubsub):
            workers.subscribe("sa11", "sbe1", "end")
            yield workers


@pytest.fixture
def full(workers: Workers) -> Workers:
    """Worker A holds both permits: "a" and "b"."""
    assert workers.ask("a", "b", most=2) == [True, True]
    return workers


def test_lease_passes_to_the_next_request_in_one_step(workers: Workers) -> None:
    assert workers.ask("a", "b", "c", most=3) == [True, True, False]
    workers.clock.advance(0.3)
    assert workers.ask("c", "d", most=2, ended=["a"]) == [True, False]
    assert (workers.store.zscore(LEASES, "a"), workers.holders()) == (None, 2)
    assert workers.ask("d", "e", most=2, ended=["b", "c"]) == [True, True]


def test_only_as_many_leases_as_free_processes_are_granted(workers: Workers) -> None:
    assert workers.ask("a", "b", most=1) == [True, False]
    assert workers.holders() == 1
    assert workers.store.zscore(LEASES, f"\1{WORKER_A} b") is None, "it is not notified: no process is free for it"


def test_earlier_waiter_of_another_worker_is_notified(full: Workers) -> None:
    assert full.ask("y", channel=WORKER_B) == [False]
    full.clock.advance(0.5)
    assert full.ask("x") == [False]
    assert full.notified() == []
    assert full.ask("x", ended=["a"]) == [False], "its turn is half a second later"
    assert full.notified() == [WORKER_B]
    assert full.ask("x") == [True], "it was notified for once, and has not come"
    assert full.ask("y", channel=WORKER_B) == [False]
    assert full.ask("z", ended=["b"]) == [False], "a newcomer is behind waiting requests"
    assert full.notified() == [WORKER_B]
    assert full.ask("y", channel=WORKER_B) == [True]
    assert full.holders() == 2


def test_request_that_has_moved_to_another_worker_is_not_behind_itself(full: Workers) -> None:
    """It was parked by worker B, whose queue is notified: others may wait there."""
    assert full.ask("y", channel=WORKER_B) == [False]
    full.store.zadd(SLOTS, {"y": full.clock.us + us(0.5)})  # it has another slot since it was parked
    full.clock.advance(1.0)
    assert full.ask("y", ended=["a"]) == [True]
    assert full.notified() == [WORKER_B]


def test_lease_stays_with_a_worker_whose_turn_is_barely_later(full: Workers) -> None:
    assert full.ask("y", channel=WORKER_B) == [False]
    assert full.ask("x") == [False]
    assert full.ask("x", ended=["a"]) == [True]
    assert full.notified() == []


def test_waiters_are_kept_until_their_turn(workers: Workers) -> None:
    short = LimitRequest(Concurrency(1, name="places", lease=1.0), "places")
    assert workers.ask("a", demands=[short]) == [True]
    workers.clock.advance(0.99)
    assert workers.ask("y", channel=WORKER_B, demands=[short]) == [False]
    turn = workers.store.zscore("ratelimit:v1:{places}::slots", "y")
    assert turn is not None
    assert expiries(workers.store)[LEASES] >= turn + 1_000_000


def test_disconnected_worker_is_skipped(full: Workers) -> None:
    for number in range(5):
        assert full.ask(f"gone {number}", channel=f"s0e{number}.1") == [False]
    assert full.ask("y", channel=WORKER_B) == [False]
    full.clock.advance(0.5)
    assert full.ask("x", ended=["a"]) == [False]
    assert full.notified() == [WORKER_B]


def test_on_a_cluster_a_silent_waiter_is_notified_once(workers: Workers) -> None:
    assert workers.ask("a", "b", most=2, channel="ca11.1") == [True, True]
    assert workers.ask("gone", channel="c0e.1") == [False]
    workers.clock.advance(0.5)
    assert workers.ask("x", channel="ca11.1", ended=["a"]) == [False]
    assert workers.ask("x", channel="ca11.1") == [True], "only once"


def test_release_notifies_the_next_waiter(workers: Workers) -> None:
    mine = workers.limiter.acquire(PLACE.limit)
    assert workers.ask("a") == [True]
    assert workers.ask("y", channel=WORKER_B) == [False]
    assert workers.limiter.release(mine)
    assert workers.notified() == [WORKER_B]
    assert not workers.limiter.release(mine)
    assert workers.notified() == []
    assert workers.ask("y", channel=WORKER_B) == [True]


def test_lease_is_reserved_for_a_polling_caller(full: Workers) -> None:
    """Or workers whose tasks go on to one another would keep all places for ever."""
    assert not full.poll()
    full.clock.advance(0.5)
    assert full.ask("x") == [False]
    assert full.ask("x", ended=["a"]) == [False]
    assert full.notified() == []
    assert full.holders() == 2
    full.clock.advance(0.9)
    assert full.ask("x") == [False]
    assert full.poll()
    full.clock.advance(30)
    assert full.holders() == 2, "it has a lease as any other"


def test_late_polling_caller_keeps_its_turn(full: Workers) -> None:
    """A late caller gets another slot each time, and would be the last again and again."""
    assert not full.poll()
    full.clock.advance(0.5)
    assert full.ask("x") == [False]
    full.clock.advance(0.5)
    assert not full.poll()
    assert full.ask("x", ended=["a"]) == [False]
    assert full.poll()


def test_absent_polling_caller_loses_its_reservation(full: Workers) -> None:
    assert not full.poll()
    full.clock.advance(0.5)
    assert full.ask("x", ended=["a"]) == [False]
    full.clock.advance(1.001)
    assert full.ask("x") == [True]
    assert not full.poll()
    full.limiter._asker.forget((PLACE,), id="caller")
    assert full.ask("z", ended=["b"]) == [True], "it has given up"


def test_paused_limit_notifies_no_waiter(full: Workers) -> None:
    assert full.ask("y", channel=WORKER_B) == [False]
    full.clock.advance(0.5)
    full.limiter.pause("places", 10, force=True)
    assert full.ask("x", ended=["a"]) == [False]
    assert full.ask("y", channel=WORKER_B) == [False], "or they would notify one another"
    assert full.notified() == []


def test_lowered_limit_notifies_no_waiter_until_a_permit_is_free(full: Workers) -> None:
    assert full.ask("y", channel=WORKER_B) == [False]
    full.clock.advance(0.5)
    full.limiter.set_rate("places", Concurrency(1), force=True)
    assert full.ask("x", ended=["a"]) == [False]
    assert full.notified() == []
    assert full.ask("x", ended=["b"]) == [False]
    assert full.notified() == [WORKER_B]


def test_request_waiting_for_a_rate_leaves_the_lease_to_others(workers: Workers) -> None:
    both = (PLACE, LimitRequest(Limit("1/s", name="rate"), "rate"))
    assert workers.ask("a", demands=both) == [True]
    assert workers.ask("b") == [True]
    assert workers.ask("y", channel=WORKER_B) == [False]
    workers.clock.advance(0.01)
    assert workers.ask("x", demands=both, ended=["a"]) == [False]
    assert workers.notified() == [WORKER_B]
    assert workers.ask("y", channel=WORKER_B) == [True]
    assert workers.holders() == 2


def test_every_waiting_request_keeps_its_slot(workers: Workers) -> None:
    assert workers.ask("a", "b", "c", most=3) == [True, True, False]
    assert workers.ask("c", "d", "e", all=True) == [False, False, False]
    before = dict(workers.store.zrange("ratelimit:v1:{places}::slots", 0, -1, withscores=True))
    assert set(before) == {"c", "d", "e"}
    workers.clock.advance(1.0)
    assert workers.ask("c", "d", "e", all=True) == [False, False, False]
    after = dict(workers.store.zrange("ratelimit:v1:{places}::slots", 0, -1, withscores=True))
    assert all(after[id] > before[id] for id in before)
    assert workers.store.zscore(LEASES, f"\1{WORKER_A} c") == -before["c"], (
        "the turn of the first is that of the line, for good"
    )


def test_released_permits_of_an_unrequested_limit_notify_its_waiters(workers: Workers) -> None:
    """Two tasks have ended that held a place of another limit as well: two lines wait for these."""
    other = LimitRequest(Concurrency(4, name="{places}.other"), "{places}.other")
    assert workers.ask("a", "b", most=2, demands=(PLACE, other)) == [True, True]
    assert workers.ask("y", channel="sbe1.7") == [False]
    workers.clock.advance(0.05)
    assert workers.ask("z", channel="sbe1.8") == [False]
    assert workers.ask("x", demands=(other,), ended=["a", "b"]) == [True]
    assert workers.notified() == ["sbe1.7", "sbe1.8"]


def test_unused_release_wakes_the_backlog(workers: Workers) -> None:
    touched = "ratelimit:v1:{places}::touched"
    assert workers.ask("a", "b", "c", most=3) == [True, True, False]
    assert workers.ask("c", ended=["a"]) == [True]
    assert not workers.store.exists(touched), "no place is free"
    assert workers.ask("d", ended=["b", "c"]) == [True]
    assert workers.store.zcard(touched) == 1


@pytest.mark.rows(5)
@pytest.mark.parametrize("seed", range(12))
def test_random_workers_never_exceed_the_limit_or_leave_a_permit_idle(workers: Workers, seed: int) -> None:
    """Three workers and three permits; one worker is killed on the way. A notified line asks later."""
    place = LimitRequest(Concurrency(3, name="places", lease=5), "places")
    chance = random.Random(seed)
    workers.subscribe("sca1")
    running: dict[str, list[str]] = {"sa11": [], "sbe1": [], "sca1": []}
    waiting: dict[str, list[str]] = {name: [] for name in running}
    notified: list[str] = []
    left, killed_at, done = [f"task {n}" for n in range(60)], chance.randrange(150), 0

    def move_on(worker: str, ended: Sequence[str] = ()) -> None:
        nonlocal notified
        free = 2 - len(running[worker])
        asking = LeaseRequests(waiting[worker][:free], 100_000, 60_000_000, f"{worker}.1", free, False)
        gone = [LeasesToRelease(id, (place,), workers.clock.us - 100_000) for id in ended]
        if asking.ids and free > 0:
            said = release_and_acquire(workers.limiter._asker, (place,), asking, gone)
            allowed = [decision.id for decision in said if decision.allowed]
            running[worker] += allowed
            waiting[worker] = [id for id in waiting[worker] if id not in allowed]
        else:
            for each in gone:
                workers.limiter._asker.release([each])
        notified += workers.notified()

    for step in range(400):
        workers.clock.advance(chance.uniform(0.001, 0.05))
        worker = chance.choice(list(running))
        if step == killed_at:
            workers.unsubscribe(worker)
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
        assert workers.holders() <= 3
        assert set(workers.store.scan_iter("ratelimit:*")) == set(expiries(workers.store)), "law 9"
        if not notified and workers.holders() < 3:
            able = [name for name in running if waiting[name] and len(running[name]) < 2]
            assert not able or step > killed_at, f"{able} wait beside a free place"
    assert done > 20
