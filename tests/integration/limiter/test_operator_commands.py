"""Commands that name a limit, and quotas: a name that is unknown is an error that lists similar names."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery

from benchmarks.servers import Cluster
from celery_ratelimit import AsyncLimiter, Concurrency, ConfigurationError, Limit, Limiter, RateLimitedTask
from celery_ratelimit.app.app_store import limiter_of
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT
from tests.integration.limiter.either import EitherLimiter

QUOTAS: dict[str, Any] = {
    "stripe": "100/s",
    "openai": {"rate": "2000/m", "burst": 200},
    "gpu": {"limit": 4, "lease": 30},
    "tenant": Limit("5/s", key="{tenant_id}"),
    "places": Concurrency(2),
}

COMMANDS: dict[str, tuple[Any, ...]] = {
    "set_rate": ("10/s",),
    "try_set_rate": ("10/s",),
    "expire_rate": (5,),
    "unset_rate": (),
    "config": (),
    "pause": (5,),
    "resume": (),
}


Make = Callable[..., EitherLimiter]

# -- Names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_name_is_an_error_that_lists_similar_names(
    either: EitherLimiter, store: redis.Redis, command: str
) -> None:
    with pytest.raises(ConfigurationError, match=r"called 'strpe'. Did you mean 'stripe'\? \(force=True"):
        getattr(either, command)("strpe", *COMMANDS[command])
    with pytest.raises(ConfigurationError, match=r"'payments'. There are 'gpu', 'openai', 'places', 'stripe'"):
        getattr(either, command)("payments", *COMMANDS[command])
    assert not store.keys("ratelimit:*")


@pytest.mark.parametrize("command", COMMANDS)
def test_command_on_a_known_or_forced_name_is_accepted(either: EitherLimiter, command: str) -> None:
    change, args = getattr(either, command), COMMANDS[command]
    change("stripe", *args)
    change("tenant", *args, key="7")
    change(Limit("100/s", name="my own"), *args)
    for name, key in (("strpe", None), ("strpe", "7"), ("stripe", "7")):
        change(name, *args, key=key, force=True)


@pytest.mark.parametrize(
    ("prepare", "key"),
    [
        (lambda other: other.set_rate("theirs", "1/s"), None),
        (lambda other: other.pause("theirs", 60), None),
        (lambda other: other.acquire("theirs"), None),
        (lambda other: other.acquire("held"), None),
        (lambda other: other.acquire("kept", args={"tenant": 7}), "7"),
        (lambda other: other.set_rate("kept", "1/s", key="7"), "7"),
        (lambda other: other.set_rate("kept", "1/s", key="7"), "8"),
    ],
)
def test_name_with_a_stored_rate_or_in_use_is_known(
    make: Make, prepare: Callable[[EitherLimiter], Any], key: str | None
) -> None:
    theirs = {"theirs": "1/h", "held": Concurrency(1), "kept": Limit("1/h", key="{tenant}")}
    prepare(make(quotas=theirs))
    limiter = make(quotas={})
    known = 0
    for name in theirs:
        try:
            limiter.pause(name, 5, key=key)
            known += 1
        except ConfigurationError:
            pass
    assert known == 1


def test_unknown_name_costs_one_command_and_a_known_one_none(make: Make, store: redis.Redis) -> None:
    limiter, other = make(), make(quotas={})
    limiter.pause("stripe", 5)
    for each, exists in ((limiter, 0), (other, 1)):
        each.resume("stripe")
        store.config_resetstat()
        each.pause("stripe", 5)
        stats = store.info("commandstats")
        assert stats.get("cmdstat_exists", {}).get("calls", 0) == exists
        assert not any("scan" in command or "keys" in command for command in stats)


def test_unknown_and_stored_names_on_a_cluster(make: Make, cluster_store: Cluster) -> None:
    limiter = make(cluster_store.url)
    with pytest.raises(ConfigurationError, match="Did you mean 'stripe'"):
        limiter.pause("strpe", 5)
    assert limiter.pause("stripe", 5) == 5.0
    assert make(cluster_store.url, quotas={}).resume("stripe")


def test_bucket_of_an_unknown_limit_is_reset_by_force(make: Make) -> None:
    theirs = make(quotas={"one": "1/h", "held": Concurrency(1), "kept": Limit("1/h", key="{tenant}")})
    for name, key in (("one", None), ("held", None), ("kept", "7")):
        theirs.acquire(name, key=key)
    limiter = make(quotas={})
    with pytest.raises(ConfigurationError, match="no quota named 'one'"):
        limiter.reset("one")
    limiter.reset(["one", "held"], force=True)
    limiter.reset("kept", key="7", force=True)
    assert [theirs.available(name) for name in ("one", "held")] == [1, 1]
    assert theirs.available("kept", key="7") == 1
    theirs.acquire(["one"])
    theirs.reset(["one", "held"], force=True)
    assert theirs.available("one") == 1


@pytest.mark.parametrize("ask", ["acquire", "peek", "reset", "permit", "available"])
def test_unknown_quota_is_an_error_that_lists_similar_names(either: EitherLimiter, ask: str) -> None:
    with pytest.raises(ConfigurationError, match=r"no quota named 'strpe' \(quotas: .*\); did you mean 'stripe'\?"):
        getattr(either, ask)("strpe")


# -- Quotas as in settings ---------------------------------------------------------------------------------------------


def test_quotas_are_written_as_in_settings(either: EitherLimiter) -> None:
    assert either.acquire("stripe").capacity == 1
    assert either.acquire("openai", cost=150).remaining == 50
    assert either.acquire(["gpu", "places"]).allowed
    assert either.acquire("tenant", args={"tenant_id": 7}).states[0].key == "7"
    assert either.config("gpu").code == Concurrency(4, lease=30)


# -- An app's ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def app(server: EmbeddedServer) -> Celery:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.ratelimit_url = server.url + PATIENT
    app.conf.ratelimit_quotas = {"stripe": "100/h", "tenant": {"rate": "5/h", "key": "tenant:{tenant_id}"}}
    app.conf.ratelimit_queues = {"emails": "14/h"}
    app.conf.ratelimit_tasks = {"shop.by_name": "7/h"}

    @app.task(name="shop.charge", base=RateLimitedTask, limits=["20/h", "stripe"])
    def charge(order_id: int) -> None: ...

    @app.task(name="shop.by_name")
    def by_name() -> None: ...

    return app


def test_from_app_knows_quotas_tasks_and_queues_by_name(make: Make, app: Celery) -> None:
    limiter = make(app=app)
    for name, rate in (("stripe", "100/h"), ("shop.charge", "20/h"), ("shop.by_name", "7/h"), ("emails", "14/h")):
        assert limiter.acquire(name).allowed, name
        assert limiter.config(name).code.rate == rate
        assert limiter.pause(name, 5) == 5.0
    assert limiter.acquire("tenant", args={"tenant_id": 7}).states[0].key == "tenant:7"
    with pytest.raises(ConfigurationError, match=r"Did you mean 'shop.charge'"):
        limiter.set_rate("shop.chrage", "1/s")


def test_from_app_knows_tasks_that_are_registered_later(make: Make, app: Celery) -> None:
    limiter = make(app=app)
    with pytest.raises(
        ConfigurationError, match=r"No limit is called 'shop.later'.*app\.loader\.import_default_modules\(\)"
    ):
        limiter.set_rate("shop.later", "1/s")

    @app.task(name="shop.later", base=RateLimitedTask, limits="3/h")
    def later() -> None: ...

    assert limiter.acquire("shop.later").allowed


def test_app_has_one_plain_limiter(app: Celery) -> None:
    assert Limiter.from_app(app) is Limiter.from_app(app) is limiter_of(app)
    assert AsyncLimiter.from_app(app) is not AsyncLimiter.from_app(app)
    assert limiter_of(app).config("shop.charge").code == Limit("20/h", name="shop.charge")
    limiter_of(app).close()


def test_from_app_works_when_celery_is_imported_later() -> None:
    said = (
        "import sys\n"
        "from celery_ratelimit import AsyncLimiter, Limiter\n"
        "assert 'celery' not in sys.modules, 'the limiter needs no Celery'\n"
        "from celery import Celery\n"
        "app = Celery(broker='redis://nowhere')\n"
        "app.conf.ratelimit_quotas = {'stripe': '1/s'}\n"
        "assert Limiter.from_app(app).quotas == AsyncLimiter.from_app(app).quotas\n"
        "assert list(Limiter.from_app(app).quotas) == ['stripe']\n"
    )
    subprocess.run([sys.executable, "-c", said], check=True)
