"""When tasks start: command line, page, ``explain``, Prometheus and Python show one forecast."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
import redis
from celery import Celery
from prometheus_client import CollectorRegistry

from benchmarks.clock import STANDING
from celery_ratelimit import Concurrency, Limit, ParkingLots, RateLimitedTask
from celery_ratelimit.app.app_store import limiter_of
from celery_ratelimit.backlog.backlog import backlog_of
from celery_ratelimit.operations.limit_status import LimitStatus
from celery_ratelimit.operations.overview import overview
from celery_ratelimit.operations.read_parking_lots import longest
from celery_ratelimit.prometheus import collector
from celery_ratelimit.testing import EmbeddedServer
from celery_ratelimit.web.page_data import PageData
from celery_ratelimit.words import length
from tests.conftest import PATIENT, START, Clock
from tests.shop import Run, park

TASKS = {"api": "call", "tenant": "sync", "crm": "mail", "gpu": "train"}


@pytest.fixture
def app(server: EmbeddedServer, clock: Clock) -> Celery:
    """An app whose store has a clock that stands still."""
    app = Celery("shop", broker=server.url, backend="cache+memory://", set_as_current=False)
    app.conf.ratelimit_url = server.url + PATIENT
    limits = [
        Limit("20/s", name="api"),
        Limit("5/s", name="tenant", key="{tenant}"),
        Limit("10/s", name="crm", fair="{tenant}"),
        Concurrency(5, name="gpu"),
    ]
    for limit in limits:

        @app.task(name=TASKS[str(limit.name)], base=RateLimitedTask, limits=limit, shared=False)
        def task(tenant: str = "") -> None: ...

    asker: Any = limiter_of(app)._asker
    asker.replace_includes = {"now": STANDING}
    for script in vars(asker.core.scripts).values():
        script._replace = asker.replace_includes
    return app


def status(app: Celery, name: str) -> LimitStatus:
    (found,) = overview(app, name)
    return found


def started(store: redis.Redis, name: str, per_second: float, seconds: int = 60) -> None:
    """As workers have counted it: so many permits in each of the last seconds."""
    key, now = f"ratelimit:v1:{{{name}}}::seconds", START // 1_000_000
    entries = [f" p{int((n + 1) * per_second) - int(n * per_second)}" for n in range(seconds)]
    store.rpush(key, *[entry if n < seconds - 1 else f"{now - 1}{entry}" for n, entry in enumerate(entries)])
    store.expire(key, 240)


def metric(app: Celery, name: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(collector(app))
    return registry.get_sample_value("celery_ratelimit_drain_seconds", {"limit": name})


def displayed(app: Celery, name: str) -> list[Any]:
    """When the one backlog of a limit has drained: Python, page, Prometheus and lots."""
    (lot,) = [lot for lot in ParkingLots(app).lots() if lot.name == name]
    return [
        status(app, name).drains_in,
        PageData(app).at("")[f"limit {name}"]["drains in"],
        metric(app, name),
        lot.drains_in,
    ]


# -- Reasons -----------------------------------------------------------------------------------------------------------


def test_without_a_worker_no_display_shows_a_number(app: Celery, run: Run) -> None:
    ids = park(app, "api", 40, task="call")
    assert status(app, "api").forecast.seconds is not None
    backlog_of(app).register.attend("w1", [], ["celery"], 0.0)
    why = r"no worker consumes queue 'celery' \(the last one stopped 0\.0 s ago\)"
    assert re.fullmatch(why, status(app, "api").forecast.reason), "at once"
    assert re.search(rf"  \?  +backlogged, {why}$", run("status").output, re.MULTILINE)
    assert re.search(rf"  drains in         not known: {why}\n", run("status", "api").output)
    assert re.search(f"When it will start is not known: {why}", run("explain", ids[3]).output)
    assert run("parked", "api", "--number", "1").output.splitlines()[1].endswith("?")
    assert displayed(app, "api") == [None, "?", None, None]


def test_killed_worker_counts_until_its_heartbeat_expires(app: Celery, clock: Clock) -> None:
    park(app, "api", 40, task="call")
    backlog_of(app).register.attend("w1", ["celery"], [], 6.0)
    clock.advance(5.9)
    assert status(app, "api").forecast.reason == ""
    clock.advance(12.1)
    assert status(app, "api").forecast.reason == "no worker consumes queue 'celery' (the last one stopped 12.0 s ago)"


def test_forecast_uses_the_queue_that_tasks_were_sent_to(app: Celery) -> None:
    """Not the one that their task is usually sent to."""
    ids = park(app, "api", 20, task="call", queue="urgent")
    assert status(app, "api").forecast.seconds == pytest.approx(1.0, abs=0.1)
    assert ParkingLots(app).explain(ids[10]).forecast is not None
    backlog_of(app).register.attend("w1", ["celery"], ["urgent"], 3600.0)
    assert status(app, "api").forecast.seconds is not None, "a worker consumes the usual queue of its tasks"
    assert ParkingLots(app).explain(ids[10]).starts_at is None, "its own queue has none"


def test_forecast_without_a_worker_of_the_queue_or_of_the_limit_gives_the_reason(app: Celery) -> None:
    park(app, "api", 3, task="call", worker=False)
    assert status(app, "api").forecast.reason == "no worker consumes queue 'celery'"
    backlog_of(app).register.attend("w1", ["celery"], [], 3600.0)
    assert status(app, "api").forecast.reason == "no worker runs this limit"


def test_pause_without_an_end_has_no_forecast(app: Celery, run: Run) -> None:
    (id, *_) = park(app, "api", 40, task="call")
    run("pause", "api")
    assert status(app, "api").forecast.reason == "paused until resumed"
    assert run("status").output.splitlines()[1].endswith(" until resumed")
    shown = [run("status", "api").output, run("explain", id).output, run("parked", "api").output]
    assert re.search("The limit is paused by .+ until resumed.\nWhen it will start is not known: paused", shown[1])
    assert shown[1].endswith(": paused until resumed.\n")
    assert shown[2].splitlines()[1].endswith(" ?")
    assert json.loads(run("explain", id, "--json").output)["forecast"]["seconds"] is None
    assert "99999" not in "".join(shown)
    assert displayed(app, "api") == [None, "?", None, None]


# -- Workers that are slow, and limits without a rate ------------------------------------------------------------------


def test_forecast_of_a_slow_fleet_uses_its_starts_and_says_so(app: Celery, run: Run, store: redis.Redis) -> None:
    ids = park(app, "api", 100, task="call", ago=15.0)
    started(store, "api", 1.0, 13)
    why = "workers start 1/s of 20/s allowed"
    forecast = status(app, "api").forecast
    assert forecast.limited_by == why
    assert forecast.seconds == pytest.approx(99 + 19 * 15), "tasks that left the backlog before wait in workers"
    assert why in run("status").output
    assert re.search(f"It will start in .*, give or take .*: {why}\\.\n", run("explain", ids[99]).output)
    limiter_of(app).set_rate("api", "21/s")
    assert status(app, "api").forecast.limited_by == "", "what was started before says nothing of another rate"


@pytest.mark.parametrize(
    ("ago", "starts", "said"),
    [
        (0.0, 0.0, "5.0 s, give or take 1.5 s, with the queued messages"),
        (15.0, 1.0, "6 min 25 s, give or take 4 min 43 s, with the queued messages: workers start 1/s of 20/s allowed"),
        (15.0, 0.0, "not known: no task has started for 13.0 s"),
    ],
)
def test_time_to_drain_says_that_queued_messages_count(
    app: Celery, run: Run, store: redis.Redis, ago: float, starts: float, said: str
) -> None:
    park(app, "api", 100, task="call", ago=ago)
    if starts:
        started(store, "api", starts, 13)
    app.send_task("call")
    assert f"\n  drains in         {said}\n" in run("status", "api").output


def test_starts_before_a_pause_are_ignored(app: Celery, store: redis.Redis) -> None:
    park(app, "api", 100, task="call", ago=60.0)
    started(store, "api", 1.0)
    assert status(app, "api").forecast.limited_by
    limiter_of(app).pause("api", 30)
    assert status(app, "api").forecast.seconds == pytest.approx(35, abs=1)
    limiter_of(app).resume("api")
    assert status(app, "api").forecast.seconds == pytest.approx(5, abs=1)


def test_concurrency_limit_is_forecast_by_recent_starts(app: Celery, store: redis.Redis) -> None:
    park(app, "gpu", 20, task="train", ago=12.0)
    assert "no task has started for 10.0 s" in status(app, "gpu").forecast.reason
    started(store, "gpu", 5.0, 10)
    assert status(app, "gpu").forecast.seconds == pytest.approx(4.0, abs=0.5)


@pytest.mark.parametrize("name", ["gpu", "api"])
def test_messages_at_the_broker_are_forecast_by_recent_starts(app: Celery, store: redis.Redis, name: str) -> None:
    """None is parked: a limit of places, or workers that start less than is allowed."""
    store.rpush("celery", *["message"] * 200)
    backlog_of(app).register.attend("w1", ["celery"], [], 3600.0)
    assert status(app, name).queued == 200
    assert "no task has started for 10.0 s" in status(app, name).forecast.reason
    started(store, name, 2.0, 20)
    forecast = status(app, name).forecast
    assert forecast.seconds == pytest.approx(100)
    assert forecast.limited_by == ("workers start 2/s of 20/s allowed" if name == "api" else "")
    started(store, name, 20.0, 20)
    assert status(app, name).forecast.seconds == pytest.approx(10, abs=0.1), "all that is allowed"
    if name == "api":
        limiter_of(app).set_shadow("api", True)
        assert status(app, name).forecast.seconds == 0, "no permit is needed"


# -- Keys and shares ---------------------------------------------------------------------------------------------------


def test_keys_with_settings_of_their_own_are_shown_and_the_slowest_counts(app: Celery, run: Run) -> None:
    for tenant, number in (("7", 10), ("8", 50), ("9", 5)):
        ids = park(app, "tenant", number, key=tenant, task="sync")
    limiter = limiter_of(app)
    limiter.pause("tenant", 3600, key="9")
    limiter.set_rate("tenant", "1/s", key="8")
    limiter.set_rate("tenant", "50/s", key="elsewhere", by="ann")
    assert status(app, "tenant").drains_in == pytest.approx(3601, abs=2)
    assert ParkingLots(app).explain(ids[-1]).forecast.seconds == pytest.approx(3601, abs=2)  # type: ignore[union-attr]
    assert "backlogged, 1 key paused, 2 with a rate of their own" in run("status").output
    lines = run("status", "tenant").output.splitlines()
    assert "  keys              1 key paused, 2 with a rate of their own" in lines
    paused, slow, elsewhere = [line.removeprefix(f"  {'key':<18}") for line in lines if line.startswith("  key ")]
    assert re.match(r"9: 5/s \(code\), paused by .+ until \d", paused)
    assert slow.startswith("8: ")
    assert elsewhere.startswith("elsewhere: 50/s by ann")
    (told,) = json.loads(run("status", "tenant", "--json").output)
    assert (told["paused_keys"], told["rated_keys"], len(told["keys"])) == (1, 2, 3)
    limiter.resume("tenant", key="9")
    assert status(app, "tenant").drains_in == pytest.approx(50, abs=1), "at its own rate"
    limiter.pause("tenant", 1e9, key="7")
    assert status(app, "tenant").forecast.reason == "key '7': paused until resumed"


def test_share_of_weight_0_has_no_forecast(app: Celery, run: Run) -> None:
    ids = park(app, "crm", 30, task="mail", share="x")
    park(app, "crm", 30, task="mail", share="y")
    limiter_of(app).set_weight("crm", "x", 0)
    why = "share 'x' has weight 0: its tasks are held back"
    assert status(app, "crm").forecast.reason == why
    assert why in run("status").output
    assert f"When it will start is not known: {why}." in run("explain", ids[0]).output
    explained = json.loads(run("explain", ids[0], "--json").output)
    assert (explained["forecast"]["seconds"], explained["weight"]) == (None, 0.0)
    assert re.search(
        "backlog           share x: 30 parked, the oldest for .*, next turn not known: its weight is 0",
        run("status", "crm").output,
    )
    rows = json.loads(run("parked", "crm", "--json").output)["tasks"]
    assert [(row["task"]["share"], row["turn"] is None) for row in rows] == [("y", False)] * 30 + [("x", True)] * 20
    limiter_of(app).set_weight("crm", "x", 1)
    assert status(app, "crm").drains_in == pytest.approx(6, abs=0.5)


def test_longest_backlogs_are_listed(app: Celery, run: Run, store: redis.Redis) -> None:
    for tenant in range(8):
        park(app, "tenant", 2 + tenant, key=f"t{tenant}", task="sync", ago=100.0)
    started(store, "tenant", 40.0)
    assert [(lot.key, lot.parked) for lot in longest(app, status(app, "tenant"))] == [
        (f"t{n}", 2 + n) for n in (7, 6, 5, 4, 3)
    ]
    text = run("status", "tenant").output
    assert re.search(r"  backlog           t7: 9 parked, the oldest for 1 min 40 s, next turn in \d", text)
    assert "t2:" not in text
    facts = [said for what, said in PageData(app).at("tenant")["facts"] if what == "backlog"]
    assert [fact.partition(":")[0] for fact in facts] == ["t7", "t6", "t5", "t4", "t3"]
    park(app, "crm", 9, task="mail", share="big", ago=50.0)
    park(app, "crm", 2, task="mail", share="small/1", ago=20.0)
    named = longest(app, status(app, "crm"))
    assert [(lot.share, lot.parked, round(START / 1e6 - lot.oldest)) for lot in named] == [
        ("big", 9, 50),
        ("small/1", 2, 20),
    ]
    park(app, "api", 9, task="call")
    assert "  backlog  " not in run("status", "api").output, "it has only one"


def test_parked_tasks_of_a_fair_limit_are_listed_by_turn(app: Celery, run: Run) -> None:
    big = park(app, "crm", 20, task="mail", share="big")
    small = park(app, "crm", 3, task="mail", share="small")
    rows = json.loads(run("parked", "crm", "--json").output)["tasks"]
    assert [row["task"]["id"] for row in rows[:7]] == [big[0], small[0], big[1], small[1], big[2], small[2], big[3]]
    pages = [
        json.loads(run("parked", "crm", "--number", "5", "--page", f"{page}", "--json").output)["tasks"]
        for page in range(1, 6)
    ]
    assert [row["task"]["id"] for page in pages for row in page] == [row["task"]["id"] for row in rows]
    heads, first, *_ = run("parked", "crm").output.splitlines()
    assert heads.split()[:4] == ["POSITION", "KEY", "SHARE", "ID"]
    assert first.split()[:4] == ["1", "-", "big", big[0]]
    for place in (0, 4, 22):
        explained = ParkingLots(app).explain(rows[place]["task"]["id"])
        assert explained.place == place
        assert explained.starts_at == pytest.approx(rows[place]["turn"])


# -- All displays ------------------------------------------------------------------------------------------------------


def shown(seconds: float | None) -> str:
    return "-" if seconds == 0 else length(seconds)


@pytest.mark.parametrize("seed", range(8))
def test_all_displays_show_the_same_forecast(app: Celery, run: Run, store: redis.Redis, seed: int) -> None:
    chance, last, limiter = random.Random(seed), dict[str, list[str]](), limiter_of(app)
    for name, task in TASKS.items():
        keys = [f"k{n}" for n in range(chance.randint(1, 4))] if name == "tenant" else [""]
        shares = [f"s{n}" for n in range(chance.randint(1, 4))] if name == "crm" else [None]
        for key in keys:
            for share in shares:
                number, ago = chance.randint(1, 60), chance.choice([1.0, 30.0])
                last[name] = park(
                    app, name, number, key=key, share=share, task=task, ago=ago, cost=chance.choice([1, 3])
                )[-1:]
        if chance.random() < 0.5:
            started(store, name, chance.choice([0.5, 2.0, 9.0]))
        if chance.random() < 0.2:
            limiter.pause(name, chance.choice([40.0, 1e9]))
        if name == "tenant" and chance.random() < 0.6:
            limiter.pause(name, chance.choice([100.0, 1e9]), key="k0")
    if chance.random() < 0.3:
        backlog_of(app).register.attend("w1", [], ["celery"], 0.0)
    if chance.random() < 0.3:
        limiter.set_weight("crm", "s0", 0)
    python = {each.name: each.forecast for each in overview(app)}
    command = {each["name"]: each["forecast"] for each in json.loads(run("status", "--json").output)}
    page = PageData(app).at("")
    lots = ParkingLots(app).lots()
    for name, forecast in python.items():
        told: list[Any] = [command[name]["seconds"], metric(app, name)]
        of_limit = [lot.drains_in for lot in lots if lot.name == name]
        told.append(None if None in of_limit else max(seconds for seconds in of_limit if seconds is not None))
        if forecast.seconds is None:
            assert told == [None] * 3
            assert page[f"limit {name}"]["drains in"] == "?"
            assert re.sub(r"[\d.]+ s ago", "", command[name]["reason"]) == re.sub(r"[\d.]+ s ago", "", forecast.reason)
        else:
            assert told == pytest.approx([forecast.seconds] * 3)
            assert command[name]["limited_by"] == forecast.limited_by
        explained = [ParkingLots(app).explain(id) for id in last[name]]
        for each in explained:
            assert each.forecast is not None
            if name in ("api", "gpu") and forecast.seconds is not None:
                assert each.forecast.seconds == pytest.approx(forecast.seconds, abs=forecast.band + 1)
            if forecast.seconds is None and name in ("api", "gpu"):
                assert each.forecast.seconds is None
