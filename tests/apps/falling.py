"""Tasks whose hooks raise: what users write, and what must end nothing but the task itself."""

from __future__ import annotations

from typing import Any

from celery import signals

from celery_ratelimit import Limit, RateLimitedTask
from tests.apps.fleet import RATE, app, note
from tests.apps.messages import say


class Falling(RateLimitedTask):
    """Its ``on_failure`` raises."""

    abstract = True

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        say("on_failure", id=task_id, request=self.request.id, args=list(self.request.args or ()))
        if args and args[0] == "exit":
            raise SystemExit(3)
        raise ValueError("on_failure is broken")


class NoBackend:
    """A result backend that is out of order."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("the result backend is broken")


@signals.task_failure.connect
def broken_receiver(task_id: str, **_: Any) -> None:
    say("task_failure", id=task_id)
    raise ValueError("the receiver is broken")


def broken_key(index: Any) -> str:
    raise LookupError("no such tenant")


@app.task(base=Falling, limits=Limit(RATE, name="shared"), throttle="fail")
def failing(index: Any) -> None:
    note(0)


@app.task(base=Falling, limits=Limit(RATE, name="shared"), max_wait=0.1)
def impatient(index: Any) -> None:
    note(0)


@app.task(base=Falling, limits=Limit(RATE, key=broken_key))
def keyless(index: Any) -> None:
    note(0)


@app.task(base=Falling, limits=Limit(RATE, name="shared"), throttle="fail")
def storeless(index: Any) -> None:
    note(0)


@app.task(base=Falling, limits=Limit(RATE, name="shared"), throttle="drop")
def dropped(index: Any) -> None:
    note(0)


storeless.backend = dropped.backend = NoBackend()


@app.task(base=RateLimitedTask, limits=Limit("1000/s", burst=1000))
def good(index: int) -> int:
    note(index)
    return index


@app.task(base=RateLimitedTask, limits=Limit("5/s", burst=5, key="{tenant}"))
def of_tenant(index: int, tenant: str) -> int:
    note(index)
    return index


@app.task(base=RateLimitedTask, limits=Limit("20/s", key="{tenant}"), throttle="wait")
def waiting_tenant(index: int, tenant: str) -> int:
    note(index)
    return index


@app.task
def plainest(index: int, *args: Any, **kwargs: Any) -> int:
    note(index)
    return index
