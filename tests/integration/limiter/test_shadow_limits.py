"""Limits in shadow: no call waits for them, other limits decide as before, and the report says what they would do."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import pools

from benchmarks.servers import Cluster
from celery_ratelimit import Concurrency, ConfigurationError, Limit, Limiter, RateLimitedTask
from celery_ratelimit.app.app_store import limiter_of
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT
from tests.fleet_of import Fleet, until
from tests.integration.limiter.either import EitherLimiter
from tests.shop import Run, command_line, make_app, park

TRIED = Limit("1/h", name="tried", shadow=True)
QUOTAS: dict[str, Any] = {
    "tried": TRIED,
    "real": Limit("1000/h", burst=5, name="real"),
    "tenant": Limit("1/h", name="tenant", key="t:{tenant_id}", shadow=True),
    "tokens": Limit("10/h", burst=100, name="tokens", cost="tokens", shadow=True),
}


def report(limiter: Any, name: str, number: int) -> Any:
    """The shadow report once it is of so many requests: some seconds after they were made."""
    until(lambda: limiter.shadow_report(name, force=True).requests >= number, 10, f"{number} requests of {name}")
    return limiter.shadow_report(name, force=True)


def test_shadow_limit_delays_no_call_and_reports_what_it_would_delay(either: EitherLimiter, store: redis.Redis) -> None:
    for _ in range(5):
        decision = either.acquire("tried")
        assert (decision.allowed, decision.retry_after, decision._demands) == (True, 0.0, ())
        assert either.peek("tried").allowed
        assert either.available("tried") == 1
        with either.block("tried", max_wait=0.01):
            pass
    assert not store.exists("ratelimit:v1:{tried}::state")
    said = report(either, "tried", 10)
    assert (said.requests, said.delayed) == (10, 9)
    assert said.longest > 8 * 3600
    assert either.stats("tried", force=True)["tried"].results["shadow"] == 10


def test_other_limits_of_a_call_decide_without_the_shadow_limit(limiter: Limiter) -> None:
    said = [limiter.acquire(["real", "tried"]) for _ in range(8)]
    assert [each.allowed for each in said] == [True] * 5 + [False] * 3
    assert {each.limited_by for each in said[5:]} == {"real"}
    assert [state.name for state in said[0].states] == ["real"]
    assert report(limiter, "tried", 5).requests == 5, "refused calls are not in the report"


def test_shadow_report_contains_reservations_cancellations_and_settlements(limiter: Limiter) -> None:
    for _ in range(2):
        assert limiter.reserve("tried", id="one", horizon=0).allowed
    assert limiter.reserve("tried", id="two", horizon=0).allowed
    assert [limiter.cancel("tried", id="two") for _ in range(2)] == [True, False]
    assert limiter.reserve(["real", "tried"], id="both", horizon=1).allowed
    assert limiter.cancel(["real", "tried"], id="both")
    assert report(limiter, "tried", 3).requests == 3
    decision = limiter.acquire("tokens", cost=100)
    assert [limiter.settle(decision, 0) for _ in range(2)] == [True, False]
    assert limiter.settle(limiter.acquire(["tokens", "real"], cost=5), 7)
    limiter.acquire("tokens", cost=100)
    assert report(limiter, "tokens", 3).longest == pytest.approx(7 * 360, rel=0.01)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        *((lambda wrong=wrong: Limit("1/s", shadow=wrong), "shadow=.* must be True or False") for wrong in ("yes", 1)),
        (lambda: Concurrency(1, shadow=None), "shadow=.* must be True or False"),
        (lambda: Concurrency(3, name="gpu", shadow=True), "shadow is for rates"),
        (lambda: Limiter.from_url("memory://").acquire([TRIED, replace(TRIED, shadow=False)]), "differ"),
    ],
)
def test_invalid_shadow_is_an_error(make: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        make()


# -- Commands, fleets, clusters and memory -----------------------------------------------------------------------------


@pytest.fixture
def app(server: EmbeddedServer, store: redis.Redis) -> Celery:
    pools.reset()
    app = make_app(server.url)
    app.conf.ratelimit_quotas["tried"] = {"rate": "1/h", "shadow": True}

    @app.task(name="shop.refund", base=RateLimitedTask, limits=["stripe", "tried"], shared=False)
    def refund() -> None: ...

    return app


@pytest.fixture
def run(app: Celery) -> Run:
    return command_line(app)


def test_command_line_switches_and_shows_a_shadow_limit(app: Celery, run: Run) -> None:
    limiter = limiter_of(app)
    said = run("set", "stripe", "--shadow", "--by", "ann@host", "--reason", "a trial").output
    assert "stripe: now 100/s, burst 5 (code), in shadow by ann@host" in said
    assert limiter.config("stripe").shadow
    for _ in range(3):
        assert limiter.acquire(["stripe", "tried"]).allowed
    report(limiter, "tried", 3)
    report(limiter, "stripe", 3)
    found = run("status").output
    assert "tried is in shadow: would have delayed 2 of 3 tasks, by 7200." in found
    assert "stripe is in shadow: " in found
    found = run("status", "tried").output
    assert found.startswith("tried: shadow\n")
    says = "as in the code: would have delayed 2 of 3 tasks, by 7200.0 s at most; used 300 % of 1/h at"
    assert f"  in shadow         {says}" in found
    data = {each["name"]: each for each in json.loads(run("status", "--json").output)}
    assert data["tried"]["state"] == data["stripe"]["state"] == "shadow"
    assert (data["tried"]["shadow_report"]["delayed"], data["tried"]["shadow_report"]["requests"]) == (2, 3)
    assert data["tried"]["shadow_report"]["said"].startswith("would have delayed 2 of 3 tasks")
    assert data["stripe"]["stored_shadow"]["reason"] == "a trial"
    assert data["gpu"]["shadow_report"] is None
    assert "in force" in run("set", "stripe", "50/s", "--no-shadow").output + run("history", "stripe").output
    assert not limiter.config("stripe").shadow
    assert "in shadow" not in run("unset", "stripe", "--shadow").output.partition("now")[2]
    history = run("history", "stripe").output
    assert history.count("shadow") >= 4
    assert "a trial" in history
    assert "older version" not in history


def test_explain_names_the_shadow_limits_of_a_task(app: Celery, run: Run) -> None:
    limiter = limiter_of(app)
    for _ in range(3):
        assert limiter.acquire(["stripe", "tried"], max_wait=1).allowed
    report(limiter, "tried", 3)
    park(app, "stripe", 1, ids=["one"], task="shop.refund")
    said = run("explain", "one").output
    assert "is parked at place 1 of 1 of limit 'stripe'" in said
    assert "The limit 'tried' is in shadow: would have delayed 2 of 3 tasks, by" in said
    data = json.loads(run("explain", "one", "--json").output)
    assert data["shadow_reports"]["tried"]["delayed"] == 2


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("set", "stripe", "--shadow", "--burst", "5"), "about a RATE"),
        (("set", "gpu", "--shadow"), "shadow is for rates"),
        (("set", "strpe", "--shadow"), "Did you mean 'stripe'"),
        (("unset", "stripe", "--shadow", "--key", "a"), "whole limit"),
    ],
)
def test_invalid_shadow_commands_are_errors(run: Run, args: tuple[str, ...], says: str) -> None:
    found = run(*args)
    assert (found.exit_code, says in found.output) == (2, True), found.output


@pytest.mark.parametrize("task", ["retry", "wait"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_running_fleet_follows_switches_to_shadow_and_back(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, task: str, pool: str
) -> None:
    """A backlog at 1/m starts at once in shadow; in force again, the next tasks wait."""
    name = f"tests.apps.fleet.{task}"
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
        until(lambda: limiter.shadow_report(name).requests >= 20, 20, "the report")
        limiter.set_shadow(name, False)

        def is_throttled() -> bool:
            lines = fleet.log().count("throttled by") + fleet.log(1).count("throttled by")
            fleet.send(task, 1000)
            time.sleep(0.5)
            return fleet.log().count("throttled by") + fleet.log(1).count("throttled by") > lines

        until(is_throttled, 20, "the limit in force")
        assert sorted({start.index for start in fleet.starts() if start.index < 60}) == list(range(60))


def test_shadow_limits_on_a_cluster(cluster_store: Cluster) -> None:
    names = [f"limit {number}" for number in range(6)]
    quotas = {name: Limit("1/h", name=name, shadow=number % 2 == 0) for number, name in enumerate(names)}
    with (
        Limiter.from_url(cluster_store.url + PATIENT, quotas=quotas) as limiter,
        Limiter.from_url(cluster_store.url + PATIENT, quotas=quotas) as other,
    ):
        limiter.set_shadow(names[1], True)
        assert limiter.acquire(names[:2]).allowed
        for _ in range(3):
            assert other.acquire([*names[:3], names[4]]).allowed
            assert limiter.acquire(names[:3]).allowed
        assert [other.acquire(names).allowed for _ in range(2)] == [True, False]
        for name, number in ((names[0], 8), (names[4], 4)):
            said = report(limiter, name, number)
            assert (said.requests, said.delayed) == (number, number - 1)


def test_shadow_limits_in_memory_delay_no_call_and_report_nothing() -> None:
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


def test_reset_empties_the_simulated_queue(limiter: Limiter, store: redis.Redis) -> None:
    for _ in range(3):
        limiter.acquire("tried")
    longest = report(limiter, "tried", 3).longest
    until(lambda: not store.exists("ratelimit:v1:{tried}::arrivals"), 10, "the end of the simulation")
    limiter.reset("tried")
    limiter.acquire("tried")
    assert report(limiter, "tried", 4).longest == longest


def test_process_without_the_limit_leaves_the_simulation_to_others(
    server: EmbeddedServer, limiter: Limiter, store: redis.Redis
) -> None:
    with Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as gone:
        for _ in range(3):
            gone.acquire("tried")

    def oldest_is_due() -> bool:
        first = store.zrange("ratelimit:v1:{tried}::arrivals", 0, 0, withscores=True)
        return bool(first) and store.time()[0] > first[0][1] / 1e6 + 3

    with Limiter.from_url(server.url + PATIENT) as stranger:
        until(oldest_is_due, 20, "its time")
        elsewhere = stranger.shadow_report("tried", force=True)
        assert (elsewhere.requests, elsewhere.pending) == (0, 3)
    assert limiter.shadow_report("tried").longest > 7000


def test_requests_after_the_end_of_the_shadow_are_not_simulated(
    server: EmbeddedServer, limiter: Limiter, store: redis.Redis
) -> None:
    with Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as other:
        other.set_shadow("tried", False)
    assert limiter.acquire("tried").allowed, "this process does not know yet"
    until(lambda: limiter.stats("tried")["tried"].results["shadow"] == 1, 10, "the counts")
    assert not store.exists("ratelimit:v1:{tried}::arrivals")
    until(lambda: not limiter.acquire("tried").allowed, 5, "the end of the shadow")
