"""An app without a task of its own until its worker is told to make one; limits are by pattern alone."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery
from celery.worker.control import control_command

from celery_ratelimit import Limit, RateLimitedTask, install
from tests.apps import pool_jobs  # noqa: F401  (registers itself)
from tests.apps.fleet import note

app = Celery("later", broker=os.environ.get("TEST_BROKER"), backend=os.environ.get("TEST_BACKEND"))
app.conf.update(json.loads(os.environ.get("TEST_CONF", "{}")))
install(app)


@control_command()
def register(state: Any) -> dict[str, str]:
    """As a reloaded module does: tasks that were not there when the worker started."""

    def body(index: int) -> int:
        note(index)
        return index

    app.task(body, name="later.by_pattern", shared=False)
    app.task(body, name="later.by_itself", base=RateLimitedTask, limits=Limit("5/s", name="of its own"), shared=False)
    app.task(body, name="later.at_odds", base=RateLimitedTask, limits=Limit("7/s", name="of its own"), shared=False)
    state.consumer.update_strategies()
    return {"ok": "registered"}
