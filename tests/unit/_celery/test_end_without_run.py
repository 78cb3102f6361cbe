"""Tasks that end in the main process are stored on a thread and end once, at the latest at a deadline."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context
from celery.worker.request import Request

from celery_ratelimit import RateLimitedTask
from celery_ratelimit._celery import end_without_run, requests
from celery_ratelimit._celery.end_without_run import DEADLINE, SLOW, STALLED, FinalStates


def body() -> None: ...


class Ending:
    """A request, and what has happened to it."""

    expires = None
    store_errors, _already_revoked = True, False

    def __init__(self, id: str, states: FinalStates | None = None) -> None:
        self.id, self.name, self.events = id, "task", list[str]()
        self.task = Celery(set_as_current=False).task(body, name="task")
        self.task.backend = SimpleNamespace(mark_as_revoked=lambda *_, **__: self.events.append("stored"))
        self._context = Context(id=id)
        self.message = SimpleNamespace(delivery_info={}, ratelimit_final_states=states)

    def acknowledge(self) -> None:
        self.events.append("acknowledged")

    def send_event(self, name: str, **_: Any) -> None:
        self.events.append(name)


class Loop:
    """A worker's loop, in the test's thread: its timers fire when the test says so."""

    lock = nullcontext()

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: queue.Queue[Callable[[], None]] = queue.Queue()
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.widened = 0
        self.revoked: list[Any] = []
        prefetch: Any = SimpleNamespace(widen=self.widen)
        self.states = FinalStates(self, prefetch, lambda *said: self.revoked.append(said))  # type: ignore[arg-type]

    def widen(self, number: int) -> None:
        self.widened += number

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.put(call)

    def guarded(self, call: Callable[[], None]) -> Callable[[], None]:
        return call

    def call_after(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        self.timers.append((seconds, call))
        return self.timers.clear

    def fire(self, seconds: float) -> None:
        """``seconds`` later."""
        self.now += seconds
        ((_, call),) = self.timers or [(0, bool)]
        self.timers.clear()
        call()

    def end(self, request: Ending, store: Callable[[], object]) -> None:
        self.states.end(
            request, lambda **_: store(), ("a step", lambda: request.events.append(request.task.request.id or ""))
        )

    def turn(self) -> None:
        """Until a thread has stored a state."""
        self.calls.get(timeout=20)()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    made = Loop()
    monkeypatch.setattr(end_without_run, "monotonic", lambda: made.now)
    yield made
    made.states._waiting.put(None)


class Hang:
    """A backend that does not answer until it is told to."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        self.over.wait()


@pytest.fixture
def hangs() -> Iterator[Hang]:
    made = Hang()
    yield made
    made.over.set()


ENDED = ["1", "acknowledged"]


def begin(loop: Loop, hangs: Hang, *requests: Ending) -> None:
    """These requests end; the backend hangs at the first."""
    for request in requests:
        loop.end(request, hangs)
    hangs.begun.wait(20)


def test_state_is_stored_on_a_thread_and_the_end_follows_in_the_loop(loop: Loop) -> None:
    request, threads = Ending("1"), list[int]()
    loop.end(request, lambda: threads.append(threading.get_ident()))
    assert request.events == []
    loop.turn()
    assert request.events == ENDED
    assert threads != [threading.get_ident()]
    loop.fire(SLOW)
    assert (request.events, loop.widened, loop.timers) == (ENDED, 0, [])


def test_backend_error_is_logged_and_the_task_ends(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    request = Ending("1")
    loop.end(request, lambda: [][0])
    loop.turn()
    assert request.events == ENDED
    assert "Task task[1] ends, but its result backend raised IndexError" in caplog.text


def test_hanging_backend_ends_tasks_at_the_deadline(loop: Loop, hangs: Hang, caplog: pytest.LogCaptureFixture) -> None:
    """Its late reply changes nothing. A task that has ended is not stored."""
    stored = list[str]()
    first, second, third = requests = [Ending("1"), Ending("2"), Ending("3")]
    begin(loop, hangs, first)
    loop.end(second, partial(stored.append, "2"))
    loop.fire(SLOW)
    assert loop.widened == 2, "both have left the prefetch"
    assert [request.events for request in requests] == [[], [], []]
    loop.fire(DEADLINE)
    assert [request.events for request in requests] == [ENDED, ["2", "acknowledged"], []]
    assert loop.widened == 0
    lines = [(each.levelno, each.getMessage()) for each in caplog.records]
    text = "ends, but its state is not in the result backend: it has not answered within 15 s"
    assert lines == [(logging.ERROR, f"Task task[{id}] {text}") for id in "12"]
    hangs.over.set()
    loop.turn()
    loop.end(third, partial(stored.append, "3"))
    loop.turn()
    assert (stored, first.events, len(caplog.records)) == (["3"], ENDED, 2)


def test_number_of_waiting_states_is_bounded(
    loop: Loop, hangs: Hang, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(end_without_run, "MAX_WAITING", 3)
    begin(loop, hangs, Ending("hangs"))
    requests = [Ending(str(number)) for number in range(5)]
    loop.now += STALLED
    for request in requests:
        loop.end(request, hangs)
    assert [request.events for request in requests] == [[], [], [], ["3", "acknowledged"], ["4", "acknowledged"]]
    assert caplog.text.count("its state is not in the result backend: 3 others are to be stored before it") == 2


def test_slow_backend_that_answers_ends_no_task_early(loop: Loop, hangs: Hang) -> None:
    """However many states wait. Their messages stay in the prefetch, unless one state takes long."""
    requests = [Ending(str(number)) for number in range(3)]
    begin(loop, hangs, *requests)
    for seconds, widened in ((SLOW / 2, 0), (SLOW, 3), (SLOW, 3)):
        loop.now += DEADLINE
        loop.states._busy_since = loop.now  # with the next one
        loop.fire(seconds)
        assert ([request.events for request in requests], loop.widened) == ([[], [], []], widened)


def test_stopping_worker_waits_briefly_for_states(
    loop: Loop, hangs: Hang, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(end_without_run, "LAST_STATES", 1e-3)
    stored, left = Ending("1"), Ending("2")
    loop.end(stored, lambda: None)
    call = loop.calls.get(timeout=20)  # the loop has ended before its turn
    loop.end(left, hangs)
    loop.states.close(stopping=True)
    assert (stored.events, left.events) == (ENDED, []), "the message of the other one goes back"
    assert [each.getMessage() for each in caplog.records] == [
        "Task task[2] ends, but its state is not in the result backend: this worker stops, and its message goes back"
    ]
    call()
    loop.fire(SLOW)
    assert (stored.events, left.events, loop.widened) == (ENDED, [], 0)


def test_state_thread_ends_with_the_worker(loop: Loop) -> None:
    before = {*threading.enumerate()}
    loop.end(Ending("1"), lambda: None)
    (thread,) = {*threading.enumerate()} - before
    assert thread.daemon, "it cannot hold back the end of the process"
    loop.states.close(stopping=True)
    thread.join(20)
    assert not thread.is_alive()


def test_lost_connection_leaves_messages_to_the_broker(
    loop: Loop, hangs: Hang, caplog: pytest.LogCaptureFixture
) -> None:
    request = Ending("1")
    begin(loop, hangs, request)
    loop.states.close(stopping=False)
    for seconds in (SLOW, DEADLINE):
        loop.fire(seconds)
    assert (request.events, caplog.text, loop.widened) == ([], "", 0)


def test_task_ends_once(loop: Loop) -> None:
    request = Ending("1")
    for _ in range(2):
        loop.end(request, lambda: None)
    loop.turn()
    assert request.events == ENDED
    assert loop.calls.empty()


def test_revoked_task_is_stored_on_the_thread(loop: Loop) -> None:
    request: Any = Ending("1", loop.states)
    Request._announce_revoked(request, "expired", False, None, True)
    assert request._already_revoked
    assert loop.revoked == [(request.task, request._context, True)]
    loop.turn()
    assert request.events == ["stored", "task-revoked", "acknowledged"]


@pytest.mark.parametrize("terminated", [False, True])
def test_terminated_task_is_stored_by_celery(loop: Loop, terminated: bool) -> None:
    """It was terminated while it ran, or its message came by another consumer."""
    request: Any = Ending("1", loop.states if terminated else None)
    Request._announce_revoked(request, "revoked", terminated, None, False)
    assert request.events == ["task-revoked", "stored", "acknowledged"]
    assert loop.revoked == []


def test_async_hook_of_a_task_is_logged_and_not_run(
    caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    class Locked(RateLimitedTask):
        async def on_throttled_out(self, outcome: str, id: str, args: Any, kwargs: Any) -> None:
            raise AssertionError("it was not to run")

    task = Celery(set_as_current=False).task(body, base=Locked, name="locked")
    requests.throttled_out(task, Context(id="1", args=(), kwargs={}), "dropped", "throttled")
    assert "Task locked[1] ends, but its on_throttled_out raised TypeError('it is async" in caplog.text
    assert not [each for each in recwarn if "never awaited" in str(each.message)]
