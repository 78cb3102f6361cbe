"""Metrics and span events for OpenTelemetry, in one process and of real workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from celery_ratelimit.app.observers import observers_of
from celery_ratelimit.observing import OUTCOMES, Observation
from celery_ratelimit.opentelemetry import EVENT, Telemetry, instrument
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, until

NAME = "tests.apps.fleet.retry"
TRACE = "0af7651916cd43dd8448eb211c80319c"


def points(told: Any) -> dict[str, dict[tuple[str, str], Any]]:
    """Of each metric what there is, by limit and result."""
    found: dict[str, dict[tuple[str, str], Any]] = {}
    for resource in told["resource_metrics"]:
        for scope in resource["scope_metrics"]:
            for metric in scope["metrics"] if scope["scope"]["name"] == "celery_ratelimit" else ():
                for point in metric["data"]["data_points"]:
                    attributes = point["attributes"]
                    assert set(attributes) == {"limit", "result"}, "keys are never among them"
                    key = attributes["limit"], attributes["result"]
                    found.setdefault(metric["name"], {})[key] = point
    return found


def seen(outcome: str, limit: str | None, throttled_for: float = 0.0) -> Observation:
    asked = (("stripe", "tenant:7", 1), ("emails", "", 3))
    return Observation(outcome, "charge", "id", "celery", limit, "tenant:7", throttled_for=throttled_for, asked=asked)


def test_each_outcome_is_counted_as_in_the_store() -> None:
    reader = InMemoryMetricReader()
    telemetry = Telemetry(MeterProvider([reader]))
    for outcome in OUTCOMES:
        telemetry(seen(outcome, None if outcome == "store_error" else "stripe", 0.75))
    telemetry(seen("waiting", "stripe"))
    data = reader.get_metrics_data()
    assert data is not None
    told = points(json.loads(data.to_json()))
    both = ("acquired", "waited", "store_error")
    numbers = {key: point["value"] for key, point in told["celery_ratelimit.requests"].items()}
    assert numbers == {
        **{("stripe", outcome): 1 for outcome in OUTCOMES},
        **{("emails", outcome): 1 for outcome in both},  # which have to do with all that it asks
    }
    waits = told["celery_ratelimit.request.time_in_queue"]
    assert {key for key in waits if key[0] == "emails"} == {("emails", "acquired"), ("emails", "waited")}
    assert {point["sum"] for point in waits.values()} == {0.75}
    assert waits["stripe", "waited"]["explicit_bounds"][:4] == [0.01, 0.05, 0.1, 0.5]


def test_telemetry_switched_on_twice_or_in_the_settings_counts_once() -> None:
    app = Celery("shop", broker="redis://localhost:6379/0", set_as_current=False)
    instrument(app)
    instrument(app)
    assert [type(each) for each in observers_of(app)] == [Telemetry]
    app = Celery("shop", broker="redis://localhost:6379/0", set_as_current=False)
    app.conf.ratelimit_observers = ["celery_ratelimit.opentelemetry.Telemetry", "builtins.print"]
    assert [type(each) for each in observers_of(app)] == [Telemetry, type(print)]
    reader = InMemoryMetricReader()
    instrument(app, meter_provider=MeterProvider([reader]))
    for observer in observers_of(app):
        observer(seen("parked", "stripe"))
    data = reader.get_metrics_data()
    assert data is not None, "the provider that was given is used"
    assert points(json.loads(data.to_json()))["celery_ratelimit.requests"]["stripe", "parked"]["value"] == 1
    assert [type(each) for each in observers_of(app)] == [type(print), Telemetry]


def test_missing_opentelemetry_says_what_to_install() -> None:
    code = (
        "import sys, celery_ratelimit; sys.modules['opentelemetry'] = None\n"
        "try:\n    import celery_ratelimit.opentelemetry\n"
        "except celery_ratelimit.ConfigurationError as error:\n    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'celery-ratelimit[otel]'" in said.stdout


def lines_of(directory: Path, kind: str) -> list[Any]:
    """What each process has written, as far as its lines are whole."""
    texts = [path.read_text() for path in sorted(directory.glob(f"{kind}-*.jsonl"))]
    return [json.loads(line) for text in texts for line in text.rpartition("\n")[0].splitlines() if line]


@pytest.mark.parametrize(
    ("pool", "spans", "task"),
    [
        ("prefork", "in each process", "retry"),  # behind us: the event comes when the task ends
        ("prefork", "first", "retry"),
        ("threads", "first", "retry"),
        ("threads", "in the worker", "wait"),  # it never leaves the worker
        pytest.param("solo", "in the worker", "retry", marks=pytest.mark.slow),
    ],
)
def test_span_of_a_throttled_task_has_an_event(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, pool: str, spans: str, task: str
) -> None:
    number = 4
    with Fleet(server, tmp_path, rate="2/s", app="tests.apps.traced") as fleet:
        fleet.env["TEST_SPANS"] = spans
        fleet.start("-P", pool)
        for index in range(number):
            headers = {"traceparent": f"00-{TRACE}-b7ad6b716920333{index}-01"}
            fleet.sender.send_task(f"tests.apps.fleet.{task}", args=[index], headers=headers)
        until(lambda: len(ran(tmp_path, task)) == number, 20, "the end of each span")
        found = ran(tmp_path, task)
        assert {span["context"]["trace_id"] for span in found} == {f"0x{TRACE}"}
        events = [[event for event in span["events"] if event["name"] == EVENT] for span in found]
        throttled = [event for some in events for event in some]
        assert sorted(map(len, events)) == [0, 1, 1, 1], "the first one was not throttled"
        name = f"tests.apps.fleet.{task}"
        assert {event["attributes"]["celery_ratelimit.limit"] for event in throttled} == {name}
        waited = sorted(event["attributes"]["celery_ratelimit.time_in_queue"] for event in throttled)
        assert waited[0] > 0.2
        assert waited[-1] > 0.7, "it was third in the line"

        def counted() -> dict[tuple[str, str], Any]:
            told = [points(each) for each in lines_of(tmp_path, "metrics")]
            return next((each["celery_ratelimit.requests"] for each in reversed(told) if each), {})

        until(lambda: counted().get((name, "waited"), {}).get("value") == 3, 20, "the figures")
        assert counted()[name, "acquired"]["value"] == 1


def ran(directory: Path, task: str) -> list[Any]:
    return [span for span in lines_of(directory, "spans") if span["name"] == f"run/tests.apps.fleet.{task}"]
