"""An app that has no limits but what its settings say."""

from __future__ import annotations

import json
import os

from celery import Celery

from benchmarks.records import Recorder
from celery_ratelimit import install
from tests.apps import pool_jobs  # noqa: F401  (registers itself)

app = Celery("fleet", broker=os.environ["TEST_BROKER"], backend=os.environ["TEST_BACKEND"])
app.conf.update(broker_connection_retry_on_startup=True, task_default_queue="celery")
app.conf.update(json.loads(os.environ["TEST_CONF"]))
install(app)


@app.task(name="tests.apps.fleet.plain")
def plain(index: int) -> int:
    Recorder(os.environ["TEST_RECORDS"]).note(index, 0.0, 0)
    return index
