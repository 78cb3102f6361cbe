"""Tasks that tell what they were called with, and what they found: for everything that a message can say."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from celery_ratelimit import Limit, RateLimitedTask
from tests.apps.fleet import RATE, app, note

#: One bucket for all of them: who sends one first has all others throttled.
SHARED = Limit(RATE, name="shared")


def say(what: str, **fields: Any) -> None:
    """A line in a file that the test reads."""
    line = json.dumps({"what": what, **fields}, default=repr) + "\n"
    file = os.open(os.path.join(os.environ["TEST_RECORDS"], "said"), os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(file, line.encode())
    os.close(file)


@app.task
def heard(*args: Any) -> None:
    say("heard", args=args)


@app.task(bind=True)
def heard_stamped(self: Any, *args: Any) -> None:
    say("heard", args=args, stamps=self.request.stamps)


@app.task
def heard_error(request: Any, error: Any, traceback: Any) -> None:
    say("heard_error", id=request.id, error=type(error).__name__, text=str(error))


@app.task(base=RateLimitedTask, limits=SHARED)
def add(left: int, right: int) -> int:
    note(left)
    say("add", args=[left, right])
    return left + right


@app.task(base=RateLimitedTask, limits=SHARED)
def broken(index: int) -> None:
    note(index)
    say("broken", index=index)
    raise ValueError(f"broken {index}")


@app.task(base=RateLimitedTask, limits=SHARED)
def total(numbers: list[int]) -> int:
    say("total", args=numbers)
    return sum(numbers)


@app.task(bind=True, base=RateLimitedTask, limits=SHARED)
def replacing(self: Any, index: int) -> Any:
    note(index)
    say("replacing", id=self.request.id)
    return self.replace(nested.s(index))


@app.task(bind=True, base=RateLimitedTask, limits=SHARED)
def nested(self: Any, index: int) -> int:
    note(index + 1)
    say("nested", id=self.request.id, nesting=self.request.replaced_task_nesting)
    return index + 1


@app.task(bind=True, base=RateLimitedTask, limits=SHARED)
def describe(self: Any, index: int, *args: Any) -> Any:
    """Tells what is in its request, and what is kept on the task itself."""
    note(index)
    request = self.request
    say(
        "describe",
        index=index,
        stamps=request.stamps,
        stamped_headers=request.stamped_headers,
        expires=request.expires,
        priority=(request.delivery_info or {}).get("priority"),
        custom=(request.headers or {}).get("x-custom"),
        shadow=request.shadow,
        ignore_result=request.ignore_result,
        retries=request.retries,
        args=repr(args),
        task={name: repr(value) for name, value in vars(self).items()},
        max_retries=self.max_retries,
        request=sorted(name for name in vars(request) if not name.startswith("_")),
        depth=len(self.request_stack),
    )
    return args[0] if args else None


@app.task(base=RateLimitedTask, limits=SHARED)
def sleepy(index: int, seconds: float) -> str:
    began = time.monotonic()
    note(index)
    try:
        time.sleep(seconds)
    except SoftTimeLimitExceeded:
        return f"stopped after {time.monotonic() - began:.2f} s"
    return "slept"


@app.task(
    bind=True,
    base=RateLimitedTask,
    limits=SHARED,
    autoretry_for=(ValueError,),
    max_retries=3,
    default_retry_delay=0,
)
def unlucky(self: Any, index: int) -> None:
    note(index)
    say("unlucky", index=index, retries=self.request.retries)
    raise ValueError(f"attempt {self.request.retries}")


class Whole(RateLimitedTask):
    """A task class of a user's own."""

    name = "tests.apps.messages.whole_class"
    limits = SHARED

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        say("class", step="before_start", index=args[0])
        super().before_start(task_id, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        say("class", step="__call__", index=args[0])
        return super().__call__(*args, **kwargs)

    def run(self, index: int) -> int:
        note(index)
        say("class", step="run", index=index)
        return index

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        say("class", step="on_success", index=args[0])

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        say("class", step="after_return", index=args[0])
        super().after_return(status, retval, task_id, args, kwargs, einfo)


whole_class = app.register_task(Whole())


def die_once(index: int) -> int:
    """Ends its process the first time that it is called with ``index``."""
    note(index)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(os.path.join(os.environ["TEST_RECORDS"], f"died{index}"), os.O_CREAT | os.O_EXCL))
        os.kill(os.getpid(), signal.SIGKILL)
    return index


@app.task(base=RateLimitedTask, limits=SHARED, acks_late=True, reject_on_worker_lost=True)
def mortal_late(index: int) -> int:
    return die_once(index)


@app.task(base=RateLimitedTask, limits=SHARED, reject_on_worker_lost=True)
def mortal_early(index: int) -> int:
    return die_once(index)


@app.task(bind=True, base=RateLimitedTask, limits=SHARED)
def tick(self: Any) -> None:
    note(0)
    say("tick", id=self.request.id)
