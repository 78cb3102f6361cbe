"""A decision is a value: frozen, comparable, and says by name who said no."""

from __future__ import annotations

import dataclasses

import pytest

from celery_ratelimit import Decision
from celery_ratelimit.limits.decision import LimitState


def test_a_decision_is_frozen_and_equal_by_value() -> None:
    state = LimitState(name="api", key="", capacity=5, remaining=4, reset_after=0.5)
    decision = Decision(True, 5, 4, 0.0, 0.5, None, (state,))
    assert decision == Decision(True, 5, 4, 0.0, 0.5, None, (LimitState("api", "", 5, 4, 0.5),))
    assert hash(decision) == hash(dataclasses.replace(decision))
    for value in (decision, state):
        assert not hasattr(value, "__dict__")
        with pytest.raises(AttributeError):
            value.remaining = 0  # type: ignore[misc]


def test_the_fields_are_the_contract() -> None:
    contract = ["allowed", "capacity", "remaining", "retry_after", "reset_after", "limited_by", "states"]
    contract += ["queue_full", "id", "_granted_at", "_demands", "_shadow", "permits"]
    assert [field.name for field in dataclasses.fields(Decision)] == contract


def test_a_decision_is_true_if_it_allows() -> None:
    assert Decision(True, 5, 0, 0.0, 1.0, None)
    assert not Decision(False, 5, 4, 0.5, 1.0, "api")
