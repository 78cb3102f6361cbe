"""A running task acquires its own permit where the worker has no gate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from celery.exceptions import Ignore
from kombu import Queue

from celery_ratelimit import Limit, Limiter, RateLimitedTask, StoreUnavailable, Throttled
from celery_ratelimit.signals import task_throttled_out
from celery_ratelimit.testing import EmbeddedServer, clear_memory


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    """Makes a task of a limit in an empty store."""

    def make_task(rate: str = "6/m", algorithm: dict[str, Any] | None = None, **options: Any) -> Any:
        app = Celery("a", broker="memory://", set_as_current=False)
        app.conf.ratelimit_url = "memory://"
        limit = Limit(rate, name="api", **(algorithm or {}))
        return app.task(base=RateLimitedTask, limits=limit, **options)(charge)

    clear_memory()
    yield make_task
    clear_memory()


BRIEF = {"x-consumer-timeout": 10_000}


def charge(index: int) -> None: ...


def run(task: Any, index: int = 0, queue: str = "celery") -> Any:
    """What becomes of a run of a task; where it is sent again, with which options."""
    sent: list[Any] = []
    task.push_request(
        id=str(index), args=(index,), kwargs={}, called_directly=False, delivery_info={"routing_key": queue}
    )
    try:
        task.apply_async = lambda *args, **options: sent.append(options)
        task.before_start(str(index), (index,), {})
    except Ignore:
        return {name: sent[0][name] for name in ("countdown", "queue") if name in sent[0]} if sent else "dropped"
    except (Throttled, StoreUnavailable) as error:
        return type(error)
    finally:
        task.pop_request()
    return "runs"


@pytest.mark.parametrize(
    ("conf", "countdown"),
    [
        ({"broker_transport_options": {"visibility_timeout": 100}}, 40),
        ({}, 720),
        ({"task_queues": [Queue("celery"), Queue("brief", routing_key="b", queue_arguments=BRIEF)]}, 4),
    ],
)
def test_no_countdown_is_so_long_that_the_broker_delivers_the_message_again(
    make: Callable[..., Any], conf: dict[str, Any], countdown: float
) -> None:
    task = make("1/h")
    task.app.conf.update(conf)
    assert run(task, 1) == "runs"
    assert run(task, 2, "b" if "task_queues" in conf else "celery") == {"countdown": pytest.approx(countdown)}


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ({}, {"countdown": pytest.approx(10, abs=0.5)}),
        ({"throttle": "wait"}, {"countdown": pytest.approx(10, abs=0.5)}),
        ({"throttle": "drop"}, "dropped"),
        ({"throttle": "fail"}, Throttled),
        ({"max_wait": 60}, {"countdown": pytest.approx(10, abs=0.5)}),
        ({"max_wait": 1}, Throttled),
        ({"max_wait": 1, "overflow": "drop"}, "dropped"),
        ({"max_wait": 1, "overflow": "later"}, {"queue": "later"}),
    ],
)
def test_refused_task(make: Callable[..., Any], options: dict[str, Any], outcome: Any) -> None:
    task = make(**options)
    assert run(task, 1) == "runs"
    assert run(task, 2) == outcome


@pytest.mark.parametrize("options", [{"throttle": "drop"}, {"max_wait": 1, "overflow": "drop"}])
@pytest.mark.parametrize("error", [None, ValueError("broken"), SystemExit(3)])
def test_dropped_task_is_signalled_though_its_hook_raises(
    make: Callable[..., Any], options: dict[str, Any], error: BaseException | None
) -> None:
    told: list[Any] = []

    def on_throttled_out(self: Any, *call: Any) -> None:
        told.append((self.request.id, *call))
        if error is not None:
            raise error

    def receive(sender: Any, outcome: str, task_id: str, args: Any, kwargs: Any, reason: str, **_: Any) -> None:
        assert reason.startswith("throttled by limit")
        told.append((sender.name, outcome, task_id, args, kwargs))

    task = make(on_throttled_out=on_throttled_out, **options)
    task_throttled_out.connect(receive)
    try:
        assert [run(task, 1), run(task, 2)] == ["runs", "dropped"]
    finally:
        task_throttled_out.disconnect(receive)
    assert told == [("2", "dropped", "2", (2,), {}), (task.name, "dropped", "2", (2,), {})]


@pytest.mark.parametrize("queue", ["celery", "later"])
def test_a_full_bucket_sends_a_task_to_another_queue_but_not_to_its_own(make: Callable[..., Any], queue: str) -> None:
    task = make(algorithm={"algorithm": "leaky_bucket", "capacity": 1}, overflow="later")
    outcomes = [run(task, index, queue) for index in range(4)]
    assert outcomes[0] == "runs"
    assert ({"queue": "later"} in outcomes) is (queue == "celery"), outcomes


@pytest.mark.parametrize("kind", ["redis", "redis+cluster"])
@pytest.mark.parametrize(
    ("choice", "outcome"),
    [
        ("defer", {"countdown": pytest.approx(1, abs=0.5)}),
        ("local", {"countdown": pytest.approx(1, abs=0.5)}),
        ("allow", "runs"),
        ("raise", StoreUnavailable),
    ],
)
def test_task_during_an_outage(caplog: pytest.LogCaptureFixture, kind: str, choice: str, outcome: Any) -> None:
    app = Celery("a", broker="memory://", set_as_current=False)
    app.conf.update(ratelimit_url=f"{kind}://127.0.0.1:1/0", ratelimit_on_store_error=choice)
    task = app.task(base=RateLimitedTask, limits="1/h")(charge)
    assert [run(task, index) for index in range(3)] == [outcome] * 3
    assert caplog.text.count("Limited tasks are handled as ratelimit_on_store_error says") == 1


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ({}, "returned"),
        ({"throttle": "drop"}, "dropped"),
        ({"throttle": "fail"}, "failed"),
        ({"max_wait": 1, "overflow": "later"}, "diverted"),
    ],
)
def test_outcome_of_a_task_is_counted(
    server: EmbeddedServer, store: redis.Redis, options: dict[str, Any], outcome: str
) -> None:
    app = Celery("a", broker=server.url, set_as_current=False)
    limits = [Limit("100/s", burst=9, name="other"), Limit("1/h", name="api")]
    task = app.task(base=RateLimitedTask, limits=limits, name="charge", **options)(charge)
    limiter = Limiter.from_app(app)
    for index in range(2):
        run(task, index)
    assert limiter._counting is not None
    limiter._counting.send()
    api, other = limiter.stats(["api", "other"], force=True).values()
    assert {name: number for name, number in api.results.items() if number} == {"acquired": 1, outcome: 1}
    assert {name: number for name, number in other.results.items() if number} == {"acquired": 1}
    assert api.permits == 1
    assert {(user.kind, user.name) for user in api.users} == {("task", "charge"), ("queue", "celery")}
