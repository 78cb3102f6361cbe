"""To which queue a task is sent unless its sender names one."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_ratelimit._celery import default_queue_of


@pytest.mark.filterwarnings("ignore:\\s*The 'queue' task attribute")  # since Celery 5.7
@pytest.mark.parametrize(
    ("options", "routes", "queue"),
    [
        ({}, {}, "celery"),
        ({"queue": "own"}, {}, "own"),
        ({}, {"charge": "routed"}, "routed"),
        ({"queue": "own"}, {"charge": "routed"}, "own"),
    ],
)
def test_queue_of_a_task_is_its_own_or_that_of_its_route(
    options: dict[str, Any], routes: dict[str, Any], queue: str
) -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.task_routes = routes

    @app.task(name="charge", shared=False, **options)
    def charge() -> None: ...

    assert default_queue_of(app, "charge") == queue
    with app.connection_for_write() as connection:
        charge.apply_async(connection=connection)
        assert connection.SimpleQueue(queue).get(block=False)
