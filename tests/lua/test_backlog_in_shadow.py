"""Tasks parked for a limit in shadow leave, and the limit's grants stay as they were."""

from __future__ import annotations

from typing import Any

import pytest

from celery_ratelimit import Limit, Limiter
from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.conftest import Clock

from .backlog_steps import park

SHADOW: dict[str, Any] = {"name": "api", "shadow": True}


def let_out(parking: Backlog, limit: Limit) -> int:
    return sum(len(each.leaving) for each in parking.take_due([LimitRequest(limit, "api")]))


@pytest.mark.parametrize(
    "options",
    [
        {"burst": 10},
        {"algorithm": "fixed_window"},
        {"algorithm": "sliding_window"},
        {"algorithm": "sliding_log"},
        {"algorithm": "leaky_bucket", "capacity": 3},
    ],
)
@pytest.mark.parametrize("stored", [False, True])
def test_worker_with_the_limit_in_shadow_keeps_its_backlog(
    frozen: Limiter, parking: Backlog, clock: Clock, options: dict[str, Any], stored: bool
) -> None:
    """Others may have it in force: an older code, or a recent operator change."""
    limit = Limit("10/h", name="api", **options)
    if stored:
        frozen.set_rate("api", limit, force=True)
        frozen.pause("api", 60, force=True)
        frozen.resume("api", force=True)
    while frozen.acquire(limit).allowed:
        pass
    park(parking, *[f"t{number}" for number in range(20)])
    assert let_out(parking, Limit("10/h", **SHADOW, **options)) == 20
    clock.advance(1)
    assert not frozen.acquire(limit).allowed


def test_old_slots_delay_no_task_in_shadow(frozen: Limiter, parking: Backlog, clock: Clock) -> None:
    """Tasks without slots are not searched for at each poll before tasks leave."""
    limit = Limit("100/s", name="api")
    park(parking, *[f"t{number}" for number in range(500)])
    out = sum(let_out(parking, limit) for _ in range(3))
    clock.advance(1)
    out += sum(let_out(parking, limit) for _ in range(3))
    assert 160 <= out < 500
    clock.advance(1.95)
    for _ in range(20):
        out += let_out(parking, Limit("100/s", **SHADOW))
    assert out == 500
