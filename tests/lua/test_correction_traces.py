"""Traces that were worked out by hand: permits that are given back, overdrawn, or kept when the rate changes."""

from __future__ import annotations

from typing import Any

import pytest

from celery_ratelimit import Decision, Limit, Limiter
from tests.conftest import START, Clock

from .frozen import us


def limit(rate: str, algorithm: Any = "token_bucket", **options: Any) -> Limit:
    return Limit(rate, algorithm=algorithm, name="api", **options)


def steps_of(rate: str, burst: int) -> Limit:
    return limit(rate, burst=burst, refill="interval")


TEN, FIVE = limit("10/m", "fixed_window"), limit("5/m", "fixed_window")
IN_STEPS, BUCKET = steps_of("2/10s", 5), limit("1/s", burst=5)
LOG, OWN_WINDOWS = limit("9/10s", "sliding_log"), limit("10/m", "fixed_window", align="first")

#: A limit; steps of (time, verb, what), where "book" takes permits that may lie ahead and "settle" corrects the nth
#: call; then the remaining permits, retry_after and reset_after.
TABLES: dict[str, tuple[Limit, list[tuple[Any, ...]], tuple[int, float, float]]] = {
    # -- Of ten permits 8 were taken, and five are in force: 3 are forgiven, less what comes back.
    "fixed window: the next windows owe what is not forgiven": (
        TEN,
        [(30, "take", 8), (30, "change", FIVE), (30, "settle", 0, 6), (30, "charge", 9)],
        (0, 90.0, 30.0),
    ),
    "fixed window: permits that come back are not forgiven, too": (
        TEN,
        [(0, "take", 8), (0, "change", FIVE), (0, "settle", 0, 6), (0, "charge", 10)],
        (0, 180.0, 60.0),
    ),
    "fixed window: nothing is forgiven any more": (
        TEN,
        [(0, "take", 8), (0, "change", FIVE), (0, "settle", 0, 5), (0, "charge", 5)],
        (0, 120.0, 60.0),
    ),
    "fixed window: an overdraft is paid by the windows after a change": (
        TEN,
        [(0, "take", 1), (0, "settle", 0, 30), (0, "change", FIVE)],
        (0, 300.0, 60.0),
    ),
    "fixed window: the next windows owe an overdraft, where nothing is forgiven": (
        TEN,
        [(0, "take", 3), (0, "change", FIVE), (0, "charge", 7)],
        (0, 120.0, 60.0),
    ),
    "fixed window: permits of a window that had ended before a change to a longer one do not come back": (
        TEN,
        [(0, "take", 3), (60, "take", 4), (60, "change", limit("10/h", "fixed_window")), (60, "settle", 0, 0)],
        (6, 0.0, 3540.0),
    ),
    "fixed window: a window of the old rule that has ended by the new one begins with the change": (
        OWN_WINDOWS,
        [(0, "take", 3), (30, "change", limit("5/30s", "fixed_window", align="first"))],
        (2, 0.0, 30.0),
    ),
    "fixed window: a window of the old rule that has not ended by the new one goes on": (
        OWN_WINDOWS,
        [(0, "take", 3), (10, "change", limit("5/30s", "fixed_window", align="first"))],
        (2, 0.0, 20.0),
    ),
    "fixed window: permits of the next window stay in it when the rate changes": (
        limit("2/m", "fixed_window"),
        [(0, "take", 2), (0, "book", 1), (0, "change", limit("1/m", "fixed_window"))],
        (0, 120.0, 120.0),
    ),
    "fixed window: permits of a window that has ended do not come back": (
        TEN,
        [(59, "take", 3), (60, "take", 2), (60, "settle", 0, 0)],
        (8, 0.0, 60.0),
    ),
    "fixed window: permits of the next window do not come back into this one": (
        TEN,
        [(0, "take", 10), (0, "book", 4), (0, "reset"), (0, "take", 3), (0, "settle", 1, 0)],
        (7, 0.0, 60.0),
    ),
    # -- A bucket that is refilled in steps.
    "steps: what came back since is not given back, and a step that has begun counts": (
        IN_STEPS,
        [(0, "take", 1), (3, "take", 4), (10, "take", 2), (10, "settle", 1, 0)],
        (2, 0.0, 20.0),
    ),
    "steps: nothing is left to give back": (
        IN_STEPS,
        [(0, "take", 1), (3, "take", 4), (30, "take", 5), (30, "settle", 1, 0)],
        (0, 10.0, 30.0),
    ),
    "steps: permits of a clock that has stepped back do not overfill the bucket": (
        IN_STEPS,
        [(60, "take", 5), (0, "charge", 1), (55, "take", 1), (55, "settle", 0, 0)],
        (5, 0.0, 0.0),
    ),
    "steps: refills for a permit ahead come at the new pace": (
        steps_of("4/10s", 8),
        [(0, "take", 8), (0, "book", 1), (1, "change", steps_of("2/6s", 8))],
        (1, 9.0, 33.0),
    ),
    "steps: a refill had brought no more than the burst": (
        steps_of("4/10s", 3),
        [(0, "take", 3), (0, "book", 1), (1, "change", steps_of("2/6s", 3))],
        (1, 9.0, 15.0),
    ),
    "steps: a larger bucket brings no permits, and a step of the new length begins with the change": (
        IN_STEPS,
        [(0, "take", 5), (4, "change", steps_of("2/4s", 9))],
        (0, 4.0, 20.0),
    ),
    "steps: a smaller bucket has less left": (
        IN_STEPS,
        [(0, "take", 1), (4, "change", steps_of("2/10s", 3))],
        (2, 0.0, 6.0),
    ),
    "steps: a step that would not have ended by the new length goes on": (
        IN_STEPS,
        [(0, "take", 5), (4, "change", steps_of("2/6s", 5))],
        (0, 2.0, 14.0),
    ),
    "steps: all comes back at once": (IN_STEPS, [(0, "take", 4), (0, "settle", 0, 0)], (5, 0.0, 0.0)),
    # -- A token bucket: what a call has not used comes back, less what has come back since.
    "bucket: all comes back at once": (BUCKET, [(0, "take", 5), (0, "settle", 0, 0)], (5, 0.0, 0.0)),
    "bucket: less what has come back": (
        BUCKET,
        [(0, "take", 3), (1, "take", 2), (1, "settle", 0, 0)],
        (3, 0.0, 2.0),
    ),
    "bucket: not more than it has granted": (
        BUCKET,
        [(0, "take", 3), (3, "take", 1), (3, "settle", 0, 0)],
        (4, 0.0, 1.0),
    ),
    "bucket: a call that was good ahead": (
        BUCKET,
        [(0, "take", 5), (0, "book", 2), (0, "settle", 1, 1)],
        (0, 2.0, 6.0),
    ),
    "bucket: nothing while a later call has permits that lie ahead": (
        limit("1/s"),
        [(0, "take", 1), (0, "book", 1), (0, "settle", 0, 0)],
        (0, 2.0, 2.0),
    ),
    "bucket: nothing that was taken before a reset": (
        BUCKET,
        [(0, "take", 3), (1, "reset"), (1, "take", 2), (1, "settle", 0, 0)],
        (3, 0.0, 2.0),
    ),
    "bucket: nothing for a call ahead that a reset has forgotten": (
        BUCKET,
        [(0, "take", 5), (0, "book", 2), (0, "reset"), (0, "take", 2), (0, "settle", 1, 0)],
        (3, 0.0, 2.0),
    ),
    "bucket: less what has come back at two rates": (
        BUCKET,
        [(0, "take", 4), (2, "change", limit("3/s", burst=5)), (2.5, "take", 1), (2.5, "settle", 0, 0)],
        (3, 0.0, 0.333335),
    ),
    # -- A log.
    "log: all entries of one time, and no others": (
        LOG,
        [(0, "take", 1), (1, "take", 2), (1, "take", 3), (2, "take", 1), (2, "settle", 2, 0)],
        (5, 0.0, 10.0),
    ),
    "log: entries that are given back do not come back again when they pass": (
        LOG,
        [(0, "take", 1), (1, "take", 2), (1, "take", 3), (2, "take", 1), (2, "settle", 2, 0), (11.5, "wait")],
        (8, 0.0, 0.5),
    ),
    "log: nothing for a call ahead that a reset has forgotten": (
        LOG,
        [(0, "take", 9), (0, "book", 2), (0, "reset"), (0, "take", 2), (0, "settle", 1, 0)],
        (7, 0.0, 10.0),
    ),
    "log: a call after the clock has stepped back": (
        LOG,
        [(60, "take", 3), (0, "take", 2), (0, "settle", 1, 0)],
        (6, 0.0, 10.0),
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_hand_worked_trace(frozen: Limiter, clock: Clock, name: str) -> None:
    wanted, steps, expected = TABLES[name]
    calls: list[Decision] = []
    for time, verb, *what in steps:
        clock.set(START + us(time))
        if verb == "take":
            calls.append(frozen.acquire(wanted, cost=what[0]))
        elif verb == "book":
            calls.append(frozen.reserve(wanted, id=f"{len(calls)}", horizon=1e6, cost=what[0]))
        elif verb == "settle":
            assert frozen.settle(calls[what[0]], what[1])
        elif verb == "charge":
            frozen.charge(wanted, what[0])
        elif verb == "reset":
            frozen.reset(wanted)
        elif verb == "change":
            frozen.set_rate("api", what[0])
    left = frozen.peek(wanted)
    assert (left.remaining, left.retry_after, left.reset_after) == expected
