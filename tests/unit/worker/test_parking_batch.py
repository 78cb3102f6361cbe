"""Requests behind parked tasks are parked by one script call; without a reply they are held, and parked again."""

from __future__ import annotations

from typing import Any

import pytest

from celery_ratelimit import StoreUnavailable
from celery_ratelimit.backlog.backlog import ParkResult
from celery_ratelimit.errors import StoreMisconfigured
from tests.parks import EMPTY
from tests.unit.worker.gate_bench import Bench, Lost, Request, ends

NO_ANSWER = StoreUnavailable("no answer")
BUG = ZeroDivisionError("unforeseen")


def behind_parked_tasks(monkeypatch: pytest.MonkeyPatch, *how: Any, **options: Any) -> Bench:
    bench = Bench(monkeypatch, *how, processes=4, **options)
    bench.has_parked_tasks = True
    return bench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return behind_parked_tasks(monkeypatch)


def test_requests_of_a_bucket_are_parked_by_one_script(bench: Bench) -> None:
    first, second = bench.task("retry", "r1"), bench.task("retry", "r2")
    requests = bench.receive_batch([first, second, first, first])
    assert (ends(requests), bench.park_sizes) == (["parked"] * 4, [3, 1])
    bench.check_empty()


def test_unlimited_task_starts_before_the_batch_is_parked(bench: Bench) -> None:
    limited, plain = bench.task("retry", "r1"), bench.task("plain")
    order: list[str] = []
    bench.on_step["park"] = [lambda: order.append("parked")]
    bench.on_step["start"] = [lambda: order.append("started")]
    assert ends(bench.receive_batch([limited, plain, limited])) == ["parked", "started", "parked"]
    assert order == ["started", "parked"]


def test_process_is_kept_for_the_next_returning_task(bench: Bench) -> None:
    """Tasks ahead of them may return to this worker: long tasks must not take all processes."""
    bench.processes, bench.mean_runtime = 2, lambda name: 20.0  # type: ignore[method-assign]
    limited, plain = bench.task("retry", "r1"), bench.task("plain")
    bench.receive_batch([limited, limited])
    requests = [bench.receive(plain) for _ in range(3)]
    assert ends(requests) == ["started", "", ""]
    bench.run(0.9)
    assert ends(requests) == ["started", "", ""]
    bench.run(0.4)
    assert ends(requests) == ["started", "started", ""], "no task has returned"
    bench.finish()
    bench.run(0.03)
    assert ends(requests) == ["started", "started", "started"]


@pytest.mark.parametrize("seconds_away", [0.0, 0.02])
def test_empty_backlog_lets_requests_acquire(monkeypatch: pytest.MonkeyPatch, seconds_away: float) -> None:
    bench = behind_parked_tasks(monkeypatch, seconds_away=seconds_away)
    bench.park_results = [EMPTY, EMPTY, EMPTY]
    requests = bench.receive_batch([bench.task("retry", "r1")] * 3)
    bench.run(5 * seconds_away)
    assert ends(requests) == ["started", "parked", "parked"]
    bench.check_empty()


def test_outage_parks_no_further_buckets(bench: Bench) -> None:
    first, second = bench.task("retry", "r1"), bench.task("retry", "r2")
    bench.on_step["park"] = [NO_ANSWER]
    requests = bench.receive_batch([first, second, second])
    assert (ends(requests), bench.park_sizes) == (["", "sent back", "sent back"], [])
    bench.check()
    bench.end_outage()
    assert ends([*requests, bench.receive(first)]) == ["parked", "sent back", "sent back", "parked"]


@pytest.mark.parametrize(
    ("errors", "end", "attempts"),
    [
        ([StoreMisconfigured("no rights")], ["sent back", "sent back"], [[0, 0]]),  # a repeated call would fail alike
        ([BUG], ["parked", "parked"], [[0, 0], [1], [1]]),
        ([BUG, BUG], ["failed", "parked"], [[0, 0], [1], [1]]),
    ],
)
def test_failed_script_parks_each_request_alone_unless_the_store_is_misconfigured(
    bench: Bench, errors: list[Exception], end: list[str], attempts: list[list[int]]
) -> None:
    bench.on_step["park"] = list(errors)
    requests = bench.receive_batch([bench.task("retry", "r1")] * 2)
    assert (ends(requests), bench.attempts) == (end, attempts)
    bench.check_empty()


@pytest.mark.parametrize(("step", "happens"), [("pack", [None, Lost()]), ("park", [Lost()])])
def test_connection_lost_during_a_park_call_parks_nothing(bench: Bench, step: str, happens: list[Any]) -> None:
    bench.on_step[step] = list(happens)
    requests = bench.receive_batch([bench.task("retry", "r1")] * 3)
    assert (ends(requests), bench.park_sizes) == (["lost"] * 3, [])
    bench.check_empty()


def test_error_in_dispatch_does_not_block_parking(bench: Bench) -> None:
    scheduler: Any = bench.gate._scheduler
    dispatch = scheduler.dispatch

    def dispatch_and_raise(queues: Any = ()) -> None:
        scheduler.dispatch = dispatch
        dispatch(queues)
        raise BUG

    scheduler.dispatch = dispatch_and_raise
    assert ends(bench.receive_batch([bench.task("retry", "r1")] * 2)) == ["parked", "parked"]


# -- Lost replies ------------------------------------------------------------------------------------------------------


def lose_reply(bench: Bench, number: int) -> list[Request]:
    """Requests are to be parked, and no reply comes."""
    bench.on_step["park"] = [NO_ANSWER]
    return bench.receive_batch([bench.task("retry", "r1")] * number)


@pytest.mark.parametrize("choice", ["defer", "allow", "local", "raise"])
@pytest.mark.parametrize("seconds_away", [0.0, 0.02])
def test_possibly_parked_requests_are_held_until_the_store_answers(
    monkeypatch: pytest.MonkeyPatch, choice: str, seconds_away: float
) -> None:
    """They may be parked: no request starts or is given up."""
    bench = behind_parked_tasks(monkeypatch, choice, seconds_away=seconds_away)
    requests = lose_reply(bench, 3)
    bench.run(60.0)
    assert (ends(requests), bench.lost) == ([""] * 3, True)
    assert bench.attempts == [[0, 0, 0]], "the store is not called while it is lost"
    bench.end_outage()
    bench.run(seconds_away)
    assert (ends(requests), bench.attempts) == (["parked"] * 3, [[0, 0, 0], [1, 1, 1]])
    bench.check_empty()


def test_other_messages_are_received_during_the_hold(bench: Bench) -> None:
    lose_reply(bench, 3)
    assert bench.widened == 3
    plain = bench.receive(bench.task("plain"))
    later = bench.receive(bench.task("retry", "r1"))
    assert ends([plain, later]) == ["started", "sent back"]
    bench.end_outage()
    assert bench.widened == 0


def test_flush_runs_at_most_ten_times_a_second(bench: Bench) -> None:
    """Nothing spins."""
    lose_reply(bench, 3)
    looks: list[float] = []
    flush = bench.gate._batch.flush
    bench.gate._batch.flush = lambda *how: (looks.append(bench.now), flush(*how))  # type: ignore[method-assign, func-returns-value]
    bench.run(10.0)
    assert len(looks) <= 101


def test_after_two_lost_replies_requests_are_parked_one_by_one(bench: Bench) -> None:
    """A single request may be too large for the store."""
    requests = lose_reply(bench, 2)
    for _ in range(2):
        bench.on_step["park"] = [NO_ANSWER]
        bench.end_outage()
        assert ends(requests) == ["", ""]
    bench.end_outage()
    assert ends(requests) == ["parked", "parked"]
    assert bench.attempts == [[0, 0], [1, 1], [2], [3], [2]]
    bench.check_empty()


def test_held_requests_acquire_if_the_backlog_is_empty(bench: Bench) -> None:
    requests = lose_reply(bench, 2)
    bench.park_results = [EMPTY, EMPTY]
    bench.end_outage()
    assert ends(requests)[0] == "started"
    assert bench.attempts[2:] == [[1]], "the number is kept: an earlier call may still come"
    bench.finish()
    bench.run(1.0)
    assert "" not in ends(requests)


def test_held_message_is_sent_back_before_the_consumer_timeout(bench: Bench) -> None:
    requests = lose_reply(bench, 2)
    bench.run(1439.0)
    assert ends(requests) == ["", ""]
    bench.run(2.0)
    assert ends(requests) == ["sent back", "sent back"]
    bench.end_outage()
    assert bench.attempts == [[0, 0]]
    bench.check_empty()


@pytest.mark.parametrize("during_the_repeat", [False, True])
def test_lost_connection_ends_held_requests(bench: Bench, during_the_repeat: bool) -> None:
    requests = lose_reply(bench, 2)
    if during_the_repeat:
        bench.on_step["park"] = [Lost()]
        bench.end_outage()
    else:
        bench.lose_connection()
    assert ends(requests) == ["lost", "lost"]
    bench.run(1.0)
    assert bench.attempts == [[0, 0], *([[1, 1]] if during_the_repeat else [])]
    bench.check_empty()


def test_cancelled_call_is_not_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store was lost while the call waited for a thread."""
    bench = behind_parked_tasks(monkeypatch, seconds_away=0.02)
    requests = bench.receive_batch([bench.task("retry", "r1")] * 2)
    bench.begin(NO_ANSWER)
    bench.run(0.02)
    assert ends(requests) == ["sent back", "sent back"]
    bench.end_outage()
    held = lose_reply(bench, 2)
    bench.run(0.02)
    assert ends(held) == ["", ""]
    bench.end_outage()  # the call is about to be repeated
    bench.begin(NO_ANSWER)
    bench.run(1.0)
    assert (ends(held), bench.attempts[-2:]) == (["", ""], [[0, 0], [1, 1]])
    bench.end_outage()
    bench.run(0.02)
    assert (ends(held), bench.attempts[-1]) == (["parked", "parked"], [1, 1])


def test_requests_behind_a_lost_reply_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the ones that may be parked are held."""
    bench = behind_parked_tasks(monkeypatch, seconds_away=0.02)
    first = lose_reply(bench, 2)
    second = bench.receive(bench.task("retry", "r1"))
    bench.run(0.02)
    assert ends([*first, second]) == ["", "", "sent back"]
    bench.end_outage()
    bench.run(0.02)
    assert ends(first) == ["parked", "parked"]
    bench.check_empty()


def test_held_task_that_no_longer_fits_is_redirected(bench: Bench) -> None:
    bench.has_parked_tasks, bench.tats["r1"] = False, bench.now + 5.0
    bench.on_step["park"] = [NO_ANSWER]
    request = bench.receive(bench.task("retry", "r1", max_wait=10.0, overflow="later"))
    assert request.ends == []
    bench.park_results = [ParkResult("full", 100)]
    bench.end_outage()
    assert request.ends == ["redirected"]
    bench.check_empty()
