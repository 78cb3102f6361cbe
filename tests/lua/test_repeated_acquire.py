"""A repeated acquire takes few steps, and is decided like the first one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import redis

import celery_ratelimit
from celery_ratelimit import ConfigurationError, ImpossibleRequest, Limit, Limiter, StoreUnavailable
from celery_ratelimit.limiter import report_counts
from celery_ratelimit.testing import EmbeddedServer, set_testing
from tests.conftest import PATIENT

FOLDER = str(Path(celery_ratelimit.__file__).parent)
WIDE = Limit("1000000/s", burst=1000, name="wide")
CALLS: dict[str, Callable[[Limiter], Any]] = {
    "limit": lambda limiter: limiter.acquire(WIDE),
    "name": lambda limiter: limiter.acquire("stripe"),
    "name and key": lambda limiter: limiter.acquire("tenant", key="tenant:7"),
    "two names": lambda limiter: limiter.acquire(["stripe", "more"]),
}


@pytest.fixture
def limiter(server: EmbeddedServer, store: redis.Redis) -> Iterator[Limiter]:
    quotas = {
        "stripe": {"rate": "1000000/s", "burst": 1000},
        "tenant": Limit("1000000/s", burst=1000, key="tenant:{tenant_id}"),
        "more": Limit("1000000/s", burst=1000),
    }
    with Limiter.from_url(server.url + PATIENT, quotas=quotas) as limiter:
        yield limiter


def steps_of(call: Callable[[], Any]) -> list[tuple[str, str]]:
    """The functions of the package that a call runs, with their files."""
    seen: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(FOLDER):
            seen.append((code.co_filename.removeprefix(FOLDER), code.co_name))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.parametrize("name", CALLS)
def test_repeated_call_takes_few_steps(limiter: Limiter, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The first call after a report schedules the next report, in four more steps: here are no reports.
    monkeypatch.setattr(report_counts, "_on_a_thread", lambda seconds, report: None)
    call = CALLS[name]
    for _ in range(3):
        assert call(limiter).allowed
    steps = steps_of(lambda: call(limiter))
    assert len(steps) <= (15 if name != "two names" else 16), steps
    assert len({file for file, _ in steps}) <= 8, steps


@pytest.mark.parametrize("name", CALLS)
def test_repeated_call_is_decided_like_the_first(limiter: Limiter, name: str) -> None:
    first, second, third = [CALLS[name](limiter) for _ in range(3)]
    assert {first.id, second.id, third.id} == {first.id} ^ {second.id} ^ {third.id}, "three ids"
    for decision in (second, third):
        assert decision.allowed
        assert decision._demands == first._demands
        assert [state[:3] for state in decision.states] == [state[:3] for state in first.states]
        assert limiter.settle(decision, 3)


def test_changed_quota_applies_at_once(limiter: Limiter) -> None:
    for _ in range(2):
        assert limiter.acquire("stripe").capacity == 1000
    limiter.quotas["stripe"] = Limit("10/s", burst=7)
    for _ in range(3):
        assert limiter.acquire("stripe").capacity == 7
    del limiter.quotas["stripe"]
    with pytest.raises(ConfigurationError, match="there is no quota named 'stripe'"):
        limiter.acquire("stripe")


def test_stored_settings_apply_at_once(limiter: Limiter, server: EmbeddedServer) -> None:
    for _ in range(2):
        assert limiter.acquire("stripe").allowed
        assert limiter.acquire("more", cost=2).allowed
    with Limiter.from_url(server.url + PATIENT) as other:
        assert other.pause("stripe", 60, force=True) == 60
        refused = limiter.acquire("stripe")
        assert (refused.allowed, refused.limited_by) == (False, "stripe")
        assert other.resume("stripe", force=True)
        assert other.set_shadow("stripe", True, force=True)
        assert limiter.acquire("stripe")._shadow == (), "the store lets it through"
        assert limiter.acquire("stripe")._shadow, "and this process knows"
        assert other.set_rate("more", "1/s", force=True)
        with pytest.raises(ImpossibleRequest):
            limiter.acquire("more", cost=2)


def test_cost_of_another_type_is_not_confused(limiter: Limiter) -> None:
    for _ in range(2):
        assert limiter.acquire(WIDE, cost=1).allowed
    with pytest.raises(ConfigurationError, match="cost=True is not a whole number"):
        limiter.acquire(WIDE, cost=True)


def test_test_switch_applies_at_once(limiter: Limiter) -> None:
    for _ in range(2):
        limiter.acquire(WIDE)
    with set_testing():
        assert limiter.acquire(WIDE)._granted_at == 0
    assert limiter.acquire(WIDE)._granted_at > 0


def test_lost_store_is_noted(limiter: Limiter, server: EmbeddedServer) -> None:
    for _ in range(2):
        limiter.acquire(WIDE)
    assert limiter._counting is not None
    limiter._counting.counter.take()
    server.freeze()
    try:
        with pytest.raises(StoreUnavailable):
            limiter.acquire(WIDE)
    finally:
        server.thaw()
    ((name, part),) = limiter._counting.counter.take()
    assert (name, part.numbers) == ("wide", {"store_error": 1})
