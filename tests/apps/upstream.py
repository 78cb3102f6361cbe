"""Tasks whose upstream refuses calls: each task's first ones, as many as it is told, or each tenth by chance."""

from __future__ import annotations

import json
import os
import random
import time
from typing import Any

from celery import signals

from celery_ratelimit import Breaker, Concurrency, Limit, RateLimitedTask, UpstreamThrottled
from tests.apps.fleet import RATE, app, note, recorder

__all__ = ["app"]


class TooMany(Exception):
    """A client library's own error."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__(seconds)
        self.seconds = seconds


def read_seconds(error: TooMany) -> float | None:
    return error.seconds


def call(index: int, refusals: int, seconds: float | None) -> None:
    """A call of the upstream, which refuses a task's first ones."""
    recorder("calls").note(index, time.time(), 0)
    for number in range(refusals):
        try:
            os.close(os.open(f"{os.environ['TEST_RECORDS']}/refused-{index}-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        recorder("refusals").note(index, time.time(), 0)
        raise TooMany(seconds)
    note(index)


def told(request: Any) -> dict[str, Any]:
    """What a task's request says, but for what each run has of its own."""
    fields = {name: value for name, value in vars(request).items() if not name.startswith("_")}
    fields["delivery_info"] = {**fields["delivery_info"], "redelivered": False}
    transports = ("ratelimit_permit", "delivery_info", "delivery_tag", "expiration")
    fields["properties"] = {name: value for name, value in fields["properties"].items() if name not in transports}
    return {name: json.loads(json.dumps(value, default=repr)) for name, value in fields.items() if name != "hostname"}


def raising(self: Any, index: int, refusals: int, seconds: float | None, limit: str | None = None) -> list[Any]:
    with open(f"{os.environ['TEST_RECORDS']}/{self.request.id}.told", "a") as file:
        file.write(json.dumps(told(self.request), sort_keys=True) + "\n")
    try:
        call(index, refusals, seconds)
    except TooMany as error:
        raise UpstreamThrottled(seconds, limit) from error
    return [index, self.request.retries]


def hook(self: Any, *_: Any) -> None:
    recorder("hooks").note(0, time.time(), 0)


def raising_late(self: Any, index: int, refusals: int, seconds: float | None) -> list[Any]:
    try:
        return raising(self, index, refusals, seconds)
    except UpstreamThrottled:
        time.sleep(2)
        raise


HOOKS = {"on_failure": hook, "on_retry": hook, "on_success": hook, "after_return": hook}
ALL = {"base": RateLimitedTask, "bind": True, "autoretry_for": (Exception,), "max_retries": 1}

early = app.task(name="early", limits=Limit(RATE, name="upstream"), **ALL)(raising)
late = app.task(name="late", limits=Limit(RATE, name="upstream"), acks_late=True, **ALL)(raising)
slow_early = app.task(name="slow_early", limits=RATE, **ALL)(raising_late)
slow_late = app.task(name="slow_late", limits=RATE, acks_late=True, **ALL)(raising_late)
hooked = app.task(name="hooked", base=RateLimitedTask, bind=True, limits=RATE, **HOOKS)(raising)
waiting = app.task(name="waiting", limits=RATE, throttle="wait", **ALL)(raising)
dropped = app.task(name="dropped", limits=RATE, throttle="drop", **ALL)(raising)
impatient = app.task(name="impatient", limits=RATE, max_wait=1, overflow="drop", **ALL)(raising)
twice = app.task(name="twice", base=RateLimitedTask, bind=True, limits=RATE, max_upstream_throttles=2)(raising)
several = app.task(
    name="several", limits=[Limit(RATE, name="one"), Limit(RATE, name="two"), Concurrency(2, name="seats")], **ALL
)(raising)


@app.task(name="elsewhere", base=RateLimitedTask, limits=Limit(RATE, name="by_key", key="{index}"), bind=True)
def elsewhere(self: Any, index: int, refusals: int, seconds: float | None) -> list[Any]:
    """The upstream refuses another key's calls, too, and the task says so."""
    try:
        call(index, refusals, seconds)
    except TooMany as error:
        raise UpstreamThrottled(seconds, key="other") from error
    return [index, self.request.retries]


EQUAL = {"coalesce_key": "{refusals}", "limits": Limit(RATE, name="upstream"), **ALL}
newest = app.task(name="newest", coalesce="newest", **EQUAL)(raising)
oldest = app.task(name="oldest", coalesce="oldest", acks_late=True, **EQUAL)(raising)
fair = app.task(name="fair", limits=Limit(RATE, name="shares", fair="{index}"), **ALL)(raising)


@app.task(name="declared", limits=RATE, base=RateLimitedTask, upstream_errors={TooMany: read_seconds})
def declared(index: int, refusals: int, seconds: float | None) -> int:
    call(index, refusals, seconds)
    return index


@app.task(name="unaware", autoretry_for=(TooMany,), retry_kwargs={"max_retries": 1}, bind=True)
def unaware(self: Any, index: int, refusals: int, seconds: float | None) -> list[Any]:
    """Limited by the settings alone, which declare the error, too."""
    call(index, refusals, seconds)
    return [index, self.request.retries]


@app.task(name="at_random", base=RateLimitedTask, bind=True, limits=Limit(RATE, name="upstream"))
def at_random(self: Any, index: int) -> int:
    recorder("calls").note(index, time.time(), 0)
    if random.random() < 0.1:
        raise UpstreamThrottled(0.05)
    note(index)
    return int(self.request.retries)


@app.task(name="added")
def added(results: list[list[int]]) -> int:
    return sum(index for index, _ in results)


@signals.task_failure.connect
@signals.task_retry.connect
def write_end(**_: Any) -> None:
    recorder("hooks").note(1, time.time(), 0)


@app.task(
    name="fragile",
    base=RateLimitedTask,
    limits=Limit(RATE, name="fragile", breaker=Breaker(open_after=5, half_open_every=1, errors=(ConnectionError,))),
    bind=True,
    autoretry_for=(ConnectionError,),
    default_retry_delay=0,
    max_retries=30,
)
def fragile(self: Any, index: int) -> int:
    """Fails while there is a file ``down``."""
    recorder("calls").note(index, time.time(), self.request.retries)
    if os.path.exists(f"{os.environ['TEST_RECORDS']}/down"):
        raise ConnectionError("the upstream is down")
    note(index)
    return index
