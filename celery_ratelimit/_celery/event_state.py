"""How monitors see a task that was throttled first.

What is relied on; line numbers are of Celery 5.7.0:

* ``Consumer.event_dispatcher`` (celery/worker/consumer/events.py 39): anew with each connection; requests send their
  events by its ``send`` (celery/worker/request.py 521).
* ``celery.events.state.Task.event`` (celery/events/state.py 305), which Flower has, too: to it REVOKED has happened
  before any state that Celery does not know, as THROTTLED is (``states.PRECEDENCE``), so that it takes the fields of
  the event, but not its state. A field ``state`` is taken with them.
"""

from __future__ import annotations

import functools
from typing import Any

from celery.states import REVOKED

__all__ = ["show_revoked"]


def show_revoked(consumer: Any) -> None:
    """From now on a task that ends as revoked is seen as such, also when it was throttled before."""
    dispatcher = consumer.event_dispatcher
    if dispatcher is None:
        return
    send = dispatcher.send

    @functools.wraps(send)
    def send_with_state(type: str, *args: Any, **fields: Any) -> Any:
        if type == "task-revoked":
            fields.setdefault("state", REVOKED)
        return send(type, *args, **fields)

    dispatcher.send = send_with_state
