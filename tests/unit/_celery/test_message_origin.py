"""The original queue of a message whose header names an unknown one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit._celery.consumed_queues import ConsumedQueues
from celery_ratelimit._celery.saved_message import marker_in

MARKER = {"queue": "celery", "eta": None, "exchange": "", "routing_key": "celery"}


class Names:
    """Of a worker that consumes "celery" and "emails", beside their return queues."""

    def __init__(self) -> None:
        self.queues = {"celery": None, "emails": None}

    def make_name(self, queue: str) -> str:
        return f"{queue}.throttled"

    def origin_of(self, name: str) -> str:
        return name.removesuffix(".throttled")


@pytest.mark.parametrize(
    ("says", "came_by", "taken_as"),
    [
        ("celery", "celery.throttled", "celery"),
        ("emails", "celery.throttled", "emails"),  # one return queue for both
        ("elsewhere", "celery.throttled", "elsewhere"),  # the app has it, other workers consume it
        ("gone", "celery.throttled", "celery"),
        ("gone", "gone", "gone"),
        ("celery", "emails", "emails"),  # a dead letter
        (None, "celery", None),
    ],
)
def test_message_from_an_unknown_queue_belongs_to_its_receiving_queue(
    says: str | None, came_by: str, taken_as: str | None
) -> None:
    consumption: Any = ConsumedQueues.__new__(ConsumedQueues)
    consumption._names = Names()
    consumption._consumer = SimpleNamespace(
        app=SimpleNamespace(amqp=SimpleNamespace(queues={"celery": 1, "elsewhere": 1}))
    )
    headers = {} if says is None else {"celery-ratelimit-return": {**MARKER, "queue": says}}
    message = SimpleNamespace(headers=headers, ratelimit_queue=came_by, delivery_info={})
    consumption.correct_queue(message)
    assert marker_in(message).get("queue") == taken_as
