"""The fleet's app with packages and options that tasks are often combined with."""

from __future__ import annotations

import os
from typing import Any

import pydantic
from celery_heimdall import HeimdallTask
from celery_once import QueueOnce
from celery_singleton import Singleton

from celery_ratelimit import Limit, RateLimitedMixin, RateLimitedTask
from celery_ratelimit.signals import task_throttled_out
from tests.apps.fleet import app, note

__all__ = ["app"]

app.conf.singleton_backend_url = os.environ.get("TEST_BACKEND")
app.conf.ONCE = {
    "backend": "celery_once.backends.Redis",
    "settings": {"url": os.environ.get("TEST_BACKEND"), "default_timeout": 3600},
}


class Order(pydantic.BaseModel):
    tenant_id: str = pydantic.Field(alias="tenantId")
    weight: int = 1


@app.task(
    base=RateLimitedTask,
    pydantic=True,
    throttle="drop",
    name="modelled",
    limits=Limit("1/h", burst=3, key="{order.tenant_id}", cost="order.weight"),
)
def modelled(order: Order, index: int) -> str:
    note(index)
    return f"{order.tenant_id} {order.weight}"


def keep(kind: str, *said: Any) -> None:
    with open(os.path.join(os.environ["TEST_RECORDS"], kind), "a") as file:
        file.write(" ".join(map(str, said)) + "\n")


@task_throttled_out.connect
def write(sender: Any, task_id: str, args: Any, kwargs: Any, outcome: str, reason: str, **_: Any) -> None:
    keep("out", sender.name, args[0], outcome)


class Kept(RateLimitedTask):
    def on_throttled_out(self, outcome: str, task_id: str, args: Any, kwargs: Any) -> None:
        assert self.request.id == task_id
        keep("hooks", self.name, args[0], outcome)


class SingletonTask(RateLimitedMixin, Singleton):
    def on_throttled_out(self, outcome: str, task_id: str, args: Any, kwargs: Any) -> None:
        self.release_lock(args, kwargs)


class OnceTask(RateLimitedMixin, QueueOnce):
    def on_throttled_out(self, outcome: str, task_id: str, args: Any, kwargs: Any) -> None:
        self.after_return("REVOKED", None, task_id, args, kwargs, None)


class UniqueTask(RateLimitedMixin, HeimdallTask):
    def on_throttled_out(self, outcome: str, task_id: str, args: Any, kwargs: Any) -> None:
        self.after_return("REVOKED", None, task_id, args, kwargs, None)


LOCKING = {
    "singleton": (SingletonTask, {}),
    "once": (OnceTask, {}),
    "unique": (UniqueTask, {"heimdall": {"unique": True, "unique_raises": True, "unique_lock_blocking": False}}),
}


@app.task(name="call")
def call(name: str, index: int) -> str:
    """Calls a task as its users do, in a process that has its class."""
    return str(app.tasks[name].delay(index).id)


def body(index: int) -> int:
    note(index)
    return index


for _name, (_base, _options) in LOCKING.items():
    for _throttle in ("drop", "fail"):
        app.task(base=_base, name=f"{_name}.{_throttle}", limits="1/h", throttle=_throttle, **_options)(body)

app.task(base=Kept, name="dropped", limits="1/h", throttle="drop")(body)
app.task(base=Kept, name="overflowed", limits="1/h", max_wait=1, overflow="drop")(body)
app.task(base=Kept, name="coalesced", limits="1/h", coalesce="newest", coalesce_key=lambda index: "all")(body)
app.task(base=Kept, name="parked", limits="1/h")(body)
app.task(base=Kept, name="held", limits="3/m", throttle="wait")(body)
app.task(base=Kept, name="failed", limits="1/h", throttle="fail")(body)
