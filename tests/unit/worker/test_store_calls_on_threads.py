"""Calls to a distant store are made on threads: events during a call, and its reply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_ratelimit import ImpossibleRequest, StoreUnavailable
from celery_ratelimit.backlog.backlog import ParkResult
from celery_ratelimit.store_calls.store_calls import Reply
from celery_ratelimit.worker import parking_batch
from celery_ratelimit.worker.next_action import DropDuplicate
from celery_ratelimit.worker.parking_batch import BYTES, MOST_BEHIND
from celery_ratelimit.worker.request import AcquireCall
from tests.parks import EMPTY
from tests.unit.worker.gate_bench import Bench, Lost, Request, ends

THREAD_LATENCY = 0.02
OPEN = -100.0  # a limit that could have been used for long


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch, processes=4, seconds_away=THREAD_LATENCY)


def come(bench: Bench, number: int, *task: str) -> list[Request]:
    what = bench.task(*task)
    return [bench.receive(what) for _ in range(number)]


def test_loop_goes_on_during_the_calls_of_several_queues(bench: Bench) -> None:
    requests = [*come(bench, 1, "retry", "r1"), *come(bench, 1, "retry", "r2"), *come(bench, 1, "plain")]
    assert ends(requests) == ["", "", "started"]
    bench.run(THREAD_LATENCY)
    assert ends(requests) == ["started"] * 3
    bench.check()


def test_requests_that_arrive_during_a_call_acquire_together_after_it(bench: Bench) -> None:
    come(bench, 3, "retry", "r1")
    bench.gate._store_calls.latency.round_trip = 1.0
    assert bench.acquire_sizes == []
    bench.run(THREAD_LATENCY)
    assert bench.acquire_sizes == [1]
    bench.run(THREAD_LATENCY)
    assert bench.acquire_sizes == [1, 2], "the two that arrived during the call acquire together"


def test_process_is_reserved_during_an_acquire(bench: Bench) -> None:
    bench.processes, bench.mean_runtime = 1, lambda name: 5.0  # type: ignore[method-assign, assignment]
    requests = [*come(bench, 1, "retry", "r1"), *come(bench, 1, "plain")]
    assert ends(requests) == ["", ""], "one process"
    bench.run(THREAD_LATENCY)
    assert ends(requests) == ["started", ""]
    assert bench.gate._capacity.reservations.by(bench.now + 10) == 0


def reply_to_three(bench: Bench, *changes: Any) -> list[Request]:
    """Three requests acquire by one call: the reply is their refusals, each with a change, or something else."""
    bench.tats["r1"] = bench.now + 0.5
    task = bench.task("wait", "r1")
    requests = bench.receive_batch([task] * 3)
    (limit_queue,) = bench.gate._queues
    (refused,) = bench.ask_next(task.plan.demands((), {}), ["other"], horizon=0.0, claim=0.0)
    said = [replace(refused, **each) if isinstance(each, dict) else each for each in changes]
    call = AcquireCall(list(limit_queue.new), for_permit=True, reply=Reply(said, at=bench.now))
    bench.gate._scheduler._processor._handle_reply(limit_queue, call)
    return requests


def test_queue_acquires_next_at_the_first_refused_turn(bench: Bench) -> None:
    """Later requests were told later turns."""
    bench.gate._store_calls.latency.round_trip = THREAD_LATENCY
    reply_to_three(bench, {}, {"retry_after": 0.6}, {"retry_after": 0.7})
    (limit_queue,) = bench.gate._queues
    assert limit_queue.next_acquire == pytest.approx(bench.tats["r1"] - bench.gate._admission.lead_time(), abs=1e-6)


def test_refusal_does_not_hide_later_decisions_of_the_batch(bench: Bench) -> None:
    """Else a permit would be lost, and a duplicate would run."""
    requests = reply_to_three(bench, {}, {"allowed": True, "retry_after": 0.0}, DropDuplicate())
    assert ends(requests) == ["", "started", "acknowledged"]


def test_refused_request_is_parked_with_the_requests_behind_it(bench: Bench) -> None:
    bench.tats["r1"] = bench.now + 5.0
    requests = come(bench, 6, "retry", "r1")
    bench.run(3 * THREAD_LATENCY)
    assert (ends(requests), bench.acquire_sizes, bench.park_sizes) == (["parked"] * 6, [1], [6])
    bench.check_empty()


def test_park_calls_of_a_bucket_are_sequential(bench: Bench) -> None:
    """Two threads could deliver them in any order."""
    bench.has_parked_tasks = True
    requests, at_call = bench.receive_batch([bench.task("retry", "r1")] * 2), []
    bench.on_step["park"] = [lambda: at_call.append(ends(requests))] * 2
    requests += come(bench, 2, "retry", "r1")
    bench.run(2 * THREAD_LATENCY)
    assert at_call == [[""] * 4, ["parked", "parked", "", ""]]
    assert ends(requests) == ["parked"] * 4
    bench.check_empty()


@pytest.mark.parametrize(("max_bytes", "widened"), [(BYTES, MOST_BEHIND), (1, 0)])
def test_small_requests_behind_a_park_call_widen_the_prefetch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, max_bytes: int, widened: int
) -> None:
    """Unlimited tasks may follow them."""
    monkeypatch.setattr(parking_batch, "BYTES", max_bytes)
    bench.has_parked_tasks = True
    bench.receive_batch([bench.task("retry", "r1")] * 2)
    assert bench.widened == 0, "the call is made at once"
    requests = come(bench, 60, "retry", "r1")
    assert bench.widened == widened
    bench.run(1.0)
    assert (set(ends(requests)), bench.widened) == ({"parked"}, 0)
    bench.check_empty()


@pytest.mark.parametrize(
    ("choice", "end"), [("defer", "sent back"), ("allow", "started"), ("local", "started"), ("raise", "failed")]
)
def test_lost_reply_begins_an_outage(monkeypatch: pytest.MonkeyPatch, choice: str, end: str) -> None:
    bench = Bench(monkeypatch, choice, seconds_away=THREAD_LATENCY)
    bench.on_step["ask"] = [StoreUnavailable("no answer")]
    requests = come(bench, 1, "retry", "r1")
    bench.run(THREAD_LATENCY)
    assert bench.lost
    bench.run(0.3)  # the local share of the limit may grant a little later
    assert ends(requests) == [end]
    bench.finish()
    bench.end_outage()
    bench.check_empty()


def test_lost_store_leaves_each_worker_its_share_of_the_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, "local", processes=4, seconds_away=THREAD_LATENCY)
    bench.begin(StoreUnavailable("no answer"))
    requests = come(bench, 3, "wait", "p1")
    assert (ends(requests), bench.workers) == (["started", "", ""], 2)
    bench.finish()
    bench.run(1.0)
    assert ends(requests) == ["started", "started", ""]


def test_limit_changed_during_a_call_is_acquired_again(bench: Bench) -> None:
    bench.decides_at_submit, bench.tats["r1"] = True, bench.now + 1000
    requests = come(bench, 1, "wait", "r1")
    bench.run(0.001)
    bench.tats["r1"] = bench.now
    bench.gate._changed({"r1"})
    bench.run(1.0)
    assert ends(requests) == ["started"]


def test_stale_reply_is_discarded_and_acquired_again(bench: Bench) -> None:
    """Used late, it would bunch with the next permit."""
    bench.decides_at_submit, bench.tats["r1"] = True, OPEN
    requests = come(bench, 1, "wait", "r1")
    bench.now += 5.0  # the loop does something else
    bench.gate._store_calls._timers.call_soon = lambda call: bench.call_after(4.0, call)
    bench.run(4.5)
    bench.gate._store_calls._timers.call_soon = lambda call: call()
    assert (ends(requests), len(bench.acquire_sizes)) == ([""], 2), "it has acquired again"
    bench.run(5.0)
    assert ends(requests) == ["started"]


@pytest.mark.parametrize("choice", ["raise", "defer"])
def test_reply_in_flight_counts_though_an_outage_has_begun(monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    bench = Bench(monkeypatch, choice, processes=4, seconds_away=THREAD_LATENCY)
    bench.decides_at_submit, bench.tats["r2"] = True, bench.now + 100
    requests = [*come(bench, 1, "retry", "r1"), *come(bench, 1, "retry", "r2")]
    bench.run(THREAD_LATENCY / 2)
    bench.begin(StoreUnavailable("no answer"))
    bench.run(THREAD_LATENCY)
    assert ends(requests)[0] == "started"
    assert bench.acquire_sizes == [1, 1]


def test_loop_calls_the_store_if_no_thread_can_start(bench: Bench) -> None:
    bench.on_step["submit"] = [RuntimeError("can't start new thread")] * 2
    bench.tats["r2"] = bench.now + 100
    requests = [*come(bench, 1, "retry", "r1"), *come(bench, 1, "retry", "r2")]
    bench.run(1.0)
    assert ends(requests) == ["started", "parked"]
    bench.finish()
    bench.check_empty()


@pytest.mark.parametrize("error", [ZeroDivisionError("unforeseen"), ImpossibleRequest("r1", 2, 1)])
def test_error_of_an_acquire_fails_its_first_request_alone(bench: Bench, error: Exception) -> None:
    bench.tats["r1"] = OPEN
    bench.on_step["ask"] = [error]
    requests = come(bench, 3, "wait", "r1")
    bench.run(1.0)
    assert ends(requests) == ["failed", "started", "started"]


def test_outage_sends_all_waiting_requests_back(bench: Bench) -> None:
    """Each would wait for the time-out of a store that hangs."""
    bench.on_step["ask"] = [StoreUnavailable("no answer")]
    requests = come(bench, 5, "retry", "r1")
    bench.run(THREAD_LATENCY)
    assert (ends(requests), bench.lost) == (["sent back"] * 5, True)


def test_process_is_kept_for_a_request_being_parked(bench: Bench) -> None:
    bench.processes, bench.mean_runtime = 2, lambda name: 20.0  # type: ignore[method-assign, assignment]
    bench.has_parked_tasks = True
    limited, plain = come(bench, 1, "retry", "r1"), come(bench, 2, "plain")
    assert (ends(limited), ends(plain)) == ([""], ["started", ""])
    bench.run(THREAD_LATENCY)
    assert (ends(limited), ends(plain)) == (["parked"], ["started", ""]), "it may come back to this worker"


def test_queue_sets_no_alarm_during_its_call(bench: Bench) -> None:
    come(bench, 2, "retry", "r1")
    (limit_queue,) = bench.gate._queues
    assert limit_queue.alarm > bench.now + THREAD_LATENCY


# -- Store calls -------------------------------------------------------------------------------------------------------


def test_pending_call_is_not_made_after_the_connection_is_lost(bench: Bench) -> None:
    """Another worker may have the message: parked here, it would run twice."""
    bench.has_parked_tasks, made = True, []
    bench.on_step["park"] = [lambda: made.append("parked")]
    requests = come(bench, 1, "retry", "r1")
    bench.lose_connection()
    bench.run(1.0)
    assert (ends(requests), made) == (["lost"], [])


def test_wait_for_a_free_thread_is_not_latency(bench: Bench) -> None:
    """A call may wait for one of four threads: the latency of the store is the same."""
    calls, seconds = bench.gate._store_calls, []
    calls.submit(lambda: None, lambda reply: seconds.append(reply.seconds))
    bench.timers[-1] = (bench.now + 1.0, *bench.timers[-1][1:])  # a thread is free after a second
    bench.run(1.0)
    assert seconds == [0.0]
    assert bench.gate._store_calls.latency.round_trip < 0.1


def test_request_behind_a_park_call_is_parked_once_when_latency_drops(bench: Bench) -> None:
    """The worker believed that tasks were parked, and parked the request again for ever."""
    bench.tats["r1"] = bench.tats["r2"] = bench.now + 5.0
    requests = come(bench, 1, "retry", "r1")
    bench.run(THREAD_LATENCY / 2)
    bench.seconds_away = 1.0
    bench.run(THREAD_LATENCY / 2)  # it is refused, and being parked for a second
    bench.seconds_away = THREAD_LATENCY
    requests += come(bench, 1, "retry", "r2")
    bench.run(THREAD_LATENCY)
    bench.is_far = False
    bench.park_results = [EMPTY] * 50
    requests += come(bench, 1, "retry", "r2")
    assert bench.park_sizes == []
    bench.run(1.0)
    assert (ends(requests), bench.park_sizes) == (["parked"] * 3, [1, 2])
    bench.check_empty()


# -- Reports ---------------------------------------------------------------------------------------------------------


def test_unconfirmed_park_does_not_acquire_after_a_lost_connection(bench: Bench) -> None:
    """It is parked, and the broker has its message: it would run here and once more when it returns."""
    bench.has_parked_tasks, bench.park_results = True, [ParkResult("full"), ParkResult("parked")]
    come(bench, 2, "retry", "r1")
    bench.on_step["announce"] = [Lost()]
    bench.run(3 * THREAD_LATENCY)
    assert (bench.lost_connections, bench.acquire_sizes, bench.running) == (1, [], {})
    bench.check()
