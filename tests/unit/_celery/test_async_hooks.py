"""An async hook of a task is logged and not run."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context

from celery_ratelimit import RateLimitedTask
from celery_ratelimit._celery import requests


def test_async_hook_is_logged_and_not_run(caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder) -> None:
    class Locked(RateLimitedTask):
        async def on_throttled_out(self, outcome: str, id: str, args: Any, kwargs: Any) -> None:
            raise AssertionError("it was not to run")

    app = Celery("test", broker="memory://", set_as_current=False)

    @app.task(base=Locked, name="locked")
    def task() -> None: ...

    with caplog.at_level(logging.ERROR):
        requests.throttled_out(task, Context(id="1", args=(), kwargs={}), "dropped", "throttled")
    assert "Task locked[1] ends, but its on_throttled_out raised TypeError('it is async" in caplog.text
    assert not [each for each in recwarn if "never awaited" in str(each.message)]
