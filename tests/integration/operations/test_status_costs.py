"""The cost of reading many limits: round trips to each node of the store, commands and scripts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from celery import Celery
from redis.connection import AbstractConnection

from celery_ratelimit import Limit, Limiter
from celery_ratelimit._celery import broker_queries, message_counts
from celery_ratelimit.backlog.backlog import backlog_of
from celery_ratelimit.operations.overview import overview
from celery_ratelimit.operations.read_parking_lots import lots_of
from celery_ratelimit.prometheus import Collector
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT
from tests.parks import packed
from tests.shop import make_app, park


@contextmanager
def counted_trips(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[int]]:
    """What is sent to a port at once counts once. Threads of other limiters, and a limiter's timer, do not count."""
    trips: Counter[int] = Counter()
    others = {thread for thread in threading.enumerate() if thread is not threading.current_thread()}
    send = AbstractConnection.send_packed_command

    def counted(connection: Any, *args: Any, **options: Any) -> Any:
        thread = threading.current_thread()
        trips[connection.port] += thread not in others and thread.name != "celery_ratelimit-counts"
        return send(connection, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(AbstractConnection, "send_packed_command", counted)
        yield trips


def samples(app: Celery, metric: str) -> dict[str, float]:
    """By limit, of a new scrape."""
    families = [family for family in Collector(app)._read_store() if family.name == f"celery_ratelimit_{metric}"]
    return {sample.labels["limit"]: sample.value for family in families for sample in family.samples}


def with_limits(broker: str, url: str, number: int) -> Celery:
    """Each limit was used; a fifth are in shadow, and some have parked tasks, of which two each are for one key."""
    app = make_app(broker)
    app.conf.ratelimit_url = url + PATIENT
    limits = [Limit("1/s", name=f"limit{n}", shadow=n % 5 == 0) for n in range(number)]
    app.conf.ratelimit_queues = {f"q{n}": limit for n, limit in enumerate(limits)}
    with Limiter.from_app(app) as limiter:  # which reports its counts before it ends
        for limit in limits:
            limiter.acquire(limit)
    for limit in limits[1::4]:
        park(app, str(limit.name), 2)
    return app


@pytest.mark.parametrize("kind", ["server", "cluster"])
def test_a_scrape_of_many_limits_makes_three_round_trips(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """To each node. Commands: nine a limit and ten a lot; in a cluster, where a script reads one limit, 23."""
    request.getfixturevalue("store")
    broker = request.getfixturevalue("server")
    cluster = request.getfixturevalue("cluster_store") if kind == "cluster" else None
    app = with_limits(broker.url, cluster.url if cluster else broker.url, 500)
    samples(app, "rate")  # connects, and makes the store know the scripts
    nodes = cluster.clients if cluster else [request.getfixturevalue("store")]
    for node in nodes:
        node.config_resetstat()
    with counted_trips(monkeypatch) as trips:
        found = samples(app, "parked_tasks")
    assert sum(found.values()) == 250
    assert len(found) >= 500
    assert 1 <= max(trips.values()) <= 3
    stats = [node.info("commandstats") for node in nodes]
    assert (
        sum(each["calls"] for of_node in stats for each in of_node.values()) <= (23 if cluster else 9) * 500 + 10 * 125
    )
    if kind == "server":
        assert stats[0]["cmdstat_evalsha"]["calls"] <= 60


@pytest.mark.parametrize(
    ("kind", "number", "most"),
    [
        ("server", 300, 3 * 2 + 2 * 9),  # each step, and each of nine scripts, once more
        ("cluster", 60, 60),  # each connection to a node begins with three commands
    ],
)
def test_scripts_that_the_store_lost_are_sent_once(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str, number: int, most: int
) -> None:
    nodes = [request.getfixturevalue("store")]
    url = broker = request.getfixturevalue("server").url
    if kind == "cluster":
        cluster = request.getfixturevalue("cluster_store")
        nodes, url = cluster.clients, cluster.url
    app = with_limits(broker, url, number)
    samples(app, "rate")
    for node in nodes:
        node.script_flush()
    with counted_trips(monkeypatch) as trips:
        assert len(samples(app, "rate")) >= number
    assert max(trips.values()) <= most


LOOKS: dict[str, Callable[[Celery], int]] = {
    "scrape": lambda app: int(samples(app, "parked_tasks")["tenant"]),
    "status": lambda app: overview(app, "tenant", ask_broker=False)[0].parked,
    "lots": lambda app: sum(lot.parked for lot in lots_of(app, ["tenant"])),
}


@pytest.mark.parametrize("look", LOOKS)
def test_many_keys_of_one_limit_cost_few_round_trips(
    server: EmbeddedServer, store: redis.Redis, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """One for each few hundred keys, and one for each few thousand lots; so many commands for each lot."""
    app = make_app(server.url)
    for first in range(0, 2000, 50):
        parked = {("tenant", f"tenant:{n}"): [packed(f"{n}@q", 1, "{}", 1)] for n in range(first, first + 50)}
        backlog_of(app).park(parked)
    assert LOOKS[look](app) == 2000
    store.config_resetstat()
    with counted_trips(monkeypatch) as trips:
        LOOKS[look](app)
    assert max(trips.values()) <= 9
    stats = store.info("commandstats")
    assert sum(each["calls"] for each in stats.values()) <= 8 * 2000 + 200
    assert stats["cmdstat_evalsha"]["calls"] <= 90


def test_queues_on_redis_are_counted_in_one_round_trip(
    server: EmbeddedServer, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(server.url)
    app.conf.broker_transport_options = {"global_keyprefix": "ours:"}
    app.send_task("one", queue="q7")
    app.send_task("two", queue="q7", priority=9)
    store.set("ours:q8", "no list")
    few, many = [[f"q{n}" for n in range(number)] for number in (10, 500)]
    with counted_trips(monkeypatch) as trips:
        message_counts(app, few)
        of_few = max(trips.values())
        trips.clear()
        assert message_counts(app, many) == {**dict.fromkeys(many, 0), "q7": 2}
    assert max(trips.values()) == of_few


def test_queues_of_other_brokers_are_counted_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Celery("slow", broker="memory://", set_as_current=False)
    queues = [f"q{n}" for n in range(50)]
    assert message_counts(app, queues) == dict.fromkeys(queues, 0)
    monkeypatch.setattr(broker_queries, "COUNTING_TIMEOUT", 0.0)
    assert message_counts(app, queues) == {}
