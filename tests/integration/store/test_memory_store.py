"""``memory://``: one store for each name and process, on a clock that tests move; other uses are errors."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.contrib.testing.worker import start_worker

from celery_ratelimit import AsyncLimiter, Concurrency, ConfigurationError, Limit, Limiter, RateLimitedTask
from celery_ratelimit.app.app_store import limiter_of
from celery_ratelimit.app.settings import settings_of
from celery_ratelimit.limiter.leases import LeaseKeeper
from celery_ratelimit.store.memory import Clock
from celery_ratelimit.store_calls.outage import Outage
from celery_ratelimit.testing import EmbeddedServer, clear_memory, frozen_clock, set_testing, throttle_all
from tests.fleet_of import Fleet, assert_never_over, assert_over, until

pytest_plugins = ["celery_ratelimit.pytest_plugin"]

HOURLY = Limit("1/h", name="hourly")
MINUTELY = Limit("1/m", name="minutely")
POOLS = pytest.mark.parametrize("pool", ["solo", pytest.param("threads", marks=pytest.mark.slow)])


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    clear_memory()
    yield
    set_testing(False)
    clear_memory()


# -- One store per name ------------------------------------------------------------------------------------------------


def test_limiters_and_apps_of_one_name_share_their_buckets() -> None:
    def allowed(url: str, **options: Any) -> bool:
        return Limiter.from_url(url, **options).acquire(HOURLY).allowed

    app = Celery("app", broker="memory://", set_as_current=False)
    app.conf.ratelimit_url = "memory://"
    assert [allowed("memory://"), allowed("memory://", socket_timeout=1)] == [True, False]
    assert not limiter_of(app).acquire(HOURLY).allowed
    assert [allowed("memory://other"), allowed("memory://other"), allowed("memory://")] == [True, False, False]
    clear_memory()
    assert [allowed("memory://other"), allowed("memory://")] == [True, True]


def test_memory_broker_is_not_the_store_by_default() -> None:
    with pytest.raises(ConfigurationError, match="set ratelimit_url"):
        settings_of(Celery("app", broker="memory://", set_as_current=False))


def test_async_limiter_shares_the_buckets(ratelimit_clock: Clock) -> None:
    async def main() -> list[bool]:
        async with AsyncLimiter.from_url("memory://") as limiter:
            return [(await limiter.acquire(MINUTELY, max_wait=wait)).allowed for wait in (0, 100, 59)]

    assert Limiter.from_url("memory://").acquire(MINUTELY).allowed
    start = ratelimit_clock.now
    assert asyncio.run(main()) == [False, True, False]
    assert ratelimit_clock.now == start + 60


@pytest.mark.parametrize("url", ["memory:", "memory:/x", "memory://a/b", "memory://?x=1", "memory://a b"])
def test_invalid_name_is_an_error(url: str) -> None:
    with pytest.raises(ConfigurationError, match="memory://name"):
        Limiter.from_url(url)


def test_threads_get_no_more_than_the_limit() -> None:
    limiter = Limiter.from_url("memory://")
    limit = Limit("1/h", name="threads", burst=20)
    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(lambda _: limiter.acquire(limit).allowed, range(80))) == 20


# -- The clock ---------------------------------------------------------------------------------------------------------


def test_stopped_clock_moves_by_hand_and_keys_expire_by_it(ratelimit_clock: Clock, ratelimit_memory: Limiter) -> None:
    quick = Limit("20/s", name="quick")
    assert ratelimit_clock.now == 1_767_225_600.0
    assert ratelimit_memory.acquire(quick).allowed
    time.sleep(0.06)  # longer than the interval, and than the key would live by the machine's time
    refused = ratelimit_memory.acquire(quick)
    assert (refused.allowed, refused.retry_after) == (False, 0.05)
    ratelimit_clock.advance(refused.retry_after - 1e-6)
    assert not ratelimit_memory.acquire(quick).allowed
    ratelimit_clock.advance(1e-6)
    assert ratelimit_memory.acquire([quick, Concurrency(1, name="places")]).allowed
    ratelimit_clock.advance(3601)
    assert ratelimit_memory.client.keys("ratelimit:*") == []
    for seconds in (-1, float("nan")):
        with pytest.raises(ConfigurationError, match="0 seconds or more"):
            ratelimit_clock.advance(seconds)


def test_blocking_calls_advance_the_stopped_clock(ratelimit_clock: Clock, ratelimit_memory: Limiter) -> None:
    start = ratelimit_clock.now
    assert [ratelimit_memory.acquire(HOURLY, max_wait=1e5).allowed for _ in range(5)] == [True] * 5
    assert ratelimit_clock.now == start + 4 * 3600
    with ratelimit_memory.permit(HOURLY):
        assert ratelimit_clock.now == start + 5 * 3600
    assert not ratelimit_memory.acquire(HOURLY, max_wait=3599).allowed
    assert ratelimit_clock.now == start + 5 * 3600


def test_existing_limiters_follow_the_stopped_clock_and_its_end() -> None:
    limiter = Limiter.from_url("memory://")
    assert limiter.acquire(HOURLY).allowed
    with frozen_clock() as clock:
        assert limiter.acquire(HOURLY).allowed  # the store is another one's, and empty
        clock.advance(1e9)  # far ahead of the real time
        assert limiter.acquire(HOURLY).allowed
    assert limiter.acquire(HOURLY).allowed
    assert abs(limiter.acquire(HOURLY)._granted_at / 1e6 - time.time()) < 300
    with pytest.raises(ConfigurationError, match="running"):
        clock.advance(1)


def test_blocking_calls_sleep_by_the_real_clock() -> None:
    limiter, began = Limiter.from_url("memory://"), time.monotonic()
    limit = Limit("10/s", name="tenth")
    assert all(limiter.acquire(limit, max_wait=1).allowed for _ in range(4))
    assert time.monotonic() - began > 0.29


# -- Uses that are errors ----------------------------------------------------------------------------------------------


FORK = """
import asyncio
import os
import sys
from celery_ratelimit import AsyncLimiter, Limit, Limiter

limit, other = Limit("1/h", name="limit"), Limit("1/h", name="other")
limiter = Limiter.from_url("memory://")
limiter.acquire(limit)
awaited = AsyncLimiter.from_url("memory://")
if os.fork() == 0:
    for call in (
        lambda: limiter.acquire(other),
        lambda: limiter.peek(other),
        lambda: limiter.reset(other),
        lambda: limiter.permit(other).__enter__(),
        lambda: limiter.set_rate(other, "2/h"),
        limiter.ping,
        lambda: asyncio.run(awaited.acquire(other)),
        lambda: Limiter.from_url("memory://").acquire(other),
    ):
        try:
            print(call())
        except Exception as error:
            print(type(error).__name__, error)
    sys.stdout.flush()
    os._exit(0)
os.wait()
print(limiter.acquire(other).allowed)
"""


def test_use_after_a_fork_is_an_error() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=240)
    *child, parent = done.stdout.splitlines()
    assert len(child) == 8, done.stderr
    for line in child:
        assert line.startswith("ConfigurationError a memory:// store counts within one process"), line
        assert "threads" in line
        assert "embedded_server" in line
    assert parent == "True"


@pytest.mark.parametrize("missing", ["fakeredis", "lupa"])
def test_missing_package_is_named(missing: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from celery_ratelimit import ConfigurationError, Limit, Limiter\n"
        "from celery_ratelimit.testing import frozen_clock, set_testing\n"
        "import celery_ratelimit.pytest_plugin\n"
        "with set_testing(): assert Limiter.from_url('redis://localhost:1').acquire(Limit('1/s', name='x')).allowed\n"
        "for call in (lambda: Limiter.from_url('memory://'), lambda: frozen_clock().__enter__()):\n"
        "    try: call()\n"
        "    except ConfigurationError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(missing in line and "pip install 'celery-ratelimit[testing]'" in line for line in lines)


# -- In workers --------------------------------------------------------------------------------------------------------


def test_prefork_worker_does_not_start(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    with Fleet(server, tmp_path, ratelimit_url="memory://") as fleet:
        assert fleet.launch().wait(timeout=120) != 0
        log = fleet.log()
        for text in (
            "ratelimit_url='memory://'",
            "prefork",
            "--pool=solo or --pool=threads",
            "redis://localhost:6379/0",
        ):
            assert text in log, log
        assert "Traceback" not in log


@POOLS
def test_worker_of_one_process_keeps_the_limit(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, pool: str
) -> None:
    with Fleet(server, tmp_path, rate="20/s", ratelimit_url="memory://") as fleet:
        fleet.start("-P", pool)
        for index in range(21):
            fleet.send("retry", index)
        fleet.wait_for(21, 20)
        permits = fleet.permits()
        assert_never_over(permits, 20)
        assert_over(permits, 20 / 2)  # each pays once
        assert "counted in this process alone" in fleet.log()
        assert not store.keys("ratelimit:*")


class Shop:
    """An app in this process, broker and store in memory, and what its tasks did."""

    def __init__(self) -> None:
        self.app = app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
        app.conf.update(ratelimit_url="memory://", ratelimit_quotas={"secondly": "1/s"})
        app.conf.broker_transport_options = {"polling_interval": 0.01}
        app.conf.task_default_queue = uuid.uuid4().hex  # what a test leaves in the broker is not the next one's
        self.done: list[int] = []

        @app.task(base=RateLimitedTask, limits="secondly", shared=False)
        def charge(index: int) -> None:
            self.done.append(index)

        @app.task(base=RateLimitedTask, limits="secondly", throttle="fail", shared=False)
        def once(index: int) -> None:
            self.done.append(index)

        @app.task(base=RateLimitedTask, limits="secondly", throttle="wait", shared=False)
        def wait(index: int) -> None:
            self.done.append(index)

        @app.task(base=RateLimitedTask, limits=Concurrency(1, name="place"), shared=False)
        def occupy(index: int) -> None:
            time.sleep(0.2)
            self.done.append(index)

        self.charge, self.once, self.wait, self.occupy = charge, once, wait, occupy

    def worker(self, pool: str) -> Any:
        return start_worker(self.app, pool=pool, concurrency=2, perform_ping_check=False, loglevel="WARNING")


@pytest.fixture
def shop() -> Shop:
    return Shop()


@POOLS
def test_celerys_test_worker_starts_tasks_by_the_stopped_clock(shop: Shop, ratelimit_clock: Clock, pool: str) -> None:
    with shop.worker(pool):
        for index in (1, 2, 3):
            shop.wait.delay(index)
        until(lambda: shop.done == [1], 10)
        time.sleep(1.2)  # longer than the worker's timer for the next task
        assert shop.done == [1]
        ratelimit_clock.advance(1)
        until(lambda: shop.done == [1, 2], 10)


@pytest.mark.slow
@POOLS
def test_celerys_test_worker_starts_tasks_by_the_real_clock(shop: Shop, pool: str) -> None:
    """Its tracer names the machine in place of the worker: a task must find its permit all the same, and pay once."""
    began = time.monotonic()
    with shop.worker(pool):
        for index in range(3):
            shop.charge.delay(index)
        until(lambda: len(shop.done) == 3, 20)
    assert time.monotonic() - began > 1.8
    assert shop.done == [0, 1, 2]


@POOLS
def test_switches_for_tests_work_in_a_worker(shop: Shop, pool: str) -> None:
    with shop.worker(pool):
        with set_testing():
            for index in range(10):
                shop.charge.delay(index)
                shop.occupy.delay(100 + index)
            until(lambda: len(shop.done) == 20, 30)
            assert Limiter.from_url("memory://").client.keys("ratelimit:*") == []
        with throttle_all():
            failed = shop.once.delay(50)
            with pytest.raises(Exception, match="'secondly': a permit is free in 60"):
                failed.get(timeout=60)
        assert 50 not in shop.done


@pytest.mark.slow
def test_lease_from_before_a_switch_is_returned_under_it(shop: Shop) -> None:
    """Under ``throttle_all`` no call is granted, and a held lease is still returned."""
    limiter = Limiter.from_url("memory://")
    place = Concurrency(1, name="place")
    with shop.worker("threads"):
        shop.occupy.delay(1)
        until(lambda: not limiter.peek(place).allowed, 10)
        with throttle_all():
            until(lambda: shop.done == [1], 10)
            time.sleep(0.1)
        assert limiter.acquire(place).allowed


def test_worker_under_a_switch_needs_no_store(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[Exception] = []
    held: list[Any] = []
    monkeypatch.setattr(Outage, "begin", lambda _, error, __: lost.append(error))
    monkeypatch.setattr(LeaseKeeper, "begin", lambda _, __, demands, *___: held.extend(demands))
    shop.app.conf.ratelimit_url = "redis://localhost:1/0"
    with set_testing(), shop.worker("solo"):
        for index in (1, 2):
            shop.charge.delay(index)
            shop.occupy.delay(10 + index)
        until(lambda: sorted(shop.done) == [1, 2, 11, 12], 10)
    assert lost == held == []


# -- The page for users ------------------------------------------------------------------------------------------------


def test_examples_of_the_docs_run(tmp_path: Path) -> None:
    page = Path(__file__).parents[3].joinpath("docs", "testing.md").read_text()
    files = re.findall(r"```python\n(# (\w+\.py)\n.*?)```", page, re.DOTALL)
    assert {"conftest.py", "shop.py", "test_switches.py", "test_time.py", "test_tasks.py"} <= {
        name for _, name in files
    }
    assert page.count("```python") == len(files)
    for text, name in files:
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:celery"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    tests = sum(text.count("\ndef test_") for text, _ in files)
    assert f"{tests} passed" in done.stdout
