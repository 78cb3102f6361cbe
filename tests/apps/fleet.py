"""The Celery app that the tests' workers run: its tasks note when they start, its settings come from the test."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from typing import Any

from celery import Celery, current_task

from benchmarks.records import Recorder
from celery_ratelimit import Concurrency, ConfigurationError, Limit, RateLimitedTask, install
from celery_ratelimit.signals import task_throttled
from tests.apps import pool_jobs  # noqa: F401  (registers itself)

_recorders: dict[tuple[int, str], Recorder] = {}


def note(index: int) -> None:
    """The start of a task body, and when its permit was good by the store's clock, in two files of this process."""
    at = time.time()
    permit = (current_task.request.properties or {}).get("ratelimit_permit")
    if permit is not None and permit["granted_at"] > 0:
        recorder("permits").note(index, permit["granted_at"] / 1e6, 0)
    recorder("").note(index, at, 0)  # last: tests wait for starts, and then read the permits


def recorder(folder: str) -> Recorder:
    known = (os.getpid(), folder)
    if known not in _recorders:
        directory = os.path.join(os.environ["TEST_RECORDS"], folder)
        os.makedirs(directory, exist_ok=True)
        _recorders[known] = Recorder(directory)
    return _recorders[known]


app = Celery("fleet", broker=os.environ.get("TEST_BROKER"), backend=os.environ.get("TEST_BACKEND"))
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_default_queue="celery",
    worker_cancel_long_running_tasks_on_connection_loss=True,
)
app.conf.update(json.loads(os.environ.get("TEST_CONF", "{}")))
if os.environ.get("TEST_INSTALL"):
    install(app)

RATE = os.environ.get("TEST_RATE", "100/s")


PLACES = Concurrency(3, name="places", lease=1.0)
GPUS = Concurrency(4, name="gpus", lease=3.0, cost="gpus")


def plan_of(tenant: str) -> str:
    """Each answer is asked for again."""
    if tenant == "lost":
        raise ConnectionError("the database of plans is away")
    if tenant == "none":
        raise SystemExit(1)
    return "20/s"


def start(index: int) -> int:
    note(index)
    return index


def start_of(index: int, tenant: Any = None) -> int:
    return start(index)


def start_weighed(index: int, weight: int) -> int:
    return start(index)


def occupy(index: int, seconds: float) -> int:
    """Notes when it begins and when it ends: as ``index`` and as ``-1 - index``."""
    note(index)
    time.sleep(seconds)
    note(-1 - index)
    return index


def occupy_several(index: int, seconds: float, gpus: int) -> int:
    return occupy(index, seconds)


#: Tasks by what they are called with: their names, limits and options.
LIMITED: dict[Callable[..., int], dict[str, dict[str, Any]]] = {
    start: {
        "retry": {"limits": RATE},
        "wait": {"limits": RATE, "throttle": "wait"},
        "drop": {"limits": RATE, "throttle": "drop"},
        "fail": {"limits": RATE, "throttle": "fail"},
        "impatient": {"limits": RATE, "max_wait": 0.5},
        "late": {"limits": RATE, "acks_late": True},
        "overflowing": {"limits": RATE, "max_wait": 1, "overflow": "later"},
        "own": {"limits": Limit("10/s", per_worker=True), "throttle": "wait"},
        "leaky": {"limits": Limit("10/s", algorithm="leaky_bucket", capacity=5)},
        "fixed_window": {"limits": Limit(RATE, algorithm="fixed_window")},
        "sliding_log": {"limits": Limit(RATE, algorithm="sliding_log")},
        "sliding_window": {"limits": Limit(RATE, algorithm="sliding_window")},
        "warming": {"limits": Limit(RATE, warmup=2)},
        "mixed": {"limits": [Limit("50/s", burst=50), Limit(RATE, algorithm="sliding_log"), PLACES]},
    },
    start_of: {
        "shared": {"limits": Limit(RATE, name="tenants", fair="{tenant}", weights={"gold": 3})},
        "newest": {"limits": RATE, "coalesce": "newest", "coalesce_key": "{tenant}", "acks_late": True},
        "oldest": {"limits": RATE, "coalesce": "oldest", "coalesce_key": "{tenant}", "acks_late": True},
        "tenant": {"limits": Limit(RATE, key="tenant:{tenant}")},
        "impatient_tenant": {"limits": Limit(RATE, key="tenant:{tenant}"), "max_wait": 2},
        "bounded": {"limits": Limit(RATE, key="{tenant}", max_parked=5), "overflow": "drop"},
        "exempt": {"limits": Limit("1/h", key="{tenant}", missing_key="exempt")},
        "without_key": {"limits": Limit("1/h", burst=3, key="{tenant}", missing_key="shared"), "throttle": "drop"},
        "by_plan": {"limits": Limit("5/s", key="{tenant}", rates=plan_of, rates_ttl=0.05)},
    },
    start_weighed: {"weighed": {"limits": Limit("100/s", burst=10, cost=lambda index, weight: weight)}},
    occupy: {
        "place": {"limits": PLACES},
        "patient_place": {"limits": PLACES, "throttle": "wait"},
        "late_place": {"limits": PLACES, "throttle": "wait", "acks_late": True},
    },
    occupy_several: {
        "train": {"limits": GPUS},
        "patient_train": {"limits": GPUS, "throttle": "wait"},
        "train_in_memory": {"limits": [GPUS, Concurrency(4, name="memory", cost="gpus", lease=10.0)]},
    },
}
for _body, _tasks in LIMITED.items():
    for _name, _options in _tasks.items():
        app.task(base=RateLimitedTask, name=f"{__name__}.{_name}", **_options)(_body)
for _name in ("plain", "other", "third"):
    app.task(name=f"{__name__}.{_name}")(start)


@app.task(base=RateLimitedTask, limits=Concurrency(2, name="pair", lease=3.0), acks_late=True)
def pair(index: int, seconds: float) -> int:
    """Notes every 20 ms that this run of it goes on, which has a number of its own: it may be killed."""
    run, end = random.getrandbits(31), time.monotonic() + seconds
    while True:
        recorder("beats").note(index, time.time(), run)
        if time.monotonic() >= end:
            note(index)
            return index
        time.sleep(0.02)


@app.task(bind=True, base=RateLimitedTask, limits=Limit("10/s", burst=100, cost="estimate"), throttle="wait")
def settled(self: Any, index: int, estimate: int, actual: int) -> list[bool]:
    note(index)
    return [self.settle(actual), self.settle(actual)]


BY_NAME = [Limit("10/s", burst=100, name="tokens", cost="estimate"), Limit("100/s", burst=10, name="calls")]


@app.task(bind=True, base=RateLimitedTask, limits=BY_NAME)
def settled_by_name(self: Any, index: int, estimate: int, actual: int) -> list[Any]:
    note(index)
    said: list[Any] = []
    for costs in ({"tokes": actual}, {}, {"tokens": actual}):
        try:
            said.append(self.settle(**costs))
        except ConfigurationError as error:
            said.append(str(error))
    return said


@app.task(bind=True, base=RateLimitedTask, limits=RATE, name="whole")
def whole(self: Any, *args: Any, **kwargs: Any) -> None:
    """Leaves everything that its request says in a file."""
    note(0)
    fields = {name: value for name, value in vars(self.request).items() if not name.startswith("_")}
    path = os.path.join(os.environ["TEST_RECORDS"], f"{self.request.id}.request")
    with open(f"{path}.part", "w") as file:
        json.dump(fields, file, default=repr)
    os.rename(f"{path}.part", path)


@app.task(base=RateLimitedTask, limits=RATE)
def shown(*args: Any, **kwargs: Any) -> str:
    note(0)
    return repr((args, kwargs))


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, base=RateLimitedTask, limits=RATE, max_retries=2, default_retry_delay=0)
def stubborn(self: Any, index: int) -> int:
    """Fails until its own two retries are used up."""
    note(index)
    if self.request.retries < 2:
        raise self.retry()
    return int(self.request.retries)


@task_throttled.connect
def write_signal(
    sender: Any, request: Any, retry_after: float, limit: str | None, outcome: str, key: str, **_: Any
) -> None:
    with open(os.path.join(os.environ["TEST_RECORDS"], "signals"), "a") as file:
        file.write(f"{sender.name} {request.id} {retry_after:.3f} {limit} {outcome} {key}\n")
