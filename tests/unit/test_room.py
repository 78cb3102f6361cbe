"""Who may have a process, as a table: a pool that says what it has, and a time that is given."""

from __future__ import annotations

import pytest

from celery_ratelimit.worker.capacity import PoolCapacity

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

    def takes(self, name: str) -> float:
        return float(name)

    def have_young(self, number: int, now: float, seconds: float) -> bool:
        young = now - self._began < float(self._running) <= seconds
        return number <= (self.processes if young else 0)

    def have_soon(self, now: float, seconds: float) -> bool:
        return self.have_young(1, now, seconds)


def capacity(*pool: object, grants: tuple[float, ...] = (), taking: str = "5") -> PoolCapacity:
    made = PoolCapacity(Pool(*pool))  # type: ignore[arg-type]
    for grant in grants:
        made.promises.add(NOW + grant, taking)
    return made


@pytest.mark.parametrize(
    ("pool", "grants", "taking", "may"),
    [
        ((4, 4), (), "5", True),
        ((4, 2), (0.0,), "5", True),
        ((4, 2), (0.0, 0.01), "5", False),  # both are promised
        ((4, 2), (0.0, 0.05), "5", True),  # promised, but one for later
        ((1, 1), (0.0,), "0.001", True),  # through in a moment
        ((1, 1), (0.0,) * 19, "0.001", True),
        ((1, 1), (0.0,) * 21, "0.001", False),  # 21 ms in 20
        ((1, 1), (0.0,), "inf", False),  # nobody knows how long that takes
        ((4, 0, "5"), (), "5", False),  # busy for long: no permit on a guess
        ((4, 0, "0.001"), (), "5", True),  # one may be free in a moment, and one permit is all that can be lost
        ((4, 0, "0.001"), (0.0,), "0.001", False),  # and that one is taken
        ((4, 0, "0.001", NOW - 1), (), "5", False),  # overdue: it says nothing any more
        ((4, -3, "0.001"), (), "5", False),
    ],
)
def test_whether_a_permit_may_be_taken(
    pool: tuple[object, ...], grants: tuple[float, ...], taking: str, may: bool
) -> None:
    assert capacity(*pool, grants=grants, taking=taking).has_for_permit(NOW) is may


@pytest.mark.parametrize(
    ("pool", "grants", "name", "claims", "turn", "may"),
    [
        ((2, 1), (), "5", 0, NEVER, True),
        ((2, 0), (), "5", 0, NEVER, False),  # what is handed over starts
        ((2, 1), (), "5", 1, NEVER, False),  # somebody's turn has come
        ((2, 2), (), "5", 1, NEVER, True),
        ((2, 1), (0.05,), "0.1", 0, NEVER, False),  # it would not be back in time for who has a permit
        ((2, 1), (0.05,), "0.01", 0, NEVER, True),  # it will
        ((2, 1), (), "5", 0, NOW + 0.9, False),  # kept: it would be back in five seconds
        ((2, 1), (), "5", 0, NOW + 1.1, True),
        ((2, 1), (), "0.1", 0, NOW + 0.04, False),
        ((2, 1), (), "0.1", 0, NOW + 0.06, True),  # another process will be free about then
        ((2, 2), (), "5", 0, NOW + 0.9, True),  # one is kept, not two
        ((1, 1), (), "5", 0, NOW + 0.9, True),  # the only one is not kept, or nothing unlimited would run
        ((2, 0, "0.001"), (), "0.001", 0, NOW + 1, True),  # very short ones may wait in the pool
        ((2, -40, "0.001"), (), "0.001", 0, NOW + 1, True),
        ((2, -110, "0.001"), (), "0.001", 0, NOW + 1, False),  # 0.05 s of two processes
        ((2, 0, "0.001"), (), "0.001", 1, NEVER, False),  # not before who has its turn
        ((2, 0, "0.001"), (), "0.001", 0, NOW + 0.004, False),
        ((2, 0, "5"), (), "0.001", 0, NOW + 1, False),  # behind long ones they would be late
        ((2, 0, "0.1"), (), "0.1", 0, NEVER, True),  # while nobody waits: a second's worth
        ((2, -18, "0.1"), (), "0.1", 0, NEVER, True),
        ((2, -25, "0.1"), (), "0.1", 0, NEVER, False),
        ((2, 0, "0.001", NOW, False), (), "0.001", 0, NEVER, False),  # where the gate itself would have to wait
        ((2, 1, "0.001", NOW, False), (), "0.001", 0, NEVER, True),
    ],
)
def test_whether_an_unlimited_task_may_start(
    pool: tuple[object, ...], grants: tuple[float, ...], name: str, claims: int, turn: float, may: bool
) -> None:
    assert capacity(*pool, grants=grants).for_unlimited(NOW, name, claims=claims, turn=turn) is may


def test_a_promise_is_taken_back() -> None:
    made = capacity(4, 1, grants=(0.0, 0.05))
    assert not made.has_for_permit(NOW)
    made.promises.take_back(NOW)
    assert made.has_for_permit(NOW)
    assert not made.has_for_permit(NOW + 0.05)


def test_who_is_expected_has_its_turn_until_it_comes_or_is_late() -> None:
    made = capacity(4, 4)
    assert made.coming.next_due(NOW) == NEVER
    made.coming.expect("b", NOW + 0.5, NOW)
    made.coming.expect("a", NOW + 0.2, NOW)
    assert made.coming.next_due(NOW) == NOW + 0.2
    made.coming.pop_due("a")
    made.coming.pop_due("never expected")
    assert made.coming.next_due(NOW) == NOW + 0.5
    made.coming.expect("b", NOW + 0.9, NOW)  # another copy
    assert made.coming.next_due(NOW) == NOW + 0.9
    assert made.coming.next_due(NOW + 0.95) == NOW + 0.9, "a timer may be late"
    assert made.coming.next_due(NOW + 2) == NEVER


def test_who_has_come_is_forgotten_where_nobody_asks_who_comes_next() -> None:
    made = capacity(4, 4)
    for number in range(1000):
        made.coming.expect(str(number), NOW + number + 1, NOW + number)
        if number % 2:
            made.coming.pop_due(str(number))  # the others were revoked
    assert len(made.coming._next) + len(made.coming._arrivals_batch) <= 4


def test_somebody_of_a_lot_is_expected_for_a_while_and_noted_seldom() -> None:
    made = capacity(4, 4)
    for number in range(1000):
        made.coming.expect_some("lot", NOW + number / 1000)
    assert made.coming.next_due(NOW + 1) >= NOW + 1
    assert len(made.coming._next) <= 3
    assert made.coming.next_due(NOW + 3) == NEVER
