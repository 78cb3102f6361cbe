"""Commands about parked tasks: ``parked``, ``release``, ``purge``, ``drain`` and ``explain``."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import redis
from celery import Celery

from celery_ratelimit import Limit, RateLimitedTask
from celery_ratelimit.app.app_store import limiter_of
from celery_ratelimit.backlog.backlog import backlog_of
from celery_ratelimit.backlog.messages import Parked
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.lots import ParkingLots
from tests.shop import Run, park


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
    assert run("parked", "tenant", "--number", "2").output.endswith("7 parked, page 1 of 4 (next: --page 2)\n")
    assert run("parked", "tenant", "--number", "2", "--page", "4").output.endswith("7 parked, page 4 of 4\n")
    assert json.loads(run("parked", "tenant", "--key", "tenant:7", "--json").output)["parked"] == 3


def test_tasks_are_released_by_id_and_drained(run: Run, app: Celery, store: redis.Redis) -> None:
    ids = park(app, "stripe", 3)
    assert run("release", ids[1]).output == "1 task sent back to the queue\n"
    assert store.llen("celery.throttled") == 1
    assert run("release", "stripe", "--yes").output == "2 tasks sent back to the queue\n"
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
    assert (
        run("release", "tenant", "tenant-tenant:3-0", "tenant-tenant:4-1").output == "2 tasks sent back to the queue\n"
    )
    assert store.info("commandstats")["cmdstat_evalsha"]["calls"] <= 5, "one finds them, and each lot costs two"
    assert run("release", "tenant", "--yes").output == "38 tasks sent back to the queue\n"
    assert len(connections) < 10


def test_purge_asks_for_confirmation(run: Run, app: Celery) -> None:
    park(app, "stripe", 3)
    for answer in ("n\n", ""):  # an empty one is Ctrl-C's, or Ctrl-D's
        found = run("purge", "stripe", input=answer)
        assert found.exit_code == 1
        assert "Delete all 3 parked tasks of stripe?" in found.output
    assert "Delete 2 tasks?" in run("purge", "stripe", "stripe--0", "stripe--1", input="n\n").output
    assert json.loads(run("parked", "stripe", "--json").output)["parked"] == 3
    assert (
        run("purge", "stripe", "--yes", "--json").output == json.dumps({"name": "stripe", "tasks": 3}, indent=2) + "\n"
    )
    assert run("purge", "stripe", input="y\n").output.endswith("0 tasks deleted\n")


def test_release_of_all_asks_for_confirmation(run: Run, app: Celery) -> None:
    for n in range(5):
        park(app, "tenant", 2, key=f"tenant:{n}", task="shop.sync")
    found = run("release", "tenant", input="n\n")
    assert (found.exit_code, "Send all 10 parked tasks of 5 keys of tenant back to the queue now?" in found.output) == (
        1,
        True,
    )
    assert run("release", "tenant", "--key", "tenant:4").output == "2 tasks sent back to the queue\n"
    assert run("release", "tenant", "--key", "tenant:4").output == "0 tasks sent back to the queue\n"
    assert run("release", "tenant", "tenant-tenant:3-0").output == "1 task sent back to the queue\n", "an id says which"
    assert "Delete all 1 parked task of tenant?" in run("purge", "tenant", "--key", "tenant:3", input="n\n").output
    assert run("release", "tenant", input="y\n").output.endswith("7 tasks sent back to the queue\n")
    assert run("release", "tenant").output == "0 tasks sent back to the queue\n", "there is nothing to ask"


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


def test_explain_of_a_queued_task_names_a_queue_without_a_worker(run: Run, app: Celery) -> None:
    assert "seems to consume" not in run("explain", "unknown").output, "no message waits"
    id = app.tasks["shop.charge"].delay().id
    found = run("explain", id)
    assert found.exit_code == 1
    assert found.output.endswith("\nThe queue 'celery' has 1 message, and no worker seems to consume it.\n")
    assert json.loads(run("explain", id, "--json").output)["unconsumed"] == {"celery": 1}


#: The record of a task that was parked now, of which nothing else is known.
RECORD = "1 1 1 0 " + 6 * " "


def test_unknown_ids_are_not_found(run: Run, app: Celery, store: redis.Redis) -> None:
    park(app, "stripe", 3)
    (payloads,) = store.keys("*{stripe}*payloads*")
    store.hset(payloads, "stripe--1~0@celery", "x")
    for id in ("stripe--1", "\0", "a\nb", "x" * 5000, "stripe--1\0", "~", "%s"):
        found = run("explain", "--json", "--", id)
        assert (found.exit_code, json.loads(found.output)["where"]) == (1, "unknown")


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
    found = run("explain", "--json", "stripe--1")
    assert (found.exit_code, json.loads(found.output)["where"]) == (1, "unknown")
    assert run("release", "stripe", "stripe--0", "stripe--2").output == "2 tasks sent back to the queue\n"
    if stored and stored.startswith("1 1 1"):
        assert run("release", "stripe", "--yes").output == "0 tasks sent back to the queue\n"
        assert run("purge", "stripe", "--yes").exit_code == 0


def test_explain_shows_names_with_control_characters_on_their_line(run: Run, app: Celery) -> None:
    (id,) = park(app, "stripe", 1, ids=["a\nb"], task="shop\u2028\x1b[31m.charge", queue="c\nd")
    lines = run("explain", id).output.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["shop\\u2028\\x1b[31m.charge[a\\nb]", "It", "The", "It"]
    assert len(run("explain", "x\ny").output.splitlines()) == 1
