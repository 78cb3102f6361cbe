"""What ``watch`` says of an event: when the task starts, or when it could have."""

from __future__ import annotations

from typing import Any

import pytest

from celery_ratelimit.cli.watch import _line
from celery_ratelimit.words import NO_END


@pytest.mark.parametrize(
    ("outcome", "more", "said"),
    [
        ("parked", {}, "stripe (2/s): parked, its turn is in 12.00 s"),
        ("waiting", {"key": "a\n"}, "stripe (2/s, key 'a\\n'): waiting, its turn is in 12.00 s"),
        ("returned", {"retry_after": 2 * NO_END}, "stripe (2/s): returned, until the limit is resumed"),
        ("dropped", {}, "stripe (2/s): dropped, a permit is free in 12.00 s"),
        ("diverted", {}, "stripe (2/s): diverted, a permit is free in 12.00 s"),
        ("returned", {"limit": "", "rate": ""}, "the store (): returned for 12.00 s"),
        ("parked", {"retry_after": None}, "stripe (2/s): parked"),
    ],
)
def test_line_says_what_the_time_of_an_outcome_is(outcome: str, more: dict[str, Any], said: str) -> None:
    event = {"limit": "stripe", "rate": "2/s", "retry_after": 12.0, "outcome": outcome, "hostname": "w1", "uuid": "a"}
    assert _line({**event, **more}).endswith(f" w1 a {said}")
