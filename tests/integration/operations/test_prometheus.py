"""Metrics for Prometheus: figures, rules and dashboard."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from celery_ratelimit import Concurrency, Limit, Limiter
from celery_ratelimit.metrics_command import metrics
from celery_ratelimit.prometheus import collector, serve
from celery_ratelimit.testing import EmbeddedServer, embedded_server, free_port
from tests.fleet_of import until

FILES = Path(__file__).resolve().parents[3] / "docs" / "monitoring"
ODD_NAME = 'a"b\\c\n{d}'

needs_prometheus = pytest.mark.skipif(
    not shutil.which("promtool"), reason="no promtool here: apt-get install prometheus"
)

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def app_on(url: str) -> Celery:
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.ratelimit_quotas = {
        "stripe": Limit("100/s", burst=10),
        "gpu": Concurrency(4),
        "tenant": Limit("5/s", key="{tenant_id}"),
        ODD_NAME: "1/m",
        "tried": Limit("1/h", shadow=True),
    }
    return app


def scraped(app: Celery) -> tuple[str, Samples]:
    registry = CollectorRegistry()
    registry.register(collector(app))
    text = generate_latest(registry).decode()
    samples = {
        (sample.name.removeprefix("celery_ratelimit_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return text, samples


def of(limit: str, **labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({"limit": limit, **labels}.items()))


def test_the_figures_of_a_scrape(server: EmbeddedServer, store: redis.Redis) -> None:
    app = app_on(server.url)
    limiter = Limiter.from_app(app)
    limiter.acquire("stripe", cost=3)
    limiter.acquire("tenant", key="bob")
    place = limiter.acquire("gpu")
    limiter.acquire(ODD_NAME)
    limiter.acquire(ODD_NAME)
    limiter.acquire("tried")
    limiter.acquire("tried")
    limiter.set_rate("stripe", "20/s")
    limiter.pause("tenant", 60)
    assert limiter._counting is not None
    limiter._counting.send()
    until(lambda: limiter.shadow_report("tried").requests == 2, 10, "the simulation of the two requests")
    text, samples = scraped(app)
    if shutil.which("promtool"):
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    assert samples["up", ()] == 1
    assert samples["requests_total", of("stripe", result="acquired")] == 1
    assert samples["permits_total", of("stripe")] == 3
    assert samples["requests_total", of(ODD_NAME, result="refused")] == 1
    assert samples["wait_seconds_bucket", of("stripe", le="0.01")] == 1
    assert samples["wait_seconds_count", of("stripe")] == 1
    assert samples["rate", of("stripe", source="code")] == pytest.approx(100)
    assert samples["rate", of("stripe", source="stored")] == pytest.approx(20)
    assert 7 <= samples["remaining", of("stripe")] <= 10
    assert (samples["leases", of("gpu")], samples["remaining", of("gpu")]) == (1, 3)
    assert (samples["paused", of("tenant")], samples["paused", of("stripe")]) == (1, 0)
    assert samples["parked_tasks", of("stripe")] == 0
    assert samples["store_errors_total", of("stripe")] == 0
    assert (samples["shadow", of("tried")], samples["shadow", of("stripe")]) == (1, 0)
    assert samples["requests_total", of("tried", result="shadow")] == 2
    assert samples["shadow_delayed_total", of("tried")] == 1
    assert "bob" not in text, "keys are never labels"
    limiter.release(place)


def test_simultaneous_scrapes_read_the_store_once(
    server: EmbeddedServer, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, both = [], threading.Barrier(2, timeout=1)
    of_an_app = collector(app_on(server.url))
    read = of_an_app._metrics

    def metrics() -> Any:
        reads.append(1)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait()  # for the other scrape, if it is let in
        return read()

    monkeypatch.setattr(of_an_app, "_metrics", metrics)
    with ThreadPoolExecutor(2) as threads:
        for scrape in [threads.submit(lambda: [metric.name for metric in of_an_app.collect()]) for _ in range(2)]:
            names = scrape.result()
            assert len(names) == len(set(names)) > 10
    assert len(reads) == 1


def test_totals_do_not_decrease_when_processes_end(server: EmbeddedServer, store: redis.Redis) -> None:
    for number in (1, 2, 3):
        app = app_on(server.url)
        with Limiter.from_app(app) as limiter:
            limiter.acquire("stripe")
        assert scraped(app_on(server.url))[1]["permits_total", of("stripe")] == number


def test_lost_store_is_shown_as_down() -> None:
    with embedded_server() as limits:
        app = app_on(limits.url)
        assert scraped(app)[1]["up", ()] == 1
        limits.kill()
        assert scraped(app)[1] == {("up", ()): 0}


def test_metrics_are_printed_and_served(server: EmbeddedServer, store: redis.Redis) -> None:
    app, port = app_on(server.url), free_port()
    printed = CliRunner().invoke(metrics, ["--once"], obj=SimpleNamespace(app=app))
    stop = serve(app, port)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            served = answer.read().decode()
    finally:
        stop()
    assert printed.exit_code == 0, printed.output
    assert all("celery_ratelimit_up 1.0" in text for text in (printed.output, served))


@pytest.mark.parametrize("file", ["alerts.yml", "dashboard.json"])
def test_rules_and_dashboard_use_existing_metrics(server: EmbeddedServer, store: redis.Redis, file: str) -> None:
    text = (FILES / file).read_text()
    if file.endswith("json"):
        text = " ".join(each["expr"] for panel in json.loads(text)["panels"] for each in panel["targets"])
    asked = set(re.findall(r"celery_ratelimit_\w+", text))
    assert len(asked) >= 5
    assert asked <= {"celery_ratelimit_" + name for name, _ in scraped(app_on(server.url))[1]}


@needs_prometheus
def test_alert_rules_pass_their_own_tests() -> None:
    for arguments in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        said = subprocess.run(["promtool", *arguments], cwd=FILES, capture_output=True, text=True)
        assert said.returncode == 0, said.stdout + said.stderr


@needs_prometheus
def test_keda_query_of_the_docs_has_the_documented_value(tmp_path: Path) -> None:
    """100 at the broker; of 50 parked all, of 9,000 what 10/s let through in a minute, of none nothing."""
    text = (FILES.parent / "monitoring.md").read_text()
    query = re.search(r"query: \|\n(.*?)\n +threshold", text, re.DOTALL)
    assert query
    series = {
        'redis_key_size{key="celery"}': 100,
        'celery_ratelimit_parked_tasks{limit="a"}': 50,
        'celery_ratelimit_parked_tasks{limit="b"}': 9000,
        'celery_ratelimit_parked_tasks{limit="c"}': 0,
        **{f'celery_ratelimit_rate{{limit="{limit}", source="code"}}': 10 for limit in "abc"},
    }
    inputs = [{"series": name, "values": str(value)} for name, value in series.items()]
    expected = [{"labels": "{}", "value": 100 + 50 + 600}]
    tests = {"promql_expr_test": [{"expr": query[1], "eval_time": "0m", "exp_samples": expected}]}
    file = tmp_path / "keda.yml"
    file.write_text(json.dumps({"tests": [{"interval": "1m", "input_series": inputs, **tests}]}))
    said = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr
