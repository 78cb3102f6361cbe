"""Two pauses of one limit: the one that ends last is shown, with its own author and reason."""

from __future__ import annotations

from typing import Any

import pytest

from celery_ratelimit import Limit, Limiter
from tests.conftest import Clock

NO_END = 1e9  # as `pause` without a time
REFUSAL = {"by": "429 of task charge", "reason": "of task 1"}
ANNA, BOB = {"by": "anna", "reason": "no upstream"}, {"by": "bob"}


@pytest.mark.parametrize("resume_over", [0, 10])
@pytest.mark.parametrize(
    ("pauses", "shown"),
    [
        ([(60, ANNA), (10, REFUSAL)], ANNA),
        ([(10, ANNA), (60, REFUSAL)], REFUSAL),
        ([(60, REFUSAL), (10, ANNA)], REFUSAL),
        ([(10, REFUSAL), (60, ANNA)], ANNA),
        ([(60, ANNA), (10, BOB)], ANNA),
        ([(10, ANNA), (60, BOB)], BOB),
        ([(NO_END, ANNA), (NO_END, BOB)], BOB),
        ([(10, ANNA), (60, REFUSAL), (90, BOB)], BOB),
    ],
)
def test_pause_that_ends_last_is_shown_with_its_own_reason(
    frozen: Limiter, clock: Clock, pauses: list[tuple[float, Any]], shown: dict[str, str], resume_over: float
) -> None:
    frozen.quotas["api"] = Limit("100/s", name="api", resume_over=resume_over)

    def shown_now() -> tuple[str, str]:
        config = frozen.config("api")
        return config.paused_by, config.pause_reason

    for seconds, by in pauses:
        if by is REFUSAL:
            frozen.throttled("api", retry_after=seconds, **by)
        else:
            frozen.pause("api", seconds, **by)
        clock.advance(1)
    expected = shown["by"], shown.get("reason", "")
    assert shown_now() == expected
    clock.advance(25)  # the shorter pause has ended, and the ramp after it
    frozen.set_rate("api", "50/s", by="carl", reason="slow")
    assert shown_now() == expected
    frozen.unset_rate("api")
    assert shown_now() == expected
    if max(seconds for seconds, _ in pauses) < NO_END:
        clock.advance(90)
    else:
        assert frozen.resume("api", reason="it is back")
    assert shown_now() == ("", "")
    frozen.set_rate("api", "50/s")
    assert shown_now() == ("", "")
    frozen.pause("api", 1, by="dora")
    assert shown_now() == ("dora", "")


def test_pause_of_a_key_or_of_the_limit_is_shown_with_its_own_reason(frozen: Limiter) -> None:
    frozen.quotas["tenants"] = Limit("10/s", name="tenants", key="{tenant}")
    frozen.pause("tenants", 10, key="7", **ANNA)
    frozen.throttled("tenants", retry_after=60, **REFUSAL)
    for key, seconds, shown in (("7", 60, REFUSAL), ("8", 60, REFUSAL)):
        config = frozen.config("tenants", key=key)
        assert (config.paused, config.paused_by, config.pause_reason) == (seconds, *shown.values())
    frozen.pause("tenants", 90, key="7", **ANNA)
    config = frozen.config("tenants", key="7")
    assert (config.paused, config.paused_by, config.pause_reason) == (90, *ANNA.values())
    frozen.resume("tenants", key="7")
    config = frozen.config("tenants", key="7")
    assert (config.paused, config.paused_by, config.pause_reason) == (60, *REFUSAL.values())
