"""The fleet's app on a broker connection whose first three publishes to a return queue fail."""

from __future__ import annotations

from typing import Any

from kombu import Producer
from kombu.exceptions import OperationalError

from tests.apps.fleet import app

__all__ = ["app"]

_publish = Producer.publish
_failures = iter(range(3))


def failing_publish(self: Any, *args: Any, **kwargs: Any) -> Any:
    if str(kwargs.get("routing_key", "")).endswith(".throttled") and next(_failures, None) is not None:
        raise OperationalError("the broker takes nothing")
    return _publish(self, *args, **kwargs)


Producer.publish = failing_publish
