"""Counts within a process: batches, threads and forks."""

from __future__ import annotations

import os
import sys
import threading
from itertools import product

import pytest

from celery_ratelimit.counts.counter import Counter
from celery_ratelimit.counts.tally import Tally


def numbers(counter: Counter | Tally) -> dict[str, dict[str, int]]:
    return {name: part.numbers for name, part in counter.take()}


def test_batched_calls_count_as_single_ones() -> None:
    calls = [("api", key, cost) for key, cost in product([None, "a", "b"], [1, 2, 5])] * 3 + [("other", None, 1)]
    one_by_one, together = Tally(), Tally()
    for call in calls:
        one_by_one.started("acquired", [call], 0.0)
        together.at_once.append(call)
    expected = {name: (part.numbers, part.users) for name, part in one_by_one.take()}
    assert {name: (part.numbers, part.users) for name, part in together.take()} == expected
    assert together.take() == []


def test_first_call_of_a_second_schedules_the_send() -> None:
    due: list[float] = []
    counter = Counter(due.append)
    for _ in range(3):
        counter.at_once(("api", None, 1))
    assert due == [1.0]
    assert numbers(counter)["api"]["acquired"] == 3
    counter.at_once(("api", None, 1))
    assert due == [1.0, 1.0]


def test_noted_calls_are_bounded() -> None:
    counter = Counter(lambda seconds: None)
    for _ in range(2500):
        counter.at_once(("api", None, 2))
        assert len(counter._tally.at_once) < 1000
    assert numbers(counter)["api"] == {"acquired": 2500, "permits": 5000, "w10": 2500}


def test_threads_lose_no_count_during_take() -> None:
    counter, each, threads = Counter(lambda seconds: None), 150_000, 4
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        callers = [
            threading.Thread(target=lambda: [counter.at_once(("api", None, 1)) for _ in range(each)])
            for _ in range(threads)
        ]
        for caller in callers:
            caller.start()
        taken = 0
        while any(caller.is_alive() for caller in callers):
            taken += numbers(counter).get("api", {}).get("acquired", 0)
    finally:
        sys.setswitchinterval(usual)
    for caller in callers:
        caller.join()
    assert taken + numbers(counter).get("api", {}).get("acquired", 0) == each * threads


def test_forked_child_of_which_no_hook_was_told_counts_only_its_own_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    due: list[float] = []
    counter = Counter(due.append)
    counter.at_once(("parents", None, 1))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    for _ in range(1000):
        counter.at_once(("childs", None, 1))
    assert len(due) == 2
    assert "parents" not in numbers(counter)
