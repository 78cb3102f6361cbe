"""Bad settings: the worker does not start, and says which value and what to do, without a traceback."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_ratelimit._celery import broker_fingerprint
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, until


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ({"ratelimit_tasks": {"*.plain": "10 a second"}}, ["ratelimit_tasks['*.plain']", "'10 a second'", '"100/s"']),
        ({"ratelimit_quota": {}}, ["'ratelimit_quota'", "did you mean 'ratelimit_quotas'"]),
        ({"ratelimit_tasks": {"*.plain": {"rate": "1/s", "key": "t:{tenant}"}}}, ["'tenant'", "fleet.plain", "index"]),
        ({"ratelimit_quotas": {"emails": "1/s"}, "ratelimit_queues": {"emails": "2/s"}}, ["'emails'", "1/s", "2/s"]),
        ({"ratelimit_url": "amqp://guest:secret@localhost//"}, ["ratelimit_url", "'redis://host:6379/0'"]),
        (
            {"ratelimit_url": "redis://:secret@127.0.0.1:1/0", "ratelimit_on_store_error": "raise"},
            ["ratelimit_url", "no Redis", "refused"],
        ),
    ],
    ids=["rate", "setting", "key", "name", "not redis", "unreachable"],
)
def test_worker_with_an_invalid_setting_does_not_start_and_names_it(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, conf: dict[str, Any], says: list[str]
) -> None:
    with Fleet(server, tmp_path, install=True, **conf) as fleet:
        worker = fleet.launch()
        assert worker.wait(timeout=120) != 0
        log = fleet.log()
        for text in says:
            assert text in log, log
        assert "secret" not in log
        assert "Traceback" not in log


def test_server_that_is_no_redis_is_refused_as_a_store(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    """Something listens there, but does not speak the protocol."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                client.recv(100)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    threading.Thread(target=answer, daemon=True).start()
    url = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
    with Fleet(server, tmp_path, ratelimit_url=url) as fleet:
        assert fleet.launch().wait(timeout=120) != 0
        assert "no Redis or Valkey" in fleet.log()
        assert "Traceback" not in fleet.log()
    listener.close()


@pytest.mark.parametrize("choice", ["defer", "allow", "local"])
def test_store_that_is_down_when_a_worker_starts_is_an_outage(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, choice: str
) -> None:
    """Unlimited work goes on, limited work as ``ratelimit_on_store_error`` says; all is well when the store comes."""
    limits = EmbeddedServer()
    with (
        contextlib.closing(limits),
        Fleet(server, tmp_path, ratelimit_url=limits.url, ratelimit_on_store_error=choice, rate="20/s") as fleet,
    ):
        for index in range(5):
            fleet.send("retry", index)
        fleet.start()
        assert fleet.send("plain", 100).get(timeout=20) == 100
        if choice != "defer":  # the store being down, their own limits let them through, or nothing does
            fleet.wait_for(6, 20)
        assert not fleet.permits()
        limits.start()
        until(lambda: "store is back" in fleet.log(), 20, "the store being found")
        for index in range(5, 10):
            fleet.send("retry", index)
        starts = fleet.wait_for(11, 40)
        assert sorted(start.index for start in starts) == [*range(10), 100]
        assert fleet.permits(), "from the store, once it is there"
        assert "Traceback" not in fleet.log()
        assert fleet.log().count("no Redis or Valkey answers there") == 1


def test_overflow_queue_without_a_worker_is_a_warning(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    with Fleet(server, tmp_path) as fleet:
        fleet.start("-Q", "celery")
        assert "overflow='later' is no queue that is known here" in fleet.log()
        fleet.start("-Q", "later")
        until(
            lambda: store.zscore("ratelimit:v1:{fleet}::queues@" + broker_fingerprint(fleet.sender), "later"),
            20,
            "attendance",
        )
        fleet.start("-Q", "celery")
        assert "overflow='later'" not in fleet.log(2)


def test_limit_declared_differently_by_another_app_is_a_warning(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    """The two share its bucket. An app that starts again with the same limit says nothing."""

    def warnings_of(rate: str, directory: str) -> list[str]:
        path = tmp_path / directory
        path.mkdir()
        with Fleet(server, path, rate=rate) as fleet:
            fleet.start()
            return [line for line in fleet.log().splitlines() if "another ratelimit_prefix" in line]

    assert warnings_of("50/s", "first") == []
    assert warnings_of("50/s", "again") == []
    warnings = warnings_of("60/s", "other")
    assert any("limit 'tests.apps.fleet.retry' is 60/s here and was 50/s" in line for line in warnings)
    key = "ratelimit:v1:{fleet}::declared"
    assert 0 < store.ttl(key) <= 30 * 86_400
