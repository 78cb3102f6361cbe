"""The live page: one read of the store for all browsers, changes alone are sent, lost stores and brokers are shown."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from celery_ratelimit import Limiter
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from celery_ratelimit.web.page_data import PageData
from tests.fleet_of import until
from tests.shop import make_app, park
from tests.web.server import TOKEN, Server, page_of


def app_on(server: EmbeddedServer) -> Celery:
    return make_app(server.url)


def test_rows_show_what_status_shows(server: EmbeddedServer, store: redis.Redis) -> None:
    app = app_on(server)
    limiter = Limiter.from_app(app)
    limiter.set_rate("stripe", "60/m", by="ann", reason="slow upstream")
    for _ in range(5):
        limiter.acquire("stripe")
    limiter.pause("tenant", 60)
    place = limiter.acquire("gpu")
    assert limiter._counting is not None
    limiter._counting.send()
    park(app, "stripe", 40, cost=2)
    looks = PageData(app)
    until(lambda: looks.at("")["limit stripe"]["share"], 10, "the end of the second of the starts")
    parts = looks.at("")
    stripe, gpu, tenant = parts["limit stripe"], parts["limit gpu"], parts["limit tenant"]
    assert parts["sentence"] == "4 limits: 1 paused, 1 backlogged, 1 active, 1 idle; 40 tasks parked"
    assert (stripe["limit"], stripe["code"], stripe["parked"], stripe["word"]) == (
        "stripe",
        "100/s, burst 5",
        "40",
        "backlogged",
    )
    assert stripe["override"].startswith("60/m, burst 5 by ann ")
    assert stripe["override"].endswith("'slow upstream'")
    assert (stripe["used"], stripe["share"]) == ("5 of 60/m", 8), "within a minute"
    assert 1 <= stripe["spark"][-1] <= 8, "five of sixty, within a minute"
    assert (gpu["used"], gpu["share"]) == ("1 of 4", 25)
    assert (tenant["free now"], tenant["used"], tenant["word"]) == ("by key", "-", "paused")
    ranks = [parts[f"limit {name}"]["rank"] for name in ("tenant", "stripe", "gpu", "e\nmails")]
    assert ranks == sorted(ranks)
    limiter.release(place)


def test_tasks_that_no_worker_can_start_are_a_warning(server: EmbeddedServer, store: redis.Redis) -> None:
    app = app_on(server)
    park(app, "stripe", 3)
    park(app, "tenant", 1, key="tenant:7", task="shop.sync", queue="celery")
    looks = PageData(app)
    assert not looks.at("")["limit stripe"]["held up"]
    store.delete(*store.keys("*queues*"))
    parts = looks.at("")
    assert parts["limit stripe"]["held up"]
    assert "no worker consumes queue 'celery'" in parts["limit stripe"]["state"]
    assert not parts["limit gpu"]["held up"], "no task of it waits"
    Limiter.from_app(app).pause("stripe", 60)
    assert not looks.at("stripe")["state"]["held up"], "a pause says why"


def test_changed_parts_alone_are_sent(read_only: Server, limiter: Limiter) -> None:
    assert read_only.ask("HEAD", "/events").status == 200
    answer = read_only.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'celery_ratelimit_rate{limit="stripe",source="code"} 100.0' in answer.text
    with read_only.listening("/events") as events:
        first = next(events)
        assert first["whole"]
        assert first["parts"]["limit stripe"]["word"] == "idle"
        limiter.pause("stripe", 600, force=True)
        while not (said := next(events))["parts"]:
            assert not said["whole"]
        assert set(said["parts"]) == {"sentence", "limit stripe"}
        assert said["parts"]["limit stripe"]["word"] == "paused"


def test_eight_browsers_cost_as_much_as_one_and_none_costs_nothing(read_only: Server, store: redis.Redis) -> None:
    """Counted by reads, not by time: a browser gets an event for each read."""
    with contextlib.ExitStack() as stack:
        several = [stack.enter_context(read_only.listening("/events")) for _ in range(8)]
        assert all(next(events)["whole"] for events in several)
        store.config_resetstat()
        for _ in range(3):
            for events in several:
                next(events)
        asked = store.info("commandstats")["cmdstat_evalsha"]["calls"]
        assert 4 <= asked < 8 * 3 * 4, "some scripts for a read, and fewer than a read of each browser would cost"
    until(lambda: is_silent(store), 20, "the last read")


def is_silent(store: redis.Redis) -> bool:
    """Whether no script runs for as long as two reads are apart."""
    store.config_resetstat()
    with contextlib.suppress(redis.TimeoutError):
        store.execute_command("BLPOP", "nothing", 4.5)
    return "cmdstat_evalsha" not in store.info("commandstats")


def test_lost_store_is_shown_until_it_is_back(server: EmbeddedServer) -> None:
    with (
        embedded_server(persist=True) as limits,
        page_of(server.url, TEST_STORE=limits.url) as page,
        page.listening("/events") as events,
    ):
        assert next(events)["whole"]
        limits.kill()
        said: dict[str, Any] = {}
        while "trouble" not in said:
            said = next(events)
        assert said["trouble"].startswith(f"the store at redis://127.0.0.1:{limits.port}/0 does not answer: ")
        assert page.get("/").status == 200
        assert page.get("/limit?name=stripe").status == 200
        assert "celery_ratelimit_up 0.0" in page.get("/metrics").text
        limits.start()
        while "trouble" in said:
            said = next(events)
        assert said["whole"]
        assert said["parts"]["limit stripe"]["word"] == "idle"
        assert len(page.said) == 1, "no stack traces"


def test_lost_broker_leaves_the_page_working(server: EmbeddedServer) -> None:
    with (
        embedded_server() as broker,
        page_of(broker.url, "--allow-changes", "--no-token", TEST_STORE=server.url) as page,
    ):
        with page.listening("/events") as events:
            assert next(events)["parts"]["limit stripe"]["queued"] == "0"
            broker.kill()
            said: dict[str, Any] = {"parts": {}}
            while said["parts"].get("limit stripe", {}).get("queued") != "?":
                said = next(events)
            assert "trouble" not in said
        app = make_app(broker.url)
        app.conf.ratelimit_url = server.url
        park(app, "stripe", 1)
        fields = {"verb": "release", "reason": "why", "form_token": page.form_token()}
        answer = page.post("/limit?name=stripe", fields)
        assert (answer.status, "the broker does not answer" in answer.text) == (400, True)


def test_metrics_without_prometheus_client_say_what_to_install(server: EmbeddedServer, tmp_path: Path) -> None:
    (tmp_path / "prometheus_client.py").write_text("raise ImportError('not here')\n")
    with page_of(server.url, PYTHONPATH=f"{tmp_path}:.") as page:
        answer = page.get("/metrics")
        assert (answer.status, answer.headers["content-type"]) == (404, "text/plain; charset=utf-8")
        assert "pip install 'celery-ratelimit[prometheus]'" in answer.text
        assert page.get("/").status == 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--host 0.0.0.0", "^Error: .*give a token.*\n$"),
        ("--host 0.0.0.0 --allow-changes --no-token", "give a token"),
        (f"--token {TOKEN} --no-token", "--no-token, although there is a token"),
        ("--host 0.0.0.0 --token short", "at least 16 characters"),
        (f"--host 203.0.113.9 --token {TOKEN}", "cannot listen at 203.0.113.9:0"),
        ("--allowed-host http://x", "no name of a host"),
    ],
)
def test_invalid_options_are_errors(server: EmbeddedServer, options: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said), page_of(server.url, *options.split()):
        pass


def test_missing_web_server_says_what_to_install(server: EmbeddedServer, tmp_path: Path) -> None:
    (tmp_path / "starlette.py").write_text("raise ImportError('not here')\n")
    missing = r"not here.*pip install 'celery-ratelimit\[web\]'"
    with pytest.raises(AssertionError, match=missing), page_of(server.url, PYTHONPATH=f"{tmp_path}:."):
        pass


def test_page_that_allows_changes_has_a_token_unless_switched_off(server: EmbeddedServer) -> None:
    with page_of(server.url, "--allow-changes") as page:
        token = page.said[0].split()[1]
        assert page.get("/").status == 303, "other accounts of the machine need the token"
        assert page.get("/", Cookie=page.log_in(token)).status == 200
        until(lambda: f"{page.url}/login#token={token} (logs in)\n" in page.said, 10, "an address that logs in")
    with page_of(server.url, "--allow-changes", "--no-token") as page:
        assert page.get("/").status == 200
    with page_of(server.url, "--host", "0.0.0.0", "--token", TOKEN) as page:
        assert page.get("/", Host="any.example").status == 303
        assert page.get("/", Host="any.example", Authorization=f"Bearer {TOKEN}").status == 200


def test_termination_disconnects_browsers(server: EmbeddedServer) -> None:
    """Browsers are disconnected, and the process ends by itself."""
    with page_of(server.url) as page:
        with page.listening("/events") as events:
            next(events)
            page.process.terminate()
            assert list(events) is not None
        page.process.wait(60)
