"""Limits in shadow, by whoever asks: nobody waits, others decide as before, and what would have been is told."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import CliRunner
from kombu import pools

from benchmarks.servers import Cluster
from celery_ratelimit import AsyncLimiter, Concurrency, ConfigurationError, Limit, Limiter, RateLimitedTask
from celery_ratelimit.app.state import limiter_of
from celery_ratelimit.cli import ratelimit
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT
from tests.fleet_of import Fleet, until
from tests.shop import park

TRIED = Limit("1/h", name="tried", shadow=True)
QUOTAS: dict[str, Any] = {
    "tried": TRIED,
    "real": Limit("1000/h", burst=5, name="real"),
    "tenant": Limit("1/h", name="tenant", key="t:{tenant_id}", shadow=True),
    "tokens": Limit("10/h", burst=100, name="tokens", cost="tokens", shadow=True),
}


def reckoned(limiter: Limiter, name: str, number: int) -> Any:
    """What it would have done to so many requests: once all are reckoned, which is some seconds after they came."""
    until(lambda: limiter.shadow_report(name, force=True).requests >= number, 10, f"{number} requests of {name}")
    return limiter.shadow_report(name, force=True)


def test_nobody_waits_and_it_is_told_what_would_have_been(server: EmbeddedServer, store: redis.Redis) -> None:
    with Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter:
        for _ in range(5):
            decision = limiter.acquire("tried")
            assert (decision.allowed, decision.retry_after, decision._demands) == (True, 0.0, ())
            assert limiter.peek("tried").allowed
            assert limiter.available("tried") == 1
            with limiter.permit("tried", max_wait=0.01):
                pass
        assert not store.exists("ratelimit:v1:{tried}::state")
        until(lambda: store.exists("ratelimit:v1:{tried}::arrivals"), 10, "the store being told")
        with Limiter.from_url(server.url + PATIENT) as elsewhere:  # where nothing is told of its quota
            assert elsewhere.shadow_report("tried").requests <= 10
        said = reckoned(limiter, "tried", 10)
        assert (said.requests, said.delayed) == (10, 9)
        assert said.longest > 8 * 3600
        assert limiter.stats("tried", force=True)["tried"].results["shadow"] == 10


def test_others_decide_without_it(server: EmbeddedServer, store: redis.Redis) -> None:
    with Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter:
        said = [limiter.acquire(["real", "tried"]) for _ in range(8)]
        assert [each.allowed for each in said] == [True] * 5 + [False] * 3
        assert {each.limited_by for each in said[5:]} == {"real"}
        assert [state.name for state in said[0].states] == ["real"]
        assert reckoned(limiter, "tried", 5).requests == 5, "what the others refuse has not come"


def test_reservations_and_settlements(server: EmbeddedServer, store: redis.Redis) -> None:
    with Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter:
        for _ in range(2):
            assert limiter.reserve("tried", id="one", horizon=0).allowed
        assert limiter.reserve("tried", id="two", horizon=0).allowed
        assert limiter.cancel("tried", id="two")
        assert not limiter.cancel("tried", id="two")
        both = limiter.reserve(["real", "tried"], id="both", horizon=1)
        assert both.allowed
        assert limiter.cancel(["real", "tried"], id="both")
        assert reckoned(limiter, "tried", 3).requests == 3
        decision = limiter.acquire("tokens", cost=100)
        assert limiter.settle(decision, 0)
        assert not limiter.settle(decision, 0)
        assert limiter.settle(limiter.acquire(["tokens", "real"], cost=5), 7)
        limiter.acquire("tokens", cost=100)
        assert reckoned(limiter, "tokens", 3).longest == pytest.approx(7 * 360, rel=0.01)


def test_a_limit_by_key_has_a_queue_for_each(server: EmbeddedServer, store: redis.Redis) -> None:
    with Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter:
        for tenant in (1, 2, 1):
            limiter.acquire("tenant", args={"tenant_id": tenant})
        said = reckoned(limiter, "tenant", 3)
        assert (said.requests, said.delayed) == (3, 1)


def test_it_can_be_awaited(server: EmbeddedServer, store: redis.Redis) -> None:
    async def main() -> None:
        async with AsyncLimiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter:
            for _ in range(3):
                assert (await limiter.acquire("tried")).allowed
                async with limiter.permit("tried", max_wait=0):
                    assert (await limiter.peek("tried")).allowed
            assert (await limiter.reserve("tried", id="a", horizon=0)).allowed
            assert await limiter.available("tried") == 1

    asyncio.run(main())
    with Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter:
        assert reckoned(limiter, "tried", 7).delayed == 6


def test_a_store_that_is_down_holds_nobody_up() -> None:
    with Limiter.from_url("redis://127.0.0.1:1", quotas=QUOTAS) as limiter:
        assert limiter.acquire("tried").allowed


@pytest.mark.parametrize("wrong", ["yes", 1, None])
def test_it_is_true_or_false(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"shadow=.* must be True or False"):
        Limit("1/s", shadow=wrong)
    with pytest.raises(ConfigurationError, match=r"shadow=.* must be True or False"):
        Concurrency(1, shadow=wrong)


def test_places_are_not_tried() -> None:
    with pytest.raises(ConfigurationError, match="shadow is for rates"):
        Concurrency(3, name="gpu", shadow=True)


def test_two_of_a_name_are_in_shadow_or_not(limiter: Limiter) -> None:
    with pytest.raises(ConfigurationError, match="differ"):
        limiter.acquire([TRIED, replace(TRIED, shadow=False)])


def _ask(url: str, start: Any) -> None:
    with Limiter.from_url(url, quotas=QUOTAS) as limiter:
        limiter.ping()
        start.wait(60)
        for _ in range(10):
            assert limiter.acquire(["tried", "tenant"], args={"tenant_id": 1}).allowed


def test_twenty_processes_at_once_as_its_first_use(server: EmbeddedServer, store: redis.Redis) -> None:
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(20)
    processes = [spawn.Process(target=_ask, args=(server.url + PATIENT, start)) for _ in range(20)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 20
    with Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter:
        for name in ("tried", "tenant"):
            said = reckoned(limiter, name, 200)
            assert (said.requests, said.delayed, said.pending) == (200, 199, 0)
            assert said.longest == pytest.approx(199 * 3600, rel=0.001)
            assert limiter.stats(name)[name].results["shadow"] == 200


NAME = "tests.apps.fleet"


@pytest.mark.parametrize("task", ["plain", "tenant"])
def test_workers_hold_no_task_up(server: EmbeddedServer, store: redis.Redis, tmp_path: Path, task: str) -> None:
    quotas = {"slow": {"rate": "1/h", "shadow": True}, "t": {"rate": "1/h", "shadow": True, "key": "{tenant}"}}
    conf = {"ratelimit_quotas": quotas, "ratelimit_tasks": {f"{NAME}.plain": ["slow"], f"{NAME}.ten*": ["t"]}}
    with (
        Fleet(server, tmp_path, rate="1000/s", install=True, **conf) as fleet,
        Limiter.from_url(server.url + PATIENT, quotas=quotas) as limiter,
    ):
        fleet.start(number=2)
        for index in range(30):
            fleet.send(task, index, *(["a"] if task == "tenant" else []))
        fleet.wait_for(30, 30)
        name = "slow" if task == "plain" else "t"
        said = reckoned(limiter, name, 30)
        assert (said.requests, said.delayed) == (30, 29)
        until(lambda: limiter.stats(name)[name].results["shadow"] == 30, 10, "the counts")
        assert f"{NAME}.{task}" in {user.name for user in limiter.stats(name)[name].users}
        assert not fleet.signals()


# -- What people see, and switch ---------------------------------------------------------------------------------------


@pytest.fixture
def app(server: EmbeddedServer, store: redis.Redis) -> Celery:
    pools.reset()
    app = Celery("shop", broker=server.url, backend="cache+memory://", set_as_current=False)
    app.conf.ratelimit_url = server.url + PATIENT
    app.conf.ratelimit_quotas = {"stripe": "100/s", "tried": {"rate": "1/h", "shadow": True}, "gpu": {"limit": 4}}

    @app.task(name="shop.charge", base=RateLimitedTask, limits=["stripe", "tried"], shared=False)
    def charge() -> None: ...

    return app


def run(app: Celery, *args: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(ratelimit, args, obj=SimpleNamespace(app=app))
    assert result.exit_code == exit_code, (result.output, result.exception)
    return result.output


def test_the_command_line_switches_it_and_shows_it(app: Celery) -> None:
    limiter = limiter_of(app)
    said = run(app, "set", "stripe", "--shadow", "--by", "ann@host", "--reason", "a trial")
    assert "stripe: now 100/s (code), in shadow by ann@host" in said
    assert limiter.config("stripe").shadow
    for _ in range(3):
        assert limiter.acquire(["stripe", "tried"]).allowed
    reckoned(limiter, "tried", 3)
    reckoned(limiter, "stripe", 3)
    found = run(app, "status")
    assert "tried is in shadow: would have delayed 2 of 3 tasks, by 7200." in found
    assert "stripe is in shadow: would have delayed" in found
    alone = run(app, "status", "tried")
    assert alone.startswith("tried: shadow\n")
    assert (
        "  in shadow         as in the code: would have delayed 2 of 3 tasks, by 7200.0 s at most; used 300 % of 1/h at"
        in alone
    )
    data = {each["name"]: each for each in json.loads(run(app, "status", "--json"))}
    assert data["tried"]["state"] == data["stripe"]["state"] == "shadow"
    assert (data["tried"]["shadow_report"]["delayed"], data["tried"]["shadow_report"]["requests"]) == (2, 3)
    assert data["tried"]["shadow_report"]["said"].startswith("would have delayed 2 of 3 tasks")
    assert data["stripe"]["stored_shadow"]["reason"] == "a trial"
    assert data["gpu"]["shadow_report"] is None
    assert "in force" in run(app, "set", "stripe", "50/s", "--no-shadow") + run(app, "history", "stripe")
    assert not limiter.config("stripe").shadow
    assert "in shadow" not in run(app, "unset", "stripe", "--shadow").partition("now")[2]
    history = run(app, "history", "stripe")
    assert history.count("shadow") >= 4
    assert "a trial" in history
    assert "older version" not in history


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("set", "stripe"), "set what?"),
        (("set", "stripe", "--shadow", "--burst", "5"), "about a RATE"),
        (("set", "gpu", "--shadow"), "shadow is for rates"),
        (("set", "strpe", "--shadow"), "Did you mean 'stripe'"),
        (("unset", "stripe", "--shadow", "--key", "a"), "whole limit"),
    ],
)
def test_wrong_commands_say_what_is_wrong(app: Celery, args: tuple[str, ...], says: str) -> None:
    assert says in run(app, *args, exit_code=2)


def test_prometheus_is_told(app: Celery) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from celery_ratelimit.prometheus import collector

    limiter = limiter_of(app)
    for _ in range(3):
        limiter.acquire("tried")
    reckoned(limiter, "tried", 3)
    until(lambda: limiter.stats("tried")["tried"].results["shadow"] == 3, 10, "the counts")
    registry = CollectorRegistry()
    registry.register(collector(app))
    text = generate_latest(registry).decode()
    assert 'celery_ratelimit_requests_total{limit="tried",result="shadow"} 3.0' in text
    assert 'celery_ratelimit_shadow{limit="tried"} 1.0' in text
    assert 'celery_ratelimit_shadow{limit="stripe"} 0.0' in text
    assert 'celery_ratelimit_shadow_delayed_total{limit="tried"} 2.0' in text
    assert re.search(r'celery_ratelimit_shadow_longest_seconds\{limit="tried"\} (71\d\d\.|7200)', text)


def test_other_processes_learn_of_a_switch(server: EmbeddedServer, store: redis.Redis) -> None:
    quotas = {"api": Limit("1/h", name="api"), "tried": TRIED}
    with (
        Limiter.from_url(server.url + PATIENT, quotas=quotas) as one,
        Limiter.from_url(server.url + PATIENT, quotas=quotas) as other,
    ):
        assert other.acquire("api").allowed
        assert not other.acquire("api").allowed
        one.set_shadow("api", True)
        for _ in range(5):
            assert other.acquire("api").allowed, "from the next decision on"
        assert reckoned(other, "api", 4).requests == 4, "the first one did not know"
        one.set_shadow("api", False)
        until(lambda: not other.acquire("api").allowed, 5, "the end of it")
        one.set_shadow("tried", False)
        until(lambda: not other.acquire("tried").allowed, 5, "the end of what the code says")
        one.set_shadow("tried", None)
        assert other.acquire("api", max_wait=0).allowed is False


@pytest.mark.parametrize("task", ["retry", "wait"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_running_fleet_is_switched(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, task: str, pool: str
) -> None:
    """A backlog at 1/m is through at once in shadow; in force again, the next ones wait."""
    name = f"{NAME}.{task}"
    with (
        Fleet(server, tmp_path, rate="1/m") as fleet,
        Limiter.from_url(server.url + PATIENT, quotas={name: Limit("1/m", name=name)}) as limiter,
    ):
        fleet.start("-P", pool, number=2)
        for index in range(40):
            fleet.send(task, index)
        fleet.wait_for(1, 30)
        if task == "retry":
            until(lambda: fleet.parking_lots().lots(name, force=True), 20, "a backlog")
        limiter.set_shadow(name, True)
        fleet.wait_for(40, 40)
        for index in range(40, 60):
            fleet.send(task, index)
        fleet.wait_for(60, 20)
        until(lambda: limiter.shadow_report(name).requests >= 20, 20, "what it would have done")
        limiter.set_shadow(name, False)
        until(lambda: not _passes(fleet, task), 20, "its being in force")
        assert sorted({start.index for start in fleet.starts() if start.index < 60}) == list(range(60))


def _passes(fleet: Fleet, task: str, number: int = 5) -> bool:
    """Whether so many that are sent now start soon: the limit lets one through."""
    import time

    began = fleet.started()
    for index in range(number):
        fleet.send(task, 1000 + began + index)
    time.sleep(1.5)
    return fleet.started() - began >= number


def test_what_older_workers_tell_stands_beside_it(server: EmbeddedServer, store: redis.Redis) -> None:
    """The format of what is counted is what it was."""
    with Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter:
        store.set("ratelimit:v1:{tried}::counted", " acquired=7 permits=7 w10=7", px=60_000)
        limiter.acquire("tried")
        until(lambda: limiter.stats("tried")["tried"].results["shadow"] == 1, 10, "the counts")
        stats = limiter.stats("tried")["tried"]
        assert (stats.results["acquired"], stats.permits, stats.started) == (7, 7, 7)


def test_on_a_cluster(cluster_store: Cluster) -> None:
    names = [f"limit {number}" for number in range(6)]
    quotas = {name: Limit("1/h", name=name, shadow=number % 2 == 0) for number, name in enumerate(names)}
    with (
        Limiter.from_url(cluster_store.url, quotas=quotas) as limiter,
        Limiter.from_url(cluster_store.url, quotas=quotas) as other,
    ):
        limiter.set_shadow(names[1], True)
        assert limiter.acquire(names[:2]).allowed
        for _ in range(3):
            assert other.acquire([*names[:3], names[4]]).allowed
            assert limiter.acquire(names[:3]).allowed
        assert [other.acquire(names).allowed for _ in range(2)] == [True, False]
        for name, number in ((names[0], 8), (names[4], 4)):
            said = reckoned(limiter, name, number)
            assert (said.requests, said.delayed) == (number, number - 1)


def test_in_memory_nobody_waits_and_nothing_is_reckoned() -> None:
    with Limiter.from_url("memory://", quotas={**QUOTAS, "real": Limit("1/h", name="real")}) as limiter:
        for _ in range(3):
            assert limiter.acquire("tried").allowed
        assert limiter.shadow_report("tried").requests == 0
        assert [limiter.acquire("real").allowed for _ in range(2)] == [True, False]
        limiter.set_shadow("real", True)
        assert limiter.acquire("real").allowed
        limiter._asker.shadows.learn({"real": None})
        assert limiter.acquire("real").allowed
        limiter.set_shadow("real", False)
        assert not limiter.acquire("real").allowed
        other = Limiter(limiter.client, quotas=QUOTAS, counts=False)
        limiter.set_shadow("tried", False)
        until(lambda: not other.acquire("tried").allowed, 5, "its being in force")


def test_threads_at_once_and_a_switch_among_them(server: EmbeddedServer, store: redis.Redis) -> None:
    quotas = {"api": Limit("1/h", name="api"), "real": Limit("1000000/s", burst=1000, name="real")}
    with Limiter.from_url(server.url + PATIENT, quotas=quotas) as limiter:
        limiter.set_shadow("api", True)
        with ThreadPoolExecutor(20) as threads:
            said = list(threads.map(lambda _: limiter.acquire(["api", "real"]).allowed, range(400)))
        assert said == [True] * 400
        assert reckoned(limiter, "api", 400).requests == 400


def test_explain_says_it_of_the_limits_of_a_task(app: Celery) -> None:
    limiter = limiter_of(app)
    for _ in range(3):
        assert limiter.acquire(["stripe", "tried"], max_wait=1).allowed
    reckoned(limiter, "tried", 3)
    park(app, "stripe", 1, ids=["one"])
    said = run(app, "explain", "one")
    assert "is parked at place 1 of 1 of limit 'stripe'" in said
    assert "The limit 'tried' is in shadow: would have delayed 2 of 3 tasks, by" in said
    data = json.loads(run(app, "explain", "one", "--json"))
    assert data["shadow_reports"]["tried"]["delayed"] == 2


def test_a_reset_forgets_who_stands_in_the_queue(server: EmbeddedServer, store: redis.Redis) -> None:
    with Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter:
        for _ in range(3):
            limiter.acquire("tried")
        longest = reckoned(limiter, "tried", 3).longest
        until(lambda: not store.exists("ratelimit:v1:{tried}::arrivals"), 10, "that it is kept")
        limiter.reset("tried")
        limiter.acquire("tried")
        assert reckoned(limiter, "tried", 4).longest == longest


def test_who_does_not_know_the_limit_reckons_nothing(server: EmbeddedServer, store: redis.Redis) -> None:
    with Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as gone:
        for _ in range(3):
            gone.acquire("tried")
    with (
        Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter,
        Limiter.from_url(server.url + PATIENT) as stranger,
    ):

        def oldest_is_due() -> bool:
            first = store.zrange("ratelimit:v1:{tried}::arrivals", 0, 0, withscores=True)
            return bool(first) and store.time()[0] > first[0][1] / 1e6 + 3

        until(oldest_is_due, 20, "its time")
        elsewhere = stranger.shadow_report("tried", force=True)
        assert (elsewhere.requests, elsewhere.pending) == (0, 3)
        assert limiter.shadow_report("tried").longest > 7000


def test_what_comes_after_its_end_is_not_reckoned(server: EmbeddedServer, store: redis.Redis) -> None:
    with (
        Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter,
        Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as other,
    ):
        other.set_shadow("tried", False)
        assert limiter.acquire("tried").allowed, "it does not know yet"
        until(lambda: limiter.stats("tried")["tried"].results["shadow"] == 1, 10, "what it tells")
        assert not store.exists("ratelimit:v1:{tried}::arrivals")
