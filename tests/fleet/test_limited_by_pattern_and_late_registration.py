"""Limits by pattern, of Celery's own tasks and of tasks registered late: what is parked always returns."""

from __future__ import annotations

import time
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
import redis
from celery import chord, signature
from celery.canvas import chunks

from celery_ratelimit import Limit, Limiter
from celery_ratelimit.backlog.backlog import backlog_of
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import NewFleet, assert_never_over, until


def test_pattern_for_all_tasks_leaves_celerys_own_tasks_unlimited(new_fleet: NewFleet, store: redis.Redis) -> None:
    everything = {"ratelimit_tasks": {"*": "5/s"}}
    with new_fleet(install=True, **everything) as fleet:
        fleet.start()
        plain = signature("tests.apps.fleet.plain", app=fleet.sender)
        of_chunks = chunks(plain, [(index,) for index in range(20)], 5, app=fleet.sender).apply_async()
        parts = [plain.clone((index,)) for index in range(20, 26)]
        of_chord = chord(parts, app=fleet.sender)(signature("tests.apps.fleet.total", app=fleet.sender))
        assert [*chain.from_iterable(of_chunks.get(timeout=30))] == list(range(20))
        assert of_chord.get(timeout=30) == sum(range(20, 26))
        assert Counter(start.index for start in fleet.starts()) == dict.fromkeys(range(26), 1)
        assert_never_over(fleet.permits(), 5)
        assert not store.keys("ratelimit:*{celery.*")


def test_tasks_registered_after_worker_start_are_limited(new_fleet: NewFleet, limiter: Limiter) -> None:
    later = {"ratelimit_tasks": {"later.by_pattern": "5/s"}}
    with new_fleet(app="tests.apps.later", **later) as fleet:
        fleet.start("-P", "threads")
        replies = fleet.sender.control.broadcast("register", reply=True, timeout=10, limit=1)
        assert replies == [{"w0@test": {"ok": "registered"}}]
        fleet.send_each("later.by_pattern", range(8))
        fleet.send_each("later.by_itself", range(100, 108))
        fleet.wait_for_each([*range(8), *range(100, 108)], 30)
        log = fleet.log()
        assert "throttled by limit 'later.by_pattern'" in log
        assert "throttled by limit 'of its own'" in log
        for first in (0, 100):
            assert_never_over([permit for permit in fleet.permits() if first <= permit.index < first + 100], 5)

        # A changed rate reaches them, too.
        limiter.set_rate("of its own", "1/h", force=True)
        fleet.send_each("later.by_itself", range(200, 204))
        until(lambda: fleet.parked("of its own") >= 3, 10, "a backlog")
        limiter.set_rate("of its own", "50/s", force=True)
        fleet.wait_for(20, 20)

        odd = fleet.send("later.at_odds", 300)
        with pytest.raises(Exception, match="two different limits are called 'of its own'"):
            odd.get(timeout=10)


@pytest.mark.parametrize("throttle", ["retry", pytest.param("fail", marks=pytest.mark.slow)])
def test_chords_complete_although_chord_unlock_is_throttled(
    new_fleet: NewFleet, server: EmbeddedServer, tmp_path: Path, throttle: str
) -> None:
    """A backend that counts no parts needs ``celery.chord_unlock``, of which one may be parked here."""
    (tmp_path / "results").mkdir()
    conf = {
        "ratelimit_tasks": {"celery.chord_unlock": {"rate": "2/s", "max_parked": 1}},
        "task_annotations": {"celery.chord_unlock": {"throttle": throttle}},
    }
    with new_fleet(install=True, ratelimit_url=server.url, **conf) as fleet:
        fleet.env["TEST_BACKEND"] = fleet.sender.conf.result_backend = f"file://{tmp_path}/results"
        total, plain = (signature(f"tests.apps.fleet.{name}", app=fleet.sender) for name in ("total", "plain"))
        chords = [chord([plain.clone((index,))] * 2, app=fleet.sender)(total) for index in range(6)]
        fleet.start()
        assert [each.get(timeout=40) for each in chords] == [2 * index for index in range(6)]
        assert "celery.chord_unlock" in fleet.log()


def test_limited_calls_within_starmap_log_one_warning(new_fleet: NewFleet) -> None:
    """``chunks()`` and ``starmap()`` call a task as a function: no gate sees it."""
    with new_fleet(rate="1/h") as fleet:
        fleet.start()
        for name in ("retry", "plain"):
            called = signature(f"tests.apps.fleet.{name}", app=fleet.sender)
            for _ in range(2):
                result = chunks(called, [(index,) for index in range(6)], 3, app=fleet.sender).apply_async()
                assert [*chain.from_iterable(result.get(timeout=20))] == list(range(6))
        warnings = [line for line in fleet.log().splitlines() if "such calls are not throttled" in line]
        assert len(warnings) == 1
        assert "Task tests.apps.fleet.retry is limited, and is called within celery.starmap" in warnings[0]


@pytest.mark.slow
def test_backlog_of_a_queue_returns_although_the_worker_that_suspended_it_has_ended(new_fleet: NewFleet) -> None:
    """It sets aside once more what was called back, and is not there any more when it would call it back itself."""
    name = "tests.apps.fleet.retry"
    asked = LimitRequest(Limit("10/s", name=name), name)
    with new_fleet(rate="10/s", ratelimit_fleet="f") as fleet:
        fleet.start("-Q", "a")
        fleet.send_each("retry", range(150), queue="a")
        until(lambda: fleet.parked(name) > 100, 20, "a backlog")
        fleet.kill(0)
        parking = backlog_of(fleet.sender)
        attend = parking.register.attend
        until(lambda: "a" in attend("ends", ["b"], [], 6.0), 15, "the end of queue a being known")
        known = attend("ends", ["b"], [], 6.0)
        while (looked := parking.take_due([asked], absent=known)[0]).again == 0 or looked.leaving:
            time.sleep(0.05)
        before = fleet.started()
        fleet.launch("-Q", "a")
        until(lambda: "a" not in parking.register.attend("asks", ["c"], [], 0.1), 30, "a worker of queue a")
        ends = time.monotonic() + 1.0
        while time.monotonic() < ends:
            parking.take_due([asked], due=True, absent=known)
            time.sleep(0.01)
        until(lambda: fleet.started() >= before + 30, 20, "its tasks going on")
