"""Backlogs of keys whose rates differ in the code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_ratelimit import Limit
from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limits.rates import limit_of_key
from tests.parks import park_one

LIMIT = Limit("1/h", name="tokens", key="{model}", rates={"a": "2/h", "b": "3/h"})


@pytest.mark.parametrize(
    "limit", [LIMIT, replace(LIMIT, fair="{tenant}"), replace(LIMIT, fair="{t}", weights={"x": 2})]
)
def test_backlogs_of_one_limit_share_one_code_entry(parking: Backlog, limit: Limit) -> None:
    demands = [LimitRequest(limit_of_key(limit, key), "tokens", key, share=limit.fair and "x") for key in "abc"]
    for demand in demands:
        parking._limiter._asker.ask([demand])
        if limit.fair is None:
            park_one(parking, demand, f"id{demand.key}", "{}")

    def another() -> list[bool]:
        return [parking.take_due([demand])[0].another for demand in demands]

    another()
    assert another() == [False] * 3
    for _ in range(2):
        parking.wake(LimitRequest(limit, "tokens"), 0)
        assert another() == [False] * 3
    demands[0] = LimitRequest(limit_of_key(replace(limit, rates={"a": "5/h"}), "a"), "tokens", "a")
    assert another()[0], "the code has changed"
