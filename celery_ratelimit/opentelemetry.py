"""Metrics, and an event on the task's own trace, for OpenTelemetry: ``celery-ratelimit[otel]``.

>>> from celery_ratelimit.opentelemetry import instrument
>>> instrument(app)

Only the API is used; the application sets up the SDK and its exporters. Keys are never attributes.
"""

from __future__ import annotations

import time
from typing import Any

from celery import Celery, signals

from ._celery import PERMIT
from .app.app_attributes import is_kept, kept
from .app.observers import observe
from .counts.tally import BOUNDS
from .errors import ConfigurationError
from .observing import STARTED, Observation

try:
    from opentelemetry import metrics, trace
except ImportError as _error:
    raise ConfigurationError(
        f"what OpenTelemetry needs is missing ({_error}): pip install 'celery-ratelimit[otel]'"
    ) from _error

__all__ = ["EVENT", "Telemetry", "instrument"]

#: The event on the span of a task that was throttled.
EVENT = "celery_ratelimit.throttled"

_PREFIX = "celery_ratelimit"
_CALLED = f"{_PREFIX}-opentelemetry"


def instrument(app: Celery, *, meter_provider: metrics.MeterProvider | None = None) -> None:
    """Report the outcomes of the tasks of ``app`` to OpenTelemetry. Call it where the app is made; once or more often.

    Args:
        app: the Celery app.
        meter_provider: default: the global one, also if it is set later.
    """
    if not is_kept(app, "telemetry"):
        observe(app, kept(app, "telemetry", lambda: Telemetry(meter_provider)))


class Telemetry:
    """An :class:`~celery_ratelimit.observing.Observer`, for ``ratelimit_observers`` as well.

    The gate decides in the worker's main process, which records the metrics. The task's span is in the process that
    runs the task: the event's data gets there with the permit, in the message that the pool gets anyway.

    Args:
        meter_provider: default: the global one.
    """

    def __init__(self, meter_provider: metrics.MeterProvider | None = None) -> None:
        meter = metrics.get_meter(_PREFIX, meter_provider=meter_provider)
        self._requests = meter.create_counter(
            f"{_PREFIX}.requests", unit="{request}", description="Decisions of workers, by result."
        )
        self._waits = meter.create_histogram(
            f"{_PREFIX}.request.time_in_queue",
            unit="s",
            description="Time from when a task was throttled until it started.",
            explicit_bucket_boundaries_advisory=BOUNDS,
        )
        signals.task_prerun.connect(_before, weak=False, dispatch_uid=_CALLED)
        signals.task_postrun.connect(_after, weak=False, dispatch_uid=_CALLED)

    def __call__(self, seen: Observation, /) -> None:
        if seen.outcome == "waiting":
            return  # the task is counted when it starts
        starts = seen.outcome in STARTED
        of_all = starts or seen.limit is None
        for name in [name for name, _, _ in seen.asked] if of_all else [seen.limit]:
            attributes = {"limit": str(name), "result": seen.outcome}
            self._requests.add(1, attributes)
            if starts:
                self._waits.record(seen.throttled_for, attributes)


# -- In the process that runs the task ---------------------------------------------------------------------------------


def _before(task: Any = None, **_: Any) -> None:
    """Add the event before the task runs. The span exists if its instrumentation got the signal first."""
    permit = _throttled(task)
    if permit is not None:
        permit["seen_at"] = time.time_ns()
        _tell(permit)


def _after(task: Any = None, **_: Any) -> None:
    """Add the event after the task has run: a span that was made after :func:`_before` still exists now."""
    permit = _throttled(task)
    if permit is not None:
        _tell(permit)


def _throttled(task: Any) -> dict[str, Any] | None:
    permit = (getattr(task.request, "properties", None) or {}).get(PERMIT) if task is not None else None
    return permit if isinstance(permit, dict) and "throttled_for" in permit else None


def _tell(permit: dict[str, Any]) -> None:
    span = trace.get_current_span()
    if span.is_recording():
        attributes = {f"{_PREFIX}.time_in_queue": permit.pop("throttled_for")}
        if permit.get("throttled_by"):
            attributes[f"{_PREFIX}.limit"] = permit["throttled_by"]
        span.add_event(EVENT, attributes, timestamp=permit.get("seen_at"))
