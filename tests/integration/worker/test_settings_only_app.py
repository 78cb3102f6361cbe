"""Settings alone are enough: the gate is in workers of an app that imports nothing of the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, run_celery, until


def test_app_that_imports_nothing_of_the_package_has_its_limits(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    conf: dict[str, Any] = {
        "ratelimit_tasks": {"bare.*": "1/h", "bear.*": "1/h"},
        "ratelimit_queues": {"emails": "5/s"},
    }
    with Fleet(server, tmp_path, app="tests.apps.bare", **conf) as fleet:
        results = [fleet.sender.send_task("bare.plain", (index,)) for index in range(2)]
        fleet.start("-Q", "celery,emails")
        done = [results[0].get(timeout=20)]
        assert len(done) == 1
        until(lambda: f"{results[1].id}] throttled by limit 'bare.plain'" in fleet.log(), 10, "a word in the log")
        log = fleet.log()
        banner = log[log.index("[limits]") : log.index(" ready.")]
        assert "bare.plain: 1/h (task bare.plain)" in banner
        assert "emails: 5/s (queue emails)" in banner
        assert "ratelimit_tasks['bear.*'] matches none of this worker's tasks" in log
        assert "task 'bare.limited' has limits='1/h' and is no RateLimitedTask" in log


@pytest.mark.parametrize(
    ("conf", "code", "says"),
    [
        (None, 0, "No limits are declared or stored.\n"),
        ({"ratelimit_queues": {"emails": "5/s"}}, 0, "emails: 5/s (queue emails)"),
        ({"ratelimit_tasks": {"bear.*": "5/s"}}, 0, "Warning: ratelimit_tasks['bear.*'] matches none"),
        ({"ratelimit_quees": {}}, 1, "Error: there is no setting 'ratelimit_quees': did you mean 'ratelimit_queues'?"),
        ({"ratelimit_url": "redis://host:port/0"}, 1, "Error: ratelimit_url='redis://…': 'redis://…' is not the URL"),
        ({"ratelimit_url": "redis://host/0?socket_timeot=1"}, 1, "did you mean 'socket_timeout'"),
        ({"ratelimit_url": "redis+cluster://127.0.0.1:1"}, 0, "bare.limited: 1/h"),
        ({"ratelimit_observers": ["no_module:no"]}, 1, "Error: ratelimit_observers: 'no_module:no' is not to be had"),
    ],
)
def test_check_of_settings_needs_no_store(tmp_path: Path, conf: dict[str, Any] | None, code: int, says: str) -> None:
    """Without limits a worker starts on whatever broker."""
    name = "tests.apps.bare" if conf is not None else "tests.apps.unlimited"
    env = {"TEST_BROKER": "redis://127.0.0.1:1/0", "TEST_BACKEND": "", "TEST_CONF": json.dumps(conf or {})}
    ended, printed = run_celery(tmp_path, env, "-A", name, "ratelimit", "check")
    assert ended == code, printed
    assert says in printed
