"""Errors, lost connections and expired requests in the gate leave no request and no lease behind."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_ratelimit.worker.request import State
from tests.unit.worker.gate_bench import Bench, Lost, Request


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def one_with_permit(bench: Bench, *names: str) -> Any:
    """It has a permit that is good in a moment."""
    bench.tats["r1"] = bench.now + 0.05
    request = bench.receive(bench.task("wait", "r1", *names))
    bench.run(0.04)
    ((_, pending),) = bench.pending()
    assert pending.state is State.GRANTED
    return request


def test_error_while_a_granted_task_starts_fails_it_alone(bench: Bench) -> None:
    """It has expired, and its result backend raises what it likes."""
    request = one_with_permit(bench)
    others = [bench.receive(bench.task("wait", "r1")) for _ in range(2)]
    bench.on_step["revoked"] = [ZeroDivisionError("no backend")]
    bench.run(0.05)
    assert request.ends == ["failed"]
    bench.check()
    bench.run(1.0)
    assert [each.ends for each in others] == [["started"], ["started"]]


def test_error_in_acquire_and_in_drop_slot_fails_one_task(bench: Bench) -> None:
    """A task without a reply cannot drop its slot either."""
    bench.tats["r1"] = bench.now + 5.0
    first, *others = [bench.receive(bench.task("wait", "r1")) for _ in range(3)]
    bench.on_step["ask"] = [ZeroDivisionError("at both")]
    bench.on_step["forget"] = [ZeroDivisionError("at both")]
    bench.run(6.0)
    assert first.ends == ["failed"]
    bench.check()
    assert [each.ends for each in others] == [["started"], ["started"]]


def test_error_after_the_acknowledgement_does_not_fail_the_task(bench: Bench) -> None:
    request = bench.receive(bench.task("plain"))
    request.acknowledged = True
    bench.gate.on_error(request, ZeroDivisionError("unexpected"))
    assert request.ends == ["started"]


@pytest.mark.parametrize("lose", [False, True])
def test_unused_lease_is_released_while_its_task_waits_for_a_process(bench: Bench, lose: bool) -> None:
    one_with_permit(bench, "p1")
    assert bench.leases_of["p1"], "it has a lease"
    for _ in range(bench.processes):
        bench.running[object()] = bench.now  # type: ignore[index]  # long tasks of others
    bench.run(0.5)
    ((_, pending),) = bench.pending()
    assert pending.state is State.QUEUED
    assert not bench.leases_of["p1"]
    if lose:
        bench.lose_connection()
    assert not bench.kept


@pytest.mark.parametrize(
    ("kind", "step"),
    [("retry", "ask"), ("wait", "ask"), ("retry", "revoked"), ("wait", "revoked"), ("retry", "may run")],
)
@pytest.mark.parametrize("wait", [0.0, 0.015])
def test_connection_lost_during_a_step_leaves_nothing(bench: Bench, kind: str, step: str, wait: float) -> None:
    """A greenlet waits for the store while another one closes the gate."""
    bench.tats["r1"] = bench.now + wait
    bench.on_step[step] = [bench.lose_connection]
    request = bench.receive(bench.task(kind, "r1", "p1"))
    bench.run(1.0)
    assert request.ends == ["lost"], "the broker hands it out anew"
    bench.check_empty()
    assert bench.gate._capacity.pending == 0


def test_lease_is_released_when_the_connection_is_lost_before_the_start(bench: Bench) -> None:
    """It was revoked, which the broker could not be told."""
    bench.on_step["ask"] = [lambda: bench.on_step.update(revoked=[Lost()])]
    request = bench.receive(bench.task("wait", "p1"))
    assert request.ends == ["lost"]
    bench.check_empty()


def test_connection_lost_at_a_granted_turn_leaves_nothing(bench: Bench) -> None:
    one_with_permit(bench, "p1")
    bench.on_step["revoked"] = [bench.lose_connection]
    bench.run(1.0)
    bench.check_empty()


def test_expired_requests_end_behind_a_request_that_still_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is not looked at otherwise before its turn."""
    task = bench.task("wait", "r1")
    bench.tats["r1"] = bench.now + 1000.0
    patient, expiring = bench.receive(task), []
    for seconds in (0, 3600, 0):
        monkeypatch.setattr(Request, "expires", datetime.now(timezone.utc) + timedelta(seconds=seconds))
        expiring.append(bench.receive(task))
        expiring[-1].is_revoked = seconds == 0
    asked = len(bench.acquire_sizes)
    bench.run(1.0)
    assert [request.ends for request in (patient, *expiring)] == [[], ["revoked"], [], ["revoked"]]
    assert len(bench.acquire_sizes) == asked, "the store is not asked for it"


def test_process_is_reserved_only_for_a_granted_permit(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    plain = bench.task("plain")
    bench.tats["r1"] = bench.now + 0.1
    limited = bench.receive(bench.task("wait", "r1"))
    for _ in range(2):
        bench.receive(plain)
    waits = bench.receive(plain)  # for a process, and takes 50 ms
    assert not waits.ends
    bench.tats["r1"] += 0.1  # the turn is another worker's
    bench.run(0.074)  # near enough to it that a process would be kept
    bench.finish()
    assert waits.ends == ["started"]
    bench.receive(plain)
    bench.run(0.102)  # near enough to the next one
    bench.finish()
    bench.run(0.0)
    assert [each.ends for each in bench.requests[4:]] == [[]], "it is kept for the permit"
    bench.run(0.025)
    assert limited.ends == ["started"]
