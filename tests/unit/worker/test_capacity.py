"""Processes for permits and unlimited tasks, as tables: a given pool and time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from celery_ratelimit._celery import Pool as CeleryPool
from celery_ratelimit._celery.pool import _Job
from celery_ratelimit.worker.capacity import AHEAD, LISTEN, PoolCapacity
from celery_ratelimit.worker.request import AcquireCall
from celery_ratelimit.worker.request_queue import ACQUIRE_EARLY

NOW = 100.0
NEVER = float("inf")


class Pool:
    """``processes`` of which ``idle`` are; tasks named ``1`` take one second; all that run began at ``began``."""

    def __init__(
        self, processes: int, idle: int, running: str = "5", began: float = NOW, has_queue: bool = True
    ) -> None:
        self.has_queue = has_queue
        self.processes, self._idle, self._running, self._began = processes, idle, running, began

    def idle(self, pending: int) -> int:
        return self._idle

    def mean_runtime(self, name: str) -> float:
        return float(name)

    def may_free(self, number: int, now: float, seconds: float) -> bool:
        young = now - self._began < float(self._running) <= seconds
        return number <= (self.processes if young else 0)

    def frees_soon(self, now: float, seconds: float) -> bool:
        return self.may_free(1, now, seconds)


def capacity(*pool: object, grants: tuple[float, ...] = (), taking: str = "5") -> PoolCapacity:
    made = PoolCapacity(Pool(*pool))  # type: ignore[arg-type]
    for grant in grants:
        made.reservations.add(NOW + grant, taking)
    return made


@pytest.mark.parametrize(
    ("pool", "grants", "taking", "may"),
    [
        ((4, 4), (), "5", True),
        ((4, 2), (0.0,), "5", True),
        ((4, 2), (0.0, 0.01), "5", False),  # both are reserved
        ((4, 2), (0.0, 0.05), "5", True),  # reserved, but one for later
        ((1, 1), (0.0,), "0.001", True),  # through in a moment
        ((1, 1), (0.0,) * 19, "0.001", True),
        ((1, 1), (0.0,) * 21, "0.001", False),  # 21 ms in 20
        ((1, 1), (0.0,), "inf", False),  # of unknown runtime
        ((4, 0, "5"), (), "5", False),  # busy for long: no permit on a guess
        ((4, 0, "0.001"), (), "5", True),  # one may be free in a moment, and one permit is all that can be lost
        ((4, 0, "0.001"), (0.0,), "0.001", False),  # and that one is taken
        ((4, 0, "0.001", NOW - 1), (), "5", False),  # overdue: it says nothing any more
        ((4, -3, "0.001"), (), "5", False),
    ],
)
def test_permit_needs_a_process(pool: tuple[object, ...], grants: tuple[float, ...], taking: str, may: bool) -> None:
    assert capacity(*pool, grants=grants, taking=taking).has_for_permit(NOW) is may


@pytest.mark.parametrize(
    ("pool", "grants", "name", "claims", "turn", "may"),
    [
        ((2, 1), (), "5", 0, NEVER, True),
        ((2, 0), (), "5", 0, NEVER, False),  # what is handed over starts
        ((2, 1), (), "5", 1, NEVER, False),  # a turn has come
        ((2, 2), (), "5", 1, NEVER, True),
        ((2, 1), (0.05,), "0.1", 0, NEVER, False),  # it would not be back in time for the permit
        ((2, 1), (0.05,), "0.02", 0, NEVER, True),  # it will
        ((2, 1), (), "5", 0, NOW + 0.9, False),  # kept: it would be back in five seconds
        ((2, 1), (), "5", 0, NOW + 1.1, True),
        ((2, 1), (), "0.1", 0, NOW + 0.04, False),
        ((2, 1), (), "0.1", 0, NOW + 0.06, True),  # another process will be free about then
        ((2, 2), (), "5", 0, NOW + 0.9, True),  # one is kept, not two
        ((1, 1), (), "5", 0, NOW + 0.9, True),  # the only one is not kept, or nothing unlimited would run
        ((1, 1), (), "0.004", 0, NOW + 0.003, False),  # but for a few milliseconds
        ((2, 0, "0.001"), (), "0.001", 0, NOW + 1, True),  # very short ones may wait in the pool
        ((2, -40, "0.001"), (), "0.001", 0, NOW + 1, True),
        ((2, -110, "0.001"), (), "0.001", 0, NOW + 1, False),  # 0.05 s of two processes
        ((2, -45, "0.001"), (), "0.001", 0, NOW + 0.04, False),  # 0.02 s of them
        ((2, 0, "0.001"), (), "0.001", 1, NEVER, False),  # not before the task whose turn has come
        ((2, 0, "0.001"), (), "0.001", 0, NOW + 0.004, False),
        ((2, 0, "5"), (), "0.001", 0, NOW + 1, False),  # behind long ones they would be late
        ((2, 0, "0.1"), (), "0.1", 0, NEVER, True),  # while nothing waits: a second's worth
        ((2, -18, "0.1"), (), "0.1", 0, NEVER, True),
        ((2, -25, "0.1"), (), "0.1", 0, NEVER, False),
        ((2, 0, "0.1"), (), "1", 0, NEVER, False),
        ((2, 0, "0.001", NOW, False), (), "0.001", 0, NEVER, False),  # where the gate itself would have to wait
        ((2, 1, "0.001", NOW, False), (), "0.001", 0, NEVER, True),
    ],
)
def test_unlimited_task_needs_an_unreserved_process(
    pool: tuple[object, ...], grants: tuple[float, ...], name: str, claims: int, turn: float, may: bool
) -> None:
    assert capacity(*pool, grants=grants).for_unlimited(NOW, name, claims=claims, turn=turn) is may


def test_unlimited_task_waits_where_a_part_of_the_last_process_is_reserved() -> None:
    assert not capacity(2, 1, grants=(0.0,), taking="0.01").for_unlimited(NOW, "5", claims=0, turn=NEVER)
    assert not capacity(2, 1).has_for_permit(NOW, owed=True), "the next process is for an unlimited task"


def test_removed_reservation_frees_its_process() -> None:
    made = capacity(4, 1, grants=(0.0, 0.05))
    assert not made.has_for_permit(NOW)
    assert made.free(NOW, "5") == 0
    made.reservations.remove(NOW)
    assert made.has_for_permit(NOW)
    assert not made.has_for_permit(NOW + 0.05)


def test_call_for_permits_reserves_a_process_for_each_until_it_ends() -> None:
    made, call = capacity(4, 2), AcquireCall([None, None], for_permit=True)  # type: ignore[list-item]
    made.reservations.acquire(call, "5")
    assert made.free(NOW, "5") == 0
    made.reservations.end_acquiring(call)
    assert made.free(NOW, "5") == 2


def test_clear_forgets_requests_and_turns() -> None:
    made = capacity(4, 4, grants=(0.0, 0.05))
    made.reservations.acquire(AcquireCall([None], for_permit=True), "5")  # type: ignore[list-item]
    made.turns.expect_queue("queue 1", "0.1", NOW + 0.5, NOW)
    made.turns.note_ready("queue 2", "0.1")
    made.clear()
    assert not any((made.turns._turns, made.turns._queues, made.turns._ready, made.turns._by_name))
    assert not made.reservations.times
    assert made.free(NOW, "5") == 4


def test_permits_for_later_are_not_taken_again() -> None:
    """One of eight processes is reserved for now, and two permits are good later."""
    assert capacity(8, 8, grants=(0.0, 0.05, 0.06)).max_permits(NOW, "5") == 5
    assert capacity(8, 0).max_permits(NOW, "5") == 1, "at least one"


@pytest.mark.parametrize(
    ("processes", "name", "at_once", "ahead", "one_ends_in", "pause"),
    [
        (4, "5", 4, AHEAD, 1.25, 25.0),
        (4, "0.1", 4, 0.05, 0.025, 0.5),
        (4, "0.01", 40, ACQUIRE_EARLY, 0.0025, 0.1),
        (4, "0", 400, ACQUIRE_EARLY, 0.0, 0.1),
        (1, "inf", 1, AHEAD, NEVER, 1.0),
        (0, "5", 0, AHEAD, 5.0, 100.0),  # while the pool starts
    ],
)
def test_figures_follow_the_run_time(
    processes: int, name: str, at_once: int, ahead: float, one_ends_in: float, pause: float
) -> None:
    made = capacity(processes, processes)
    assert made.short_term_capacity(name) == at_once
    assert made.ahead(name) == ahead
    assert made.seconds_of_one(name) == one_ends_in
    assert made.pause_after(name) == pytest.approx(pause)


@pytest.mark.parametrize(
    ("pool", "is_saturated"),
    [((2, 0, "5"), True), ((2, 0, "0.5"), False), ((2, 1, "5"), False)],  # one is free within a second; one is free
)
def test_saturated_pool_has_no_process_for_long(pool: tuple[object, ...], is_saturated: bool) -> None:
    assert capacity(*pool).is_saturated(NOW) is is_saturated


def test_what_is_known_of_backlogs_stays_known_while_the_worker_is_saturated() -> None:
    made = capacity(2, 1)
    made.turns.expect_backlog("0.01", NOW, 0.05, NOW)
    made.note_saturated(NOW + 0.5, saturated=True)
    made.note_saturated(NOW + 60, saturated=False)
    assert made.turns.next_briefer("2", NOW + 60.4) == NOW + 60.4
    assert made.turns.next_briefer("2", NOW + 60.6) == NEVER


def test_saturated_worker_listens_before_a_long_task_takes_its_last_process() -> None:
    made = capacity(2, 1)
    made.note_saturated(NOW - 5, saturated=True)
    made.note_saturated(NOW, saturated=False)
    assert not made.has_for_permit(NOW + 0.01, "2")
    assert made.has_for_permit(NOW + 0.01, "0.5"), "no long task"
    unlimited = {second: made.for_unlimited(NOW + second, "2", claims=0, turn=NEVER) for second in (0.01, LISTEN)}
    assert unlimited == {0.01: False, LISTEN: True}
    assert made.for_unlimited(NOW + 0.01, "0.5", claims=0, turn=NEVER), "no long task"
    wider = capacity(2, 2)
    wider.note_saturated(NOW, saturated=False)
    assert wider.for_unlimited(NOW + 0.01, "2", claims=0, turn=NEVER), "not the last process"
    assert made.has_for_permit(NOW + LISTEN, "2"), "a hundredth of its runtime"
    made.note_saturated(NOW, saturated=True)
    made.note_saturated(NOW + 5, saturated=False)
    made.stop_listening()
    assert made.has_for_permit(NOW + 5.01, "2"), "the first task has returned: further ones would be sent back"


@pytest.mark.parametrize(
    ("name", "interval", "busy", "permits"),
    [
        ("half", 0.0, 0, 8),  # a task takes 50 ms, and there are four processes
        ("half", 0.001, 0, 4),
        ("half", 0.005, 0, 6),
        ("half", 0.0125, 0, 8),
        ("half", 1.0, 0, 8),
        ("short", 0.0, 0, 100),  # brief tasks: more than the processes
        ("short", 1e-6, 0, 100),  # turns are at once, as of a limit that does not bind
        ("fifth", 0.01, 3, 5),  # a task takes 20 ms, and every 10 ms another has its turn: two end in that time
    ],
)
def test_max_permits_counts_processes_that_free_within_the_interval(
    name: str, interval: float, busy: int, permits: int
) -> None:
    pool = CeleryPool(SimpleNamespace(num_processes=4, is_green=False))
    pool._mean_runtimes.update(short=0.004, half=AHEAD / 2, fifth=AHEAD / 5)
    pool._jobs.update((number, _Job(name, NOW, None)) for number in range(busy))
    pool.idle = lambda pending: 4 - busy  # type: ignore[method-assign]
    assert PoolCapacity(pool).max_permits(NOW, name, interval) == permits
