"""A long task leaves a process to briefer tasks whose turns come while it would run."""

from __future__ import annotations

import itertools

import pytest

from celery_ratelimit.worker.capacity import LEAST_SHARE, PoolCapacity
from tests.unit.worker.test_capacity import NEVER, NOW, Pool, capacity


def test_expected_turn_of_a_queue_does_not_expire() -> None:
    made = capacity(4, 4)
    made.turns.expect_queue("queue 1", "0.1", NOW + 0.5, NOW)
    assert made.turns.next(NOW + 60) == NOW + 0.5
    assert made.kept_for_briefer(NOW + 60, "5") == 1
    made.turns.pop("queue 1")
    assert made.turns.next(NOW + 60) == NEVER
    assert not made.turns._queues


def test_long_task_leaves_a_process_to_a_waiting_briefer_task() -> None:
    """Two queues wait for a process, and the queue of the long task has waited longer."""
    made = capacity(4, 4)
    for number in (1, 2):
        made.turns.note_ready(f"queue {number}", "0.1")
        made.turns.note_ready(f"queue {number + 2}", "5")
    assert made.kept_for_briefer(NOW, "0.1") == 0
    for number, kept in ((1, 1), (2, 1), (3, 0)):
        assert made.kept_for_briefer(NOW, "5") == kept
        made.turns.pop(f"queue {number}")


@pytest.mark.parametrize(
    ("name", "other", "turn", "kept"),
    [
        ("2", "0.01", 0.1, 1),  # the brief task's turn comes while the long one would run
        ("2", "0.01", 1.9, 1),
        ("2", "0.01", 2.1, 0),  # it has ended by then
        ("2", "0.4", 0.1, 1),
        ("2", "0.6", 0.1, 0),  # about as long: in the order of arrival
        ("0.01", "2", 0.0, 0),
        ("2", "2", 0.1, 0),
        ("inf", "0.01", 0.1, 1),  # a task that has not run yet may take long
        ("2", "inf", 0.1, 1),  # or may be brief
        ("inf", "inf", 0.1, 0),
        ("0.05", "inf", 0.1, 0),  # it leaves none to a task that leaves one to it: neither would start
        ("inf", "0.3", 0.1, 0),
        ("0.004", "0.0001", 0.001, 0),  # brief enough itself
    ],
)
def test_long_task_leaves_a_process_to_a_briefer_task_with_a_turn(
    name: str, other: str, turn: float, kept: int
) -> None:
    for pool in ((2, 1), (4, 1)):
        made = capacity(*pool)
        made.turns.expect("a", other, NOW + turn, NOW)
        assert made.kept_for_briefer(NOW, name) == kept
        assert made.has_for_permit(NOW, name) is not bool(kept)
        assert made.free(NOW, name) == 1 - kept


def test_two_tasks_never_wait_for_one_another() -> None:
    """Brief tasks that took 20 ms on a busy machine, and a long one that has not ended yet, waited for one another."""
    names = ["0.001", "0.01", "0.05", "0.2", "0.6", "2", "30", "inf"]
    for one, other in itertools.combinations(names, 2):
        made = capacity(4, 4)
        for number, name in enumerate((one, other)):
            made.turns.note_ready(f"queue {number}", name)
        assert made.kept_for_briefer(NOW, one) + made.kept_for_briefer(NOW, other) <= 1


def keeper(*, keeps: bool = True) -> PoolCapacity:
    """A worker of six with one process, in which a brief task waits for it."""
    made = PoolCapacity(Pool(1, 1), lambda: 6, lambda: keeps)  # type: ignore[arg-type]
    made.turns.note_ready("queue 0", "0.01")
    return made


def test_long_tasks_get_a_bounded_share_of_a_kept_process() -> None:
    """Not each that has waited for long: beside a long backlog of both, they would have it one after the other."""
    made, pause = keeper(), round(2 / LEAST_SHARE)
    assert keeper(keeps=False).has_for_permit(NOW, "2"), "one worker of the fleet keeps its only process"
    assert not keeper().for_unlimited(NOW, "5", claims=0, turn=NOW + 0.9), "also from unlimited tasks"
    went = [second for second in range(3 * pause) if made.has_for_permit(NOW + second, "2")]
    assert went == [pause, 2 * pause], "long tasks do not starve, and starve no brief ones"


def test_keep_time_restarts_after_a_gap() -> None:
    made, pause = keeper(), 2 / LEAST_SHARE
    assert made.kept_for_briefer(NOW, "2") == 1
    assert not made.has_for_permit(NOW + 2 * pause, "2"), "no brief task was known in between"


def test_long_tasks_are_returned_at_the_pace_of_the_other_workers() -> None:
    made = keeper()
    returned = [tenth for tenth in range(100) if made.gives_back(NOW + tenth / 10, "12")]
    assert returned == list(range(0, 100, 10)), "each of six takes one in 12 s, and twice as often one is offered"
    assert not keeper().gives_back(NOW, "0.01"), "it is no longer than the one that waits"
    assert not keeper(keeps=False).gives_back(NOW, "12")
    several = capacity(2, 1)
    several.turns.note_ready("queue 0", "0.01")
    assert not several.gives_back(NOW, "12"), "its other processes run long tasks"
