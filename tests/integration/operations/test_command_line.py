"""``celery -A proj ratelimit …``: output as text and as JSON, and exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from click.shell_completion import ShellComplete
from kombu import Queue, pools

from benchmarks.servers import Cluster
from celery_ratelimit import Adaptive, Concurrency, Limit, RateLimitedTask
from celery_ratelimit.app.state import limiter_of
from celery_ratelimit.backlog.backlog import backlog_of
from celery_ratelimit.backlog.messages import Parked
from celery_ratelimit.cli import ratelimit
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.lots import ParkingLots
from celery_ratelimit.operations.setup_checks import InformationalFinding
from celery_ratelimit.operations.task_checks import check_tasks
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.conftest import PATIENT
from tests.fleet_of import until
from tests.integration.store.helpers import rights
from tests.shop import Run, command_line, make_app, park


@pytest.fixture
def app(server: EmbeddedServer, store: redis.Redis) -> Celery:
    pools.reset()
    return make_app(server.url)


@pytest.fixture
def run(app: Celery) -> Run:
    return command_line(app)


# -- status ------------------------------------------------------------------------------------------------------------


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
    assert heads.split()[:5] == ["LIMIT", "CODE", "STORED", "USED", "LEFT"]
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


def note_seconds(store: redis.Redis, name: str) -> None:
    """As ``lua/add_counts.lua`` has written it: 999 permits 87 seconds ago, 1,200 37 seconds ago, and 400 lately."""
    key = f"ratelimit:v1:{{{name}}}::seconds"
    store.rpush(key, "50 p999", "35 p1200", f"{int(time.time()) - 2} p400")
    store.expire(key, 240)


def test_status_shows_recent_use_beside_the_rate(run: Run, app: Celery, store: redis.Redis) -> None:
    app.conf.ratelimit_quotas = {**app.conf.ratelimit_quotas, "hourly": "1000/h", "slow": "1/d"}
    limiter = limiter_of(app)
    limiter.set_rate("stripe", "50/s", by="ann@host")
    for name in ("stripe", "tenant", "emails"):
        note_seconds(store, name)
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
    assert "  used              40 of 50/s: 80%, on average 27 in the last minute\n" in run("status", "stripe").output


def test_forecast_includes_messages_at_the_broker(run: Run, app: Celery, store: redis.Redis) -> None:
    store.rpush("ratelimit:v1:{stripe}::seconds", f"{int(time.time()) - 2} p1000")  # workers start all that is allowed
    store.expire("ratelimit:v1:{stripe}::seconds", 240)
    for _ in range(30):
        app.tasks["shop.charge"].apply_async()
    backlog_of(app).register.attend("w1", ["celery"], [], 60.0)
    (stripe,) = json.loads(run("status", "stripe", "--json").output)
    assert stripe["queued"] == 30
    assert stripe["forecast"]["seconds"] == pytest.approx(0.26), "the first five at once"


def test_queue_length_is_unknown_when_the_broker_is_lost(run: Run, app: Celery) -> None:
    app.conf.broker_url = "redis://127.0.0.1:1/0"
    found = run("status", "stripe", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.output)[0]["queued"] is None
    assert "  in queues         ? (celery)" in run("status", "stripe").output


def test_status_shows_max_parked(run: Run, app: Celery) -> None:
    for name, key in (("bounded", "{tenant}"), ("whole", None)):

        @app.task(base=RateLimitedTask, name=name, limits=Limit("5/s", name=name, key=key, max_parked=9), shared=False)
        def bounded(tenant: str) -> None: ...

    park(app, "bounded", 2, key="7", task="bounded")
    assert "2, at most 9 for each key, the oldest for " in run("status", "bounded").output
    assert "0, at most 9\n" in run("status", "whole").output
    assert "at most" not in run("status", "stripe").output


UNKNOWN = "Error: No limit is called 'strpe'. Did you mean 'stripe'? (--force does it anyway)\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        *((f"{command} strpe", 2, UNKNOWN) for command in ("status", "pause", "history", "parked")),
        ("parked x", 2, "No limit is called 'x'. There are 'e\\nmails', 'gpu', 'stripe', 'tenant'. (--force"),
        ("set stripe 20", 2, "write 20/s, or 20/m"),
        ("set stripe 20/x", 2, "cannot read the rate '20/x'"),
        ("set stripe", 2, "set what? A RATE, --shadow or --no-shadow"),
        ("set stripe 20/s --for soon", 2, "'soon' is no length of time"),
        ("set stripe 20/s --key tenant:7", 2, "is not kept by key"),
        ("reset tenant", 2, "is kept by key"),
        ("explain unknown", 1, "is not known"),
        ("release stripe unknown", 1, "1 of 1 are not parked there"),
    ],
)
def test_invalid_command_is_an_error_of_one_line(run: Run, arguments: str, code: int, says: str) -> None:
    found = run(*arguments.split())
    assert (found.exit_code, says in found.output) == (code, True), found.output
    assert "Traceback" not in found.output


@pytest.mark.parametrize(
    "arguments", ["status", "set stripe 1/s", "history stripe", "parked stripe", "explain x", "drain"]
)
def test_lost_store_is_an_error_of_one_line(run: Run, store: redis.Redis, arguments: str) -> None:
    app = make_app("redis://127.0.0.1:1/0")
    app.conf.ratelimit_url = "redis://:secret@127.0.0.1:1/0"
    found = run(*arguments.split(), of=app)
    assert found.exit_code == 1
    assert found.output.startswith("Error: the store at redis://**@127.0.0.1:1/0 does not answer: "), found.output
    assert len(found.output.splitlines()) == 1
    assert "secret" not in found.output


# -- Changes -----------------------------------------------------------------------------------------------------------


def test_change_shows_the_state_before_and_after(run: Run, app: Celery) -> None:
    found = run("set", "stripe", "20/s", "--for", "10m", "--reason", "slow", "--by", "ann")
    assert found.exit_code == 0, found.output
    was, now = found.output.splitlines()
    assert was == "stripe: was 100/s, burst 5 (code)"
    assert now.startswith("stripe: now 20/s, burst 5 by ann ")
    assert now.endswith(", 'slow'")
    config = limiter_of(app).config("stripe")
    assert config.until is not None
    assert (config.by, config.reason, round(config.until - config.since)) == ("ann", "slow", 600)
    assert re.search("paused by .+ until resumed", run("pause", "stripe").output)
    assert "paused" not in run("resume", "stripe").output.splitlines()[1]
    assert run("unset", "stripe").output.splitlines()[1] == "stripe: now 100/s, burst 5 (code)"
    assert run("unset", "stripe").output == "stripe: nothing to change: 100/s, burst 5 (code)\n"
    verbs = [each["verb"] for each in json.loads(run("history", "stripe", "--json").output)]
    assert verbs == ["set", "pause", "resume", "unset"]
    said = json.loads(run("set", "tenant", "50/s", "--key", "tenant:7", "--burst", "3", "--json").output)
    assert (said["before"]["stored"], said["after"]["stored"], said["done"]) == (None, "50/s, burst 3", True)
    assert run("set", "gpu", "2").exit_code == 0
    assert limiter_of(app).config("gpu").in_force == Concurrency(2, name="gpu")
    assert run("set", "other", "5/s", "--force").exit_code == 0
    assert "5/s" in run("status", "other").output


def test_weight_is_set_shown_and_returned_to_the_code(run: Run, app: Celery) -> None:
    app.conf.ratelimit_quotas["crm"] = {"rate": "10/s", "fair": "{tenant}", "weights": {"gold": 4}}
    assert "gold   4       4     -      -" in run("weight", "crm").output
    assert run("weight", "crm", "acme", "2", "--reason", "a deal", "--by", "ann").exit_code == 0
    shown = json.loads(run("weight", "crm", "--json").output)
    assert [shown[each]["weight"] for each in ("acme", "gold")] == [2, 4]
    assert shown["acme"]["by"] == "ann"
    assert run("weight", "crm", "acme", "code").exit_code == 0
    changes = json.loads(run("history", "crm", "--json").output)
    shown = [[each[name] for name in ("verb", "key", "reason")] for each in changes]
    assert shown == [["weight", "acme", "a deal"], ["weight", "acme", ""]]
    shown = [[each["before"]["shown"], each["after"]["shown"]] for each in changes]
    assert shown == [["", "weight 2"], ["weight 2", ""]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("crm", "acme"), "which weight"),
        (("crm", "acme", "much"), "'much' is neither a number nor 'code'"),
        (("crm", "acme", "-1"), "-1"),
        (("stripe", "acme", "1"), "not fair"),
    ],
)
def test_invalid_weight_is_an_error(run: Run, app: Celery, arguments: tuple[str, ...], says: str) -> None:
    app.conf.ratelimit_quotas["crm"] = {"rate": "10/s", "fair": "{tenant}"}
    result = run("weight", "--", *arguments)
    assert (result.exit_code, says in result.output) == (2, True), result.output


def test_reset_fills_the_bucket(run: Run, app: Celery) -> None:
    limiter_of(app).acquire("stripe", cost=5)
    limiter_of(app).pause("stripe", 60)
    found = run("reset", "stripe")
    assert found.exit_code == 0, found.output
    assert found.output.splitlines()[1] == "stripe: now 5 of 5 permits free, 0 tasks about to start"


def test_history_breaks_no_line(run: Run, app: Celery) -> None:
    limiter_of(app).pause("tenant", 5, key="a\nb", by="\x1b[31mred", reason="\0")
    lines = run("history", "tenant").output.splitlines()
    assert len(lines) == 2
    assert "a\\nb" in lines[1]
    assert "\\x1b[31mred" in lines[1]


# -- Lots --------------------------------------------------------------------------------------------------------------


def test_parked_tasks_are_listed_in_pages_by_turn(run: Run, app: Celery) -> None:
    park(app, "tenant", 3, key="tenant:7", task="shop.sync")
    park(app, "tenant", 4, key="tenant:8", task="shop.sync")
    pages = [
        json.loads(run("parked", "tenant", "--number", "2", "--page", f"{page}", "--json").output)
        for page in range(1, 5)
    ]
    places = [(each["key"], each["place"], each["task"]["id"]) for page in pages for each in page["tasks"]]
    in_turn = [(key, n + 1, f"tenant-{key}-{n}") for n in range(3) for key in ("tenant:7", "tenant:8")]
    assert places == [*in_turn, ("tenant:8", 4, "tenant-tenant:8-3")], "each key at 5/s, side by side"
    assert {page["parked"] for page in pages} == {7}
    waits = [each["turn"] - each["now"] for page in pages for each in page["tasks"] if each["key"] == "tenant:8"]
    assert waits == pytest.approx([0.0, 0.2, 0.4, 0.6], abs=0.001), "5/s"
    assert run("parked", "tenant", "--number", "2", "--page", "4").output.endswith("7 parked, page 4 of 4\n")
    assert json.loads(run("parked", "tenant", "--key", "tenant:7", "--json").output)["parked"] == 3


def test_tasks_are_released_by_id_and_drained(run: Run, app: Celery, store: redis.Redis) -> None:
    ids = park(app, "stripe", 3)
    assert run("release", ids[1]).output == "1 task sent to the broker\n"
    assert store.llen("celery.throttled") == 1
    assert run("release", "stripe", "--yes").output == "2 tasks sent to the broker\n"
    park(app, "stripe", 3)
    assert json.loads(run("drain", "--json").output) == {"tasks": 3}
    assert store.llen("celery") == 3


def test_parked_tasks_of_many_keys_are_released_over_few_connections(
    run: Run, app: Celery, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(20):
        park(app, "tenant", 2, key=f"tenant:{n}", task="shop.sync")
    connections, connect = [], app.connection_for_write
    monkeypatch.setattr(
        app, "connection_for_write", lambda *args, **how: connections.append(1) or connect(*args, **how)
    )
    store.config_resetstat()
    assert run("release", "tenant", "tenant-tenant:3-0", "tenant-tenant:4-1").output == "2 tasks sent to the broker\n"
    assert store.info("commandstats")["cmdstat_evalsha"]["calls"] <= 5, "one finds them, and each lot costs two"
    assert run("release", "tenant", "--yes").output == "38 tasks sent to the broker\n"
    assert len(connections) < 10


def test_purge_asks_for_confirmation(run: Run, app: Celery) -> None:
    park(app, "stripe", 3)
    for answer in ("n\n", ""):  # an empty one is Ctrl-C's, or Ctrl-D's
        found = run("purge", "stripe", input=answer)
        assert found.exit_code == 1
        assert "Throw away all 3 parked tasks of stripe?" in found.output
    assert "Throw away 2 tasks?" in run("purge", "stripe", "stripe--0", "stripe--1", input="n\n").output
    assert json.loads(run("parked", "stripe", "--json").output)["parked"] == 3
    assert (
        run("purge", "stripe", "--yes", "--json").output == json.dumps({"name": "stripe", "tasks": 3}, indent=2) + "\n"
    )
    assert run("purge", "stripe", input="y\n").output.endswith("0 tasks thrown away\n")


def test_release_of_all_asks_for_confirmation(run: Run, app: Celery) -> None:
    for n in range(5):
        park(app, "tenant", 2, key=f"tenant:{n}", task="shop.sync")
    found = run("release", "tenant", input="n\n")
    assert (found.exit_code, "Release all 10 parked tasks of 5 keys of tenant?" in found.output) == (1, True)
    assert run("release", "tenant", "--key", "tenant:4").output == "2 tasks sent to the broker\n"
    assert run("release", "tenant", "--key", "tenant:4").output == "0 tasks sent to the broker\n"
    assert run("release", "tenant", "tenant-tenant:3-0").output == "1 task sent to the broker\n", "an id says which"
    assert "Throw away all 1 parked task of tenant?" in run("purge", "tenant", "--key", "tenant:3", input="n\n").output
    assert run("release", "tenant", input="y\n").output.endswith("7 tasks sent to the broker\n")
    assert run("release", "tenant").output == "0 tasks sent to the broker\n", "there is nothing to ask"


def test_explain_parked_task(run: Run, app: Celery) -> None:
    limiter_of(app).set_rate("stripe", "2/s", by="ann@host")
    limiter_of(app).acquire("stripe", cost=5)
    ids = park(app, "stripe", 11, cost=2)
    said = json.loads(run("explain", ids[10], "--json").output)
    assert (said["where"], said["limit"], said["place"], said["parked"]) == ("parked", "stripe", 10, 11)
    assert (said["task"], said["queue"], said["config"]["by"]) == ("shop.charge", "celery", "ann@host")
    assert 7 < said["forecast"]["seconds"] <= 10.8, "ten of two permits each, at 2/s, and its own"
    text = run("explain", ids[10]).output
    assert text.startswith(f"shop.charge[{ids[10]}] is parked at place 11 of 11 of limit 'stripe'.\n")
    assert "set by ann@host" in text
    limiter_of(app).pause("stripe", 100)
    assert json.loads(run("explain", ids[10], "--json").output)["forecast"]["seconds"] > 100
    run("pause", "stripe")  # without an end: nothing can be forecast
    assert json.loads(run("explain", ids[10], "--json").output)["forecast"]["seconds"] is None
    said = run("explain", ids[10]).output
    assert said.endswith("When it will start is not known: paused until resumed.\n")
    assert re.search("The limit is paused by .+ until resumed.\n", said)
    assert " ?  " in run("status").output.splitlines()[3]
    assert run("parked", "stripe").output.splitlines()[1].endswith(" ?")


def test_explain_task_of_a_fair_limit(run: Run, app: Celery) -> None:
    crm = Limit("2/s", name="crm", fair="{tenant}", weights={"gold": 4})
    app.conf.ratelimit_quotas = {**app.conf.ratelimit_quotas, "crm": crm}

    @app.task(name="shop.call", base=RateLimitedTask, limits="crm", shared=False)
    def call(tenant: str) -> None: ...

    limiter_of(app).acquire("crm", args={"tenant": "x"})
    park(app, "crm", 50, key="", task="shop.call", share="big")
    (id,) = park(app, "crm", 1, key="", task="shop.call", share="gold")
    said = json.loads(run("explain", id, "--json").output)
    shown = [said[name] for name in ("where", "place", "parked", "share", "weight")]
    assert shown == ["parked", 0, 51, "gold", 4.0]
    assert said["forecast"]["seconds"] <= 1
    text = run("explain", id).output
    assert "is parked at about place 1 of 51 of limit 'crm'" in text
    assert "Its share 'gold' has the weight 4." in text
    limiter_of(app).set_weight("crm", "gold", 0)
    said = json.loads(run("explain", id, "--json").output)
    assert (said["forecast"]["seconds"], said["weight"]) == (None, 0.0)
    assert "share 'gold' has weight 0: its tasks are held back" in run("explain", id).output


ODD_IDS = ["a@b", "@", "a.1~0@q", "*", "[a-z]?", "^id", "back\\slash", 'a "quote"', "zähler"]


def take_due(app: Celery, *, absent: Sequence[str] = ()) -> list[Parked]:
    """A worker takes the due tasks of ``stripe``, while no worker consumes the ``absent`` queues."""
    demand = LimitRequest(Limit("100/s"), "stripe", "")
    return [task for lot in backlog_of(app).take_due([demand], absent=absent) for task in lot.leaving]


@pytest.mark.parametrize("queue", ["celery", "q@r", "@"])
def test_explain_task_whose_queue_no_worker_consumes(run: Run, app: Celery, queue: str) -> None:
    park(app, "stripe", 0, ids=ODD_IDS, queue=queue)
    assert not take_due(app, absent=[queue])
    for id in ODD_IDS:
        said = json.loads(run("explain", "--json", "--", id).output)
        assert (said["where"], said["id"], said["queue"], said["limit"]) == ("aside", id, queue, "stripe")
    assert f"no worker consumes the queue {queue!r}" in run("explain", "a@b").output


def test_explain_task_on_its_way_to_the_broker(run: Run, app: Celery) -> None:
    park(app, "stripe", 0, ids=ODD_IDS)
    assert len(take_due(app)) == len(ODD_IDS), "a worker has let them out, and has not published them yet"
    for id in ODD_IDS:
        said = json.loads(run("explain", "--json", "--", id).output)
        assert (said["where"], said["id"], said["queue"], said["limit"]) == ("leaving", id, "celery", "stripe")
        assert said["forecast"]["seconds"] is not None
    assert "is on its way back to the queue 'celery'" in run("explain", "a@b").output
    released = run("release", "a@b")  # which is for parked tasks
    assert released.exit_code == 1
    assert released.output.startswith("Error: nothing to release: shop.charge[a@b] is on its way back to the queue")
    assert json.loads(run("explain", "a", "--json").output)["where"] == "unknown"


#: The record of a task that was parked now, of which nothing else is known.
RECORD = "1 1 1 0 " + 6 * " "


@pytest.mark.parametrize(
    "stored",
    [
        None,
        "",
        "x",
        "1 1 x {}",
        *(RECORD + text for text in ("no JSON", "[]", "{}", '{"headers": null}', '{"headers": {}}')),
    ],
)
def test_unreadable_message_does_not_hide_others(run: Run, app: Celery, store: redis.Redis, stored: str | None) -> None:
    park(app, "stripe", 3)
    (payloads,) = store.keys("*{stripe}*payloads*")
    if stored is None:
        store.hdel(payloads, "stripe--1~0@celery")
    else:
        store.hset(payloads, "stripe--1~0@celery", stored)
    tasks = {task.id: task.task for task in ParkingLots(app).tasks("stripe")}
    assert tasks == {"stripe--0": "shop.charge", "stripe--1~0@celery": "", "stripe--2": "shop.charge"}
    assert "3 parked" in run("parked", "stripe").output
    for id in ("stripe--1", "\0", "a\nb", "x" * 5000, "stripe--1\0", "~", "%s"):
        found = run("explain", "--json", "--", id)
        assert (found.exit_code, json.loads(found.output)["where"]) == (1, "unknown")
    assert run("release", "stripe", "stripe--0", "stripe--2").output == "2 tasks sent to the broker\n"
    if stored and stored.startswith("1 1 1"):
        assert run("release", "stripe", "--yes").output == "0 tasks sent to the broker\n"
        assert run("purge", "stripe", "--yes").exit_code == 0


def test_shell_completes_names_of_limits(app: Celery) -> None:
    complete = ShellComplete(ratelimit, {"obj": SimpleNamespace(app=app)}, "ratelimit", "_X")
    assert [each.value for each in complete.get_completions(["pause"], "st")] == ["stripe"]
    # As a shell asks it: the app is not made yet, its name is.
    words = "celery -A example_project.app ratelimit pause st"
    env = {**os.environ, "_CELERY_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "5"}
    script = "import sys; sys.argv = ['celery']; from celery.__main__ import main; main()"
    found = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=240)
    assert found.stdout == "plain,stripe\n", found.stderr


# -- check -------------------------------------------------------------------------------------------------------------


def test_check_of_a_fleet_lists_warnings(run: Run, app: Celery) -> None:
    app.conf.ratelimit_quotas = {**app.conf.ratelimit_quotas, "unused": "1/s"}
    app.tasks["shop.charge"].acks_late, app.tasks["shop.charge"].time_limit = True, 7200
    app.conf.ratelimit_tasks = {"shop.charge": [Limit("1/s", burst=50, name="dear", cost=20)]}
    limiter = limiter_of(app)
    limiter.set_rate("dear", Limit("1/s", burst=10))
    found = run("check", "--fleet")
    assert found.exit_code == 1
    for part in (
        "no task and no queue has the quota 'unused'",
        "task 'shop.charge' has acks_late and may run for 7200 s",
        "each of its calls costs 20: none can ever be granted",
        "no worker has answered",
    ):
        assert part in found.output, found.output


def on_rabbitmq(queue: Queue, **options: Any) -> list[str]:
    """What is found in the settings of an app with one limited task in a queue at RabbitMQ, which is not asked."""
    app = Celery("shop", broker="amqp://nowhere", set_as_current=False)
    app.conf.update(task_queues=[queue], task_default_queue=queue.name, ratelimit_url="redis://nowhere")

    @app.task(name="shop.charge", base=RateLimitedTask, shared=False, **{"limits": "1/s", **options})
    def charge(order: int, tenant: str | None = None, **more: Any) -> None: ...

    return list(check_tasks(app))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queue_arguments": {"x-max-length": 9}}, "'jobs' has x-max-length: parked tasks do not count"),
        ({"max_length_bytes": 9}, "limited queue 'jobs' has x-max-length-bytes: parked tasks do not count"),
        ({"message_ttl": 9}, "'jobs' has x-message-ttl: a task that waits longer is dead-lettered or dropped"),
    ],
)
def test_bounds_of_a_rabbitmq_queue_are_notes(options: dict[str, Any], says: str) -> None:
    (note,) = on_rabbitmq(Queue("jobs", **options))
    assert isinstance(note, InformationalFinding)
    assert says in note
    assert not on_rabbitmq(Queue("jobs", **options), throttle="drop")
    assert not on_rabbitmq(Queue("jobs", queue_arguments={"x-max-priority": 9}))


@pytest.mark.parametrize(("argument", "needs"), [("tenant", True), ("region", True), ("order", False)])
def test_optional_argument_as_a_key_is_a_note(argument: str, needs: bool) -> None:
    found = on_rabbitmq(Queue("jobs"), limits=Limit("1/s", key=f"{{{argument}}}"))
    assert [isinstance(each, InformationalFinding) for each in found] == [True] * needs
    assert all(f"a call of task 'shop.charge' without '{argument}' fails" in each for each in found)
    for choice in ("error", "exempt", "shared"):
        assert not on_rabbitmq(Queue("jobs"), limits=Limit("1/s", key=f"{{{argument}}}", missing_key=choice))


def test_task_without_the_key_of_its_queues_limit_is_a_warning(app: Celery) -> None:
    app.conf.ratelimit_queues = {"celery": {"rate": "1/s", "key": "{tenant}"}}
    found = [each for each in check_tasks(app) if "task 'shop." in each]
    assert len(found) == 2, "the third task has a tenant"
    for name, warning in zip(("shop.charge", "shop.train"), found, strict=True):
        says = f"in queue 'celery' the task fails: task {name!r}: key='{{tenant}}' of limit 'celery' names the argument"
        assert warning.startswith(says)
        assert not isinstance(warning, InformationalFinding)


def test_lost_or_hung_result_backend_is_a_warning(run: Run, server: EmbeddedServer, store: redis.Redis) -> None:
    def with_backend(url: str) -> Celery:
        app = make_app(server.url)
        app.conf.result_backend = url
        return app

    lost = run("check", "--fleet", of=with_backend("redis://:secret@127.0.0.1:1/0")).output
    assert lost.count("the result backend at redis://**@127.0.0.1:1/0 does not answer") == 1
    assert "secret" not in lost
    with embedded_server() as hung:
        until(lambda: not list(check_tasks(with_backend(hung.url))), 20, "an answer within a second")
        hung.freeze()
        (said,) = check_tasks(with_backend(hung.url))
        assert "does not answer (nothing within 1 s), and no task ends before it does" in said


# -- Elsewhere ---------------------------------------------------------------------------------------------------------


def test_commands_on_a_cluster(cluster_store: Cluster, server: EmbeddedServer, store: redis.Redis, run: Run) -> None:
    app = make_app(server.url)
    app.conf.ratelimit_url = cluster_store.url
    park(app, "stripe", 3)
    assert run("set", "stripe", "20/s", "--by", "ann", of=app).exit_code == 0
    each = {one["name"]: one for one in json.loads(run("status", "--json", of=app).output)}
    assert (each["stripe"]["stored"], each["stripe"]["by"], each["stripe"]["parked"]) == ("20/s, burst 5", "ann", 3)
    assert run("explain", "stripe--2", of=app).output.startswith("shop.charge[stripe--2] is parked at place 3 of 3")
    assert len(json.loads(run("history", "stripe", "--json", of=app).output)) == 1


def test_commands_on_a_memory_store(server: EmbeddedServer, store: redis.Redis, run: Run) -> None:
    app = make_app(server.url)
    app.conf.ratelimit_url = "memory://"
    assert run("pause", "stripe", "--for", "1h", of=app).exit_code == 0
    each = {one["name"]: one for one in json.loads(run("status", "--json", of=app).output)}
    assert (each["stripe"]["state"], each["gpu"]["state"]) == ("paused", "idle")
    assert each["stripe"]["retry_after"] > 3000, "until the pause is over"
    assert [one["verb"] for one in json.loads(run("history", "stripe", "--json", of=app).output)] == ["pause"]


def test_documented_rights_are_enough_for_the_command_line(
    server: EmbeddedServer, store: redis.Redis, run: Run
) -> None:
    store.execute_command("ACL", "SETUSER", "operator", "reset", "on", ">secret", *rights())
    try:
        app = make_app(server.url)
        app.conf.ratelimit_url = server.url.replace("redis://", "redis://operator:secret@") + PATIENT
        park(app, "stripe", 3)
        commands = "status", "set stripe 5/s", "history stripe", "reset stripe", "parked stripe", "explain stripe--2"
        for command in commands:
            found = run(*command.split(), of=app)
            assert found.exit_code == 0, found.output
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


def test_top_ends_with_ctrl_c(run: Run, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["celery_ratelimit.cli.status"], "sleep", sleep)
    found = run("top", "--every", "0.5")
    assert (found.exit_code, looks) == (0, [0.5] * 3)
    assert "stripe" in found.output


def test_full_store_is_a_warning(run: Run, app: Celery, store: redis.Redis) -> None:
    try:
        store.config_set("maxmemory", store.info("memory")["used_memory"] + 1000)
        for arguments in (["check", "--fleet"], ["status"]):
            assert "of its maxmemory, so no task is parked" in run(*arguments).output
    finally:
        store.config_set("maxmemory", 0)
    assert "of its maxmemory" not in run("status").output
