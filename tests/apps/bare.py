"""An app that has limits in its settings, and imports nothing of the package."""

from __future__ import annotations

import json
import os
import time

from celery import Celery

app = Celery("bare", broker=os.environ["TEST_BROKER"], backend=os.environ["TEST_BACKEND"])
app.conf.update(broker_connection_retry_on_startup=True, **json.loads(os.environ["TEST_CONF"]))


@app.task(name="bare.plain")
def plain(index: int) -> float:
    return time.time()


@app.task(name="bare.limited", limits="1/h")
def limited(index: int) -> float:
    return time.time()
