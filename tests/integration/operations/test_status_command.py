"""``celery ratelimit status`` and ``top``, as text and as JSON, on every kind of store."""

from __future__ import annotations

import json
import sys
import time

import pytest
import redis
from celery import Celery

from celery_ratelimit import Adaptive, Limit, RateLimitedTask
from celery_ratelimit.app.app_store import limiter_of
from celery_ratelimit.backlog.backlog import backlog_of
from celery_ratelimit.testing import EmbeddedServer
from celery_ratelimit.web.page_data import PageData
from tests.conftest import PATIENT
from tests.integration.store.helpers import rights
from tests.shop import Run, command_line, make_app, park


def test_status_shows_every_limit(run: Run, app: Celery) -> None:
    limiter = limiter_of(app)
    limiter.set_rate("stripe", "20/s", by="ann@host", reason="the upstream is slow")
    limiter.pause("tenant", 60)
    limiter.acquire("stripe", cost=5)
    park(app, "stripe", 40, cost=2)
    for tenant, number in (("tenant:7", 10), ("tenant:8", 25)):
        park(app, "tenant", number, key=tenant, task="shop.sync")
    found = run("status")
    assert found.exit_code == 0, found.output
    heads, *rows = found.output.splitlines()
    assert heads.split()[:5] == ["LIMIT", "CODE", "OVERRIDE", "USED", "FREE"]
    assert [row.split()[0] for row in rows] == ["e\\nmails", "gpu", "stripe", "tenant"], "a name breaks no line"
    assert "20/s, burst 5 by ann@host" in rows[2]
    assert "'the upstream is slow'" in rows[2]
    assert rows[2].endswith("backlogged")
    assert "by key" in rows[3]
    assert "paused" in rows[3]
    limiter.resume("tenant")
    each = {one["name"]: one for one in json.loads(run("status", "--json").output)}
    stripe, tenant = each["stripe"], each["tenant"]
    assert (stripe["code"], stripe["stored"]) == ("100/s, burst 5", "20/s, burst 5")
    assert (stripe["by"], stripe["reason"], stripe["until"]) == ("ann@host", "the upstream is slow", None)
    assert (stripe["parked"], stripe["lots"], stripe["state"]) == (40, 1, "backlogged")
    assert (stripe["queues"], stripe["queued"], stripe["tasks"]) == (["celery"], 0, ["shop.charge"])
    assert 3.6 <= stripe["forecast"]["seconds"] <= 78 / 20 + 0.06, "by cost, at the rate in force"
    assert (tenant["by_key"], tenant["remaining"], tenant["parked"], tenant["lots"]) == (True, None, 35, 2)
    assert tenant["forecast"]["seconds"] == pytest.approx(24 / 5, abs=0.01), "each key drains by itself"
    assert (each["gpu"]["code"], each["gpu"]["state"]) == ("4 at once", "idle")


def test_status_shows_recent_use_beside_the_rate(run: Run, app: Celery, store: redis.Redis) -> None:
    app.conf.ratelimit_quotas = {**app.conf.ratelimit_quotas, "hourly": "1000/h", "slow": "1/d"}
    limiter = limiter_of(app)
    limiter.set_rate("stripe", "50/s", by="ann@host")
    for name in ("stripe", "tenant"):  # 999 permits 87 seconds ago, 1,200 37 seconds ago, and 400 lately
        store.rpush(f"ratelimit:v1:{{{name}}}::seconds", "50 p999", "35 p1200", f"{int(time.time()) - 2} p400")
        store.expire(f"ratelimit:v1:{{{name}}}::seconds", 240)
    store.rpush("ratelimit:v1:{hourly}::minutes", f"{int(time.time()) // 60 - 2} p730")
    store.expire("ratelimit:v1:{hourly}::minutes", 90000)
    limiter.acquire("gpu")
    rows = {row.split()[0]: row for row in run("status").output.splitlines()}
    assert "  40 of 50/s  " in rows["stripe"], "in the last ten seconds, which have 500 at the rate in force"
    assert "  730 of 1000/h  " in rows["hourly"]
    assert "  40/s  " in rows["tenant"], "of all its buckets together"
    assert "  1 of 4  " in rows["gpu"]
    assert "  -  " in rows["slow"]
    each = {one["name"]: one for one in json.loads(run("status", "--json").output)}
    assert [each["stripe"]["used"], each["stripe"]["share"]] == pytest.approx([40, 0.8], abs=0.02)
    assert [each["hourly"]["used"], each["hourly"]["share"]] == pytest.approx([730, 0.73])
    assert [each["gpu"]["used"], each["gpu"]["share"]] == [1, 0.25]
    assert [each["tenant"]["used"], each["tenant"]["share"]] == [pytest.approx(40, abs=0.02), None]
    assert [each["slow"]["used"], each["slow"]["share"]] == [0, 0]
    (uncounted,) = json.loads(
        run("status", "stripe", "--json", of=make_app(app.conf.broker_url, ratelimit_counts=False)).output
    )
    assert (uncounted["used"], uncounted["share"]) == (None, None)
    assert each["stripe"]["used_in_minute"] == pytest.approx(1600 / 60)
    assert each["hourly"]["used_in_minute"] is None
    lines = run("status", "stripe", "hourly", "tenant", "gpu", "slow").output.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("  used ")] == [
        "40 of 50/s on average in the last 10 s (80%); 27/s on average in the last minute",
        "730 of 1000/h on average in the last 1 h (73%)",
        "40/s on average in the last 10 s; 27/s on average in the last minute",
        "1 of 4 (25%)",
        "nothing in the last 1 d",
    ]
    queued = "  queued            0 in queue celery, messages of all tasks"
    assert queued in lines


def test_queued_messages_of_a_keyed_limit_make_its_forecast_unknown(run: Run, app: Celery) -> None:
    assert "  drains in         -\n" in run("status", "tenant").output
    app.send_task("shop.sync", ("7",))
    assert (
        "  drains in         not known: the keys of the messages in the queues are not known"
        in run("status", "tenant").output
    )


def test_status_shows_max_parked(run: Run, app: Celery) -> None:
    for name, key in (("bounded", "{tenant}"), ("whole", None)):

        @app.task(base=RateLimitedTask, name=name, limits=Limit("5/s", name=name, key=key, max_parked=9), shared=False)
        def bounded(tenant: str) -> None: ...

    park(app, "bounded", 2, key="7", task="bounded")
    assert "2, at most 9 for each key, the oldest for " in run("status", "bounded").output
    assert "0, at most 9\n" in run("status", "whole").output
    assert "at most" not in run("status", "stripe").output


@pytest.mark.parametrize("kind", ["cluster", "memory"])
def test_commands_on_other_stores(request: pytest.FixtureRequest, app: Celery, run: Run, kind: str) -> None:
    app.conf.ratelimit_url = request.getfixturevalue("cluster_store").url if kind == "cluster" else "memory://"
    assert run("set", "stripe", "20/s", "--by", "ann").exit_code == 0
    assert run("pause", "stripe", "--for", "1h").exit_code == 0
    each = {one["name"]: one for one in json.loads(run("status", "--json").output)}
    assert (each["stripe"]["stored"], each["stripe"]["by"]) == ("20/s, burst 5", "ann")
    assert each["stripe"]["retry_after"] > 3000, "until the pause is over"
    assert (each["stripe"]["state"], each["gpu"]["state"]) == ("paused", "idle")
    if kind == "cluster":  # no worker parks in the memory of another process
        park(app, "stripe", 3)
        assert run("explain", "stripe--2").output.startswith("shop.charge[stripe--2] is parked at place 3 of 3")
        assert json.loads(run("status", "stripe", "--json").output)[0]["parked"] == 3
    assert [one["verb"] for one in json.loads(run("history", "stripe", "--json").output)] == ["set", "pause"]


def test_documented_rights_are_enough_for_the_command_line_and_the_page(
    server: EmbeddedServer, store: redis.Redis, app: Celery, run: Run
) -> None:
    store.execute_command("ACL", "SETUSER", "operator", "reset", "on", ">secret", *rights())
    try:
        app.conf.ratelimit_url = server.url.replace("redis://", "redis://operator:secret@") + PATIENT
        park(app, "stripe", 3)
        commands = "status", "set stripe 5/s", "history stripe", "reset stripe", "parked stripe", "explain stripe--2"
        for command in commands:
            found = run(*command.split())
            assert found.exit_code == 0, found.output
        assert "limit stripe" in PageData(app).at("")
    finally:
        store.execute_command("ACL", "DELUSER", "operator")


def test_tasks_that_the_broker_refuses_are_shown_with_its_error(run: Run, app: Celery) -> None:
    backlog_of(app).register.publish_failures({("stripe", "orders.throttled", ""): "the broker has no such queue"})
    error = "tasks cannot be published to queue 'orders.throttled': the broker has no such queue"
    assert f"stripe: {error}" in run("status").output
    assert error in run("status", "stripe").output
    assert error in run("check", "--fleet").output
    (told,) = json.loads(run("status", "stripe", "--json").output)
    assert told["failures"][0]["error"] == "the broker has no such queue"


def test_adaptive_limit_shows_its_current_share_of_the_rate(server: EmbeddedServer, store: redis.Redis) -> None:
    app = make_app(server.url)
    app.conf.ratelimit_quotas["stripe"] = Limit("100/s", name="stripe", adaptive=Adaptive(recover=3600))
    run = command_line(app)
    limiter_of(app).throttled("stripe", by="429 of task shop.charge")
    assert "adaptive: 70% of the rate now" in run("status").output
    assert "100/s (code), adaptive: 70% of the rate now" in run("resume", "stripe").output
    assert "429 of task shop.charge  reduce" in run("history", "stripe").output


def test_very_many_backlogs_are_only_counted(run: Run, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(30):
        park(app, "tenant", 2, key=f"tenant:{n}", task="shop.sync")
    monkeypatch.setattr("celery_ratelimit.operations.overview.MAX_LOTS", 20)
    (tenant,) = json.loads(run("status", "tenant", "--json").output)
    assert (tenant["parked"], tenant["lots"], tenant["oldest"], tenant["forecast"]["seconds"]) == (60, 30, None, None)


def test_top_without_rich_says_what_to_install(run: Run, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.live", None)
    found = run("top")
    assert (found.exit_code, "pip install 'celery-ratelimit[cli]'" in found.output) == (1, True)


def test_full_store_is_a_warning(run: Run, app: Celery, store: redis.Redis) -> None:
    try:
        store.config_set("maxmemory", store.info("memory")["used_memory"] + 1000)
        for arguments in (["check", "--fleet"], ["status"]):
            assert "of its maxmemory, so no task is parked" in run(*arguments).output
    finally:
        store.config_set("maxmemory", 0)
    assert "of its maxmemory" not in run("status").output
