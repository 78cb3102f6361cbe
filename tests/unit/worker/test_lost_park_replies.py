"""Requests whose park call has no reply are held, and parked again when the store answers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from celery_ratelimit import StoreUnavailable
from celery_ratelimit.backlog.backlog import ParkResult
from celery_ratelimit.errors import StoreMisconfigured
from tests.parks import EMPTY
from tests.unit.worker.gate_bench import Bench, Lost, Request

NO_ANSWER = StoreUnavailable("no answer")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(monkeypatch, processes=4)
    bench.has_parked_tasks = True
    return bench


def ends(requests: Sequence[Request]) -> list[str]:
    return [" ".join(request.ends) for request in requests]


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
    bench = Bench(monkeypatch, choice, processes=4, seconds_away=seconds_away)
    bench.has_parked_tasks = True
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


def test_misconfigured_store_sends_requests_back(bench: Bench) -> None:
    """A repeated call would fail alike."""
    bench.on_step["park"] = [StoreMisconfigured("no rights")]
    requests = bench.receive_batch([bench.task("retry", "r1")] * 2)
    assert ends(requests) == ["sent back", "sent back"]
    bench.check_empty()


def test_cancelled_call_is_not_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store was lost while the call waited for a thread."""
    bench = Bench(monkeypatch, processes=4, seconds_away=0.02)
    bench.has_parked_tasks = True
    requests = bench.receive_batch([bench.task("retry", "r1")] * 2)
    bench.begin(NO_ANSWER)
    bench.run(0.02)
    assert ends(requests) == ["sent back", "sent back"]
    held = lose_reply_far(bench)
    bench.begin(NO_ANSWER)
    bench.run(1.0)
    assert (ends(held), bench.attempts[-2:]) == (["", ""], [[0, 0], [1, 1]])
    bench.end_outage()
    bench.run(0.02)
    assert (ends(held), bench.attempts[-1]) == (["parked", "parked"], [1, 1])


def lose_reply_far(bench: Bench) -> list[Request]:
    """A reply is lost, and the call is about to be repeated."""
    bench.end_outage()
    requests = lose_reply(bench, 2)
    bench.run(0.02)
    assert ends(requests) == ["", ""]
    bench.end_outage()
    return requests


def test_script_error_repeats_each_park_alone(bench: Bench) -> None:
    bench.on_step["park"] = [ZeroDivisionError("unforeseen")]
    requests = bench.receive_batch([bench.task("retry", "r1")] * 2)
    assert ends(requests) == ["parked", "parked"]
    assert bench.attempts == [[0, 0], [1], [1]]


def test_requests_behind_a_lost_reply_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the ones that may be parked are held."""
    bench = Bench(monkeypatch, processes=4, seconds_away=0.02)
    bench.has_parked_tasks = True
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
