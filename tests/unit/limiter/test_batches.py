"""Items are grouped by script call: so many at most, of so much together; on a cluster each alone."""

from __future__ import annotations

import math

import pytest

from celery_ratelimit.limiter.operation import batches


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
