"""Operations: batches of script calls, and operations that share round trips."""

from __future__ import annotations

import math
from typing import Any

import pytest

from celery_ratelimit.limiter.operation import Operation, RunScript, at_once, batches, run_all
from celery_ratelimit.limiter.script_calls import call_of
from celery_ratelimit.store.script import Script

SCRIPT = Script("peek")


def asking(*steps: str) -> Operation[list[str]]:
    """Asks for a script with each of these keys, and for one more for each further letter."""
    found = []
    for step in steps:
        found += yield from run_all([RunScript(SCRIPT, call_of([letter])) for letter in step])
    return found


def driven(operation: Operation[Any]) -> tuple[list[str], Any]:
    """The keys that each round trip asked for, and the result. A script's reply is its key."""
    trips: list[str] = []
    given: Any = None
    while True:
        try:
            scripts: Any = operation.send(given)
        except StopIteration as end:
            return trips, end.value
        given = [key for script in scripts for key in script.call[2][0].decode().split()[1::2]]
        trips.append("".join(given))


@pytest.mark.parametrize(
    ("operations", "trips", "results"),
    [
        ([], [], []),
        ([()], [], [[]]),
        ([("a",), ("b",)], ["ab"], [["a"], ["b"]]),
        ([("ab", "c"), (), ("d", "ef", "g")], ["abd", "cef", "g"], [["a", "b", "c"], [], ["d", "e", "f", "g"]]),
        ([("", "a"), ("b",)], ["ab"], [["a"], ["b"]]),
    ],
)
def test_parallel_steps_share_a_round_trip(operations: Any, trips: list[str], results: Any) -> None:
    assert driven(at_once(*[asking(*steps) for steps in operations])) == (trips, results)


def test_operations_at_once_are_an_operation() -> None:
    trips, results = driven(at_once(at_once(asking("a", "b"), asking("c")), asking("d", "e")))
    assert (trips, results) == (["acd", "be"], [[["a", "b"], ["c"]], ["d", "e"]])


def test_error_of_one_operation_ends_all() -> None:
    def failing() -> Operation[None]:
        yield from asking("a")
        raise LookupError("no such limit")

    with pytest.raises(LookupError, match="no such limit"):
        driven(at_once(asking("b", "c"), failing()))


@pytest.mark.parametrize(
    ("alone", "sizes", "most", "largest", "expected"),
    [
        (False, [], 2, 10, []),
        (False, [1, 1, 1], 2, math.inf, [[1, 1], [1]]),
        (False, [4, 6, 1], 9, 10, [[4, 6], [1]]),
        (False, [4, 7, 3], 9, 10, [[4], [7, 3]]),
        (False, [12, 12], 9, 10, [[12], [12]]),  # one item is never split
        (False, [0, 10, 0], 9, 10, [[0, 10, 0]]),
        (True, [1, 1], 9, 10, [[1], [1]]),
    ],
)
def test_batches_are_bounded_and_keep_the_order(
    alone: bool, sizes: list[int], most: int, largest: float, expected: list[list[int]]
) -> None:
    assert batches(alone, sizes, most, largest, lambda size: size) == expected
