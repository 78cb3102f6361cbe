"""Limits and decisions are data; options, as users write them and as the scripts read them."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from celery_ratelimit import Concurrency, ConfigurationError, Decision, Limit
from celery_ratelimit.limiter.argument_checks import actual_costs
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limits.decision import GrantedAt, LimitState

# -- Options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "wire"),
    [
        (Limit("100/s"), ("token_bucket", 1, 10_000, 1, 1, 0)),
        (Limit("3/s", burst=5, debt=7), ("token_bucket", 3, 1_000_000, 5, 1, 7)),
        (Limit("10/s", refill="interval", burst=20), ("stepped_bucket", 10, 1_000_000, 20, 1, 0)),
        (Limit("10/s", warmup=2.5), ("warm_up", 1, 100_000, 1, 1, 2_500_000)),
        (Limit("10/s", algorithm="leaky_bucket"), ("leaky_bucket", 1, 100_000, 1, 1, -1)),
        (Limit("10/s", algorithm="leaky_bucket", capacity=0), ("leaky_bucket", 1, 100_000, 1, 1, 0)),
        (Limit("1000/h", algorithm="fixed_window"), ("fixed_window", 1000, 3_600_000_000, 1000, 1, 0)),
        (Limit("2/3s", algorithm="fixed_window", align="first"), ("fixed_window", 2, 3_000_000, 2, 1, 1)),
        (Limit("10/s", algorithm="sliding_window"), ("sliding_window", 10, 1_000_000, 10, 1, 10)),
        (Limit("10/s", algorithm="sliding_window", sub_windows=60), ("sliding_window", 10, 1_000_000, 10, 1, 60)),
        (Limit("10/s", algorithm="sliding_log"), ("sliding_log", 10, 1_000_000, 10, 1, 0)),
        (Concurrency(5), ("concurrency", 5, 60_000_000, 5, 1, 0)),
        (Concurrency(5, lease=0.1000001), ("concurrency", 5, 100_001, 5, 1, 0)),
        (Limit("100/s", headroom=0.03), ("token_bucket", 97, 1_000_000, 1, 1, 0)),
        (Limit("100/s", headroom=0.03, algorithm="fixed_window"), ("fixed_window", 97, 1_000_000, 97, 1, 0)),
        (Limit("97/s", headroom=0.03, algorithm="sliding_log"), ("sliding_log", 97, 1_030_928, 97, 1, 0)),
        (Limit("1/s", headroom=0.5, algorithm="fixed_window", align="first"), ("fixed_window", 1, 2_000_000, 1, 1, 1)),
        (Limit("10/s", burst=10, priority_reserve={0: 0.2}), ("token_bucket", 1, 100_000, 10, 1, -200_000_200_000)),
    ],
    ids=str,
)
def test_options_reach_the_scripts_as_numbers(limit: Limit | Concurrency, wire: tuple[Any, ...]) -> None:
    assert limit.wire(1) == wire
    assert pickle.loads(pickle.dumps(limit)).wire(1) == wire
    assert replace(limit, name="other").wire(1) == wire


# -- Actual costs ------------------------------------------------------------------------------------------------------


def demand(name: str, taken: int = 1, **options: Any) -> LimitRequest:
    return LimitRequest(Limit("100/s", burst=100, name=name, **options), name, "", taken)


CALLS = demand("calls")
COMPUTED, TOKENS, BYTES = demand("tokens", 40, cost="tokens"), demand("tokens", 40), demand("bytes", 9)


@pytest.mark.parametrize(
    ("demands", "cost", "name", "actual"),
    [
        ([CALLS, COMPUTED], 7, None, [1, 7]),  # the limit whose cost comes from the arguments
        ([CALLS, TOKENS], 7, None, [1, 7]),  # or which takes more than one
        ([CALLS, demand("more")], 7, None, [7, 7]),  # or all limits
        ([demand("calls", 2), LimitRequest(Concurrency(5), "gpu", "", 3)], 7, None, [7, 3]),  # places are not spent
        ([TOKENS, LimitRequest(Concurrency(5, cost="n"), "gpu", "", 3)], 7, None, [7, 3]),
        ([COMPUTED, BYTES], 7, None, [7, 9]),
        ([CALLS, COMPUTED], 7, "calls", [7, 40]),
        ([CALLS, TOKENS, BYTES], {"tokens": 7, "calls": 0}, None, [0, 7, 9]),
        ([CALLS], 7, "other", r"no limit 'other' in this decision \(limits: calls\)"),
        ([CALLS, TOKENS], {"tokens": 7, "tokes": 1}, None, r"no limit 'tokes' in this decision \(limits: calls, tok"),
        ([CALLS, TOKENS], {}, None, r"name no limit \(limits: calls, tokens\)"),
        ([CALLS, TOKENS], {"tokens": 7}, "tokens", "name their limits: leave limit= out"),
    ],
)
def test_actual_costs(demands: list[LimitRequest], cost: Any, name: str | None, actual: Any) -> None:
    if isinstance(actual, list):
        assert actual_costs(demands, cost, name) == actual
    else:
        with pytest.raises(ConfigurationError, match=actual):
            actual_costs(demands, cost, name)


# -- Limits and decisions as values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "change"),
    [
        (Limit("100/s", burst=5, name="api", key="{a}", cost="n"), {"burst": 6}),
        (Limit("5/s", name="stripe", fair="{tenant_id}", weights={"gold": 4, "held": 0}), {"weights": {"gold": 3}}),
        (Limit("10/s", burst=10, priority_reserve={3: 0.2, "0": 0.1}), {"priority_reserve": {0: 0.2}}),
        (Limit("5/m", name="tokens", key="{model}", rates={"a": "10/m", "*": "2/m"}), {"rates": {"*": "1/m"}}),
        (Concurrency(3, name="places", fair="{tenant_id}", weights={"gold": 2}), {"limit": 4}),
    ],
)
def test_limit_is_frozen_hashable_and_equal_by_value(limit: Any, change: dict[str, Any]) -> None:
    for same in (eval(repr(limit)), copy.copy(limit), copy.deepcopy(limit), pickle.loads(pickle.dumps(limit))):
        assert (same, hash(same)) == (limit, hash(limit))
    assert len({limit, replace(limit), replace(limit, name="other"), replace(limit, **change)}) == 3
    assert replace(limit, **change) != limit
    with pytest.raises(dataclasses.FrozenInstanceError):
        limit.name = "other"
    with pytest.raises(ConfigurationError):
        replace(limit, name=5)


def test_options_of_a_limit_are_keywords_that_exist() -> None:
    for arguments, more in (((), {"bursts": 5}), ((5,), {})):
        with pytest.raises(TypeError):
            Limit("100/s", *arguments, **more)  # type: ignore[arg-type]


def test_limit_from_another_process_is_found_in_a_mapping() -> None:
    """Texts hash differently in every process; a limit that comes from another must hash as one made here."""
    there = (
        "import pickle, sys; from celery_ratelimit import Limit;"
        "limit = pickle.loads(sys.stdin.buffer.read());"
        "sys.exit(0 if limit in {Limit('100/s', name='api'): 1} else 'not found')"
    )
    result = subprocess.run(
        [sys.executable, "-c", there],
        input=pickle.dumps(Limit("100/s", name="api")),
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr.decode()


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (Limit("100/s"), "limit: 100/s"),
        (Limit("100/s", burst=10), "limit: 100/s, burst 10"),
        (Limit("5/10s", burst=2, name="stripe"), "stripe: 5/10s, burst 2"),
        (Limit("10/s", algorithm="sliding_log"), "limit: 10/s"),
        (Concurrency(5, name="gpu"), "gpu: 5 at once"),
        (Limit("5/m", name="tokens", key="{a}", rates={"a": "10/m"}), "tokens: 5/m, rates by key"),
        (Limit("5/m", name="tokens", key="{a}", rates=dict.fromkeys), "tokens: 5/m, rates by fromkeys"),
    ],
)
def test_text_of_a_limit_is_its_rate_and_options(limit: Limit | Concurrency, text: str) -> None:
    assert str(limit) == text


def test_repr_of_a_limit_has_the_options_that_are_set() -> None:
    assert repr(Limit("100/s")) == "Limit('100/s')"
    fair = Limit("1/s", fair="{a}", weights={"a": 4, "b": 0.5})
    assert repr(fair) == "Limit('1/s', fair='{a}', weights={'a': 4, 'b': 0.5})"
    assert repr(Limit("100/s", burst=5)) == "Limit('100/s', burst=5)"
    assert repr(Concurrency(5)) == repr(Concurrency(5, cost=1, lease=60.0, per_worker=False, shadow=False))


def test_decision_is_a_frozen_value_that_is_true_if_it_allows() -> None:
    state = LimitState(name="api", key="", capacity=5, remaining=4, reset_after=0.5)
    decision = Decision(True, 5, 4, 0.0, 0.5, None, (state,))
    plain = LimitState("api", "", 5, 4, 0.5, interval=0.0, version=0)
    assert decision == Decision(True, 5, 4, 0.0, 0.5, None, (plain,), False, "another id", 0, permits=0)
    assert repr(decision).endswith("queue_full=False, id='', _granted_at=0, permits=0)")
    assert hash(decision) == hash(replace(decision))
    for value in (decision, state):
        assert not hasattr(value, "__dict__")
        with pytest.raises(AttributeError):
            value.remaining = 0  # type: ignore[misc]
    assert decision
    assert not Decision(False, 5, 4, 0.5, 1.0, "api")


def test_permits_of_several_nodes_are_good_when_the_last_one_is() -> None:
    for granted in (GrantedAt({"api": 7, "gpu": 9}), pickle.loads(pickle.dumps(GrantedAt({"api": 7, "gpu": 9})))):
        assert (granted, granted.of("api"), granted.of("gpu"), granted.of("later")) == (9, 7, 9, 9)
