"""The fleet's app under OpenTelemetry: what ends, and what was counted, goes to files.

``TEST_SPANS``: when spans are switched on: first, or in the worker, or in each process (as OpenTelemetry's docs have it
for prefork), which is behind what the app's module connects.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery.signals import worker_init, worker_process_init
from opentelemetry import metrics, trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from celery_ratelimit.opentelemetry import instrument
from tests.apps.fleet import app

__all__ = ["app"]


def _file(kind: str) -> Any:
    return (Path(os.environ["TEST_RECORDS"]) / f"{kind}-{os.getpid()}.jsonl").open("a")


def _trace(**_: Any) -> None:
    provider = TracerProvider()
    exporter = ConsoleSpanExporter(out=_file("spans"), formatter=lambda span: span.to_json(indent=None) + "\n")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()


def _count(**_: Any) -> None:
    exporter = ConsoleMetricExporter(out=_file("metrics"), formatter=lambda data: data.to_json(indent=None) + "\n")
    metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=200)]))


worker_init.connect(_count, weak=False)
if os.environ["TEST_SPANS"] == "in each process":
    worker_process_init.connect(_trace, weak=False)
elif os.environ["TEST_SPANS"] == "in the worker":
    worker_init.connect(_trace, weak=False)
else:
    _trace()
instrument(app)
