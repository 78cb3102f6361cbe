"""The same task under each throttle, one variant a module, started with the ordinary ``celery`` command.

Every module defines ``app`` and one task, named :data:`benchmarks.TASK`, whose body is :func:`work`. What differs
is the throttle and nothing else: the broker, the settings and the body are the same for all.
"""

from __future__ import annotations

import os
import time
from functools import cache
from http.client import HTTPConnection

from celery import Celery

from benchmarks.records import Recorder

RATE = int(os.environ.get("BENCH_RATE", "100"))  # tasks a second, over the whole fleet
WORKERS = int(os.environ.get("BENCH_WORKERS", "2"))  # what Celery's own rate_limit has to be divided by
UPSTREAM = os.environ.get("BENCH_UPSTREAM", "")  # host:port, or nothing: the body then only notes its start


def make_app() -> Celery:
    """An app on the benchmark's broker, with Celery's defaults for everything that affects speed."""
    app = Celery("benchmarks", broker=os.environ["BENCH_BROKER"])
    app.conf.task_ignore_result = True
    app.conf.broker_connection_retry_on_startup = True  # the default, said aloud: Celery warns otherwise
    return app


def work(index: int) -> None:
    """The body: note the start, and call the upstream if this scenario has one."""
    started = time.time()
    _recorder().note(index, started, _call() if UPSTREAM else 0)


@cache
def _recorder() -> Recorder:
    # Opened at the first task, in the pool process: one file a process, nothing shared across the fork.
    return Recorder(os.environ["BENCH_RECORDS"])


@cache
def _connection() -> HTTPConnection:
    return HTTPConnection(UPSTREAM, timeout=10)


def _call() -> int:
    connection = _connection()
    connection.request("GET", "/")
    response = connection.getresponse()
    response.read()  # to the end, or the connection cannot be used again
    return response.status
