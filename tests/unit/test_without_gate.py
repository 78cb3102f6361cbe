"""Where no gate is, a running task acquires its own permit, by the rules of the gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Ignore

from celery_ratelimit import Limit, RateLimitedTask, Throttled


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes a task of a limit that no other test has: a store in memory is one for the whole process."""

    def make_task(rate: str, algorithm: dict[str, Any], **options: Any) -> Any:
        app = Celery("a", broker="memory://", set_as_current=False)
        app.conf.ratelimit_url = "memory://"
        limit = Limit(rate, name=request.node.name, **algorithm)
        return app.task(base=RateLimitedTask, limits=limit, **options)(charge)

    return make_task


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
    except Throttled as error:
        return type(error)
    finally:
        task.pop_request()
    return "runs"


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
def test_a_task_that_is_refused(make: Callable[..., Any], options: dict[str, Any], outcome: Any) -> None:
    task = make("6/m", {}, **options)
    assert run(task, 1) == "runs"
    assert run(task, 2) == outcome


@pytest.mark.parametrize("queue", ["celery", "later"])
def test_a_full_bucket_sends_a_task_to_another_queue_but_not_to_its_own(make: Callable[..., Any], queue: str) -> None:
    task = make("6/m", {"algorithm": "leaky_bucket", "capacity": 1}, overflow="later")
    outcomes = [run(task, index, queue) for index in range(4)]
    assert outcomes[0] == "runs"
    assert ({"queue": "later"} in outcomes) is (queue == "celery"), outcomes
