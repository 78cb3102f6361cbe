"""The fleet's app after the package is gone: its tasks are plain ones, and nothing of the package has a hand in them.

(The ``celery`` command still finds its entry point, as it is installed here.)
"""

from __future__ import annotations

import json
import os
import sys
import time

from celery import Celery, current_task

from benchmarks.records import Recorder

app = Celery("fleet", broker=os.environ["TEST_BROKER"], backend=os.environ["TEST_BACKEND"])
app.conf.update(broker_connection_retry_on_startup=True, task_default_queue="celery")
app.conf.update({k: v for k, v in json.loads(os.environ["TEST_CONF"]).items() if not k.startswith("ratelimit_")})


def run(index: int, *rest: object) -> int:
    assert not {"celery_ratelimit.worker.gate", "celery_ratelimit.task"} & sys.modules.keys()
    with open(os.path.join(os.environ["TEST_RECORDS"], f"{index}.headers"), "w") as file:
        json.dump(current_task.request.headers or {}, file)
    Recorder(os.environ["TEST_RECORDS"]).note(index, time.time(), 0)  # a test that waits for this reads the file
    return index


for name in ("retry", "late", "plain", "tenant"):
    app.task(run, name=f"tests.apps.fleet.{name}")
