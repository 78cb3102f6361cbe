"""``check --fleet``: runtimes, costs, pools, and URLs of one server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit import Limit
from celery_ratelimit._celery import Pool
from celery_ratelimit._celery.worker_display import pool_status
from celery_ratelimit.app.survey import Owned
from celery_ratelimit.counts.stats import Stats, User
from celery_ratelimit.operations.setup_checks import _cost, _server_of, _takes


def stats(*users: tuple[str, str, float], started: int = 0, permits: int = 0) -> Stats:
    results = {"acquired": started, "waited": 0}
    return Stats("slow", 0.0, results, permits, (), 0.0, users=tuple([User(*user) for user in users]))


def owned(*tasks: str, cost: Any = 1) -> Owned:
    return Owned(Limit("10/s", burst=10, cost=cost), list(tasks), [])


POOLS = {"w0": {"takes": {"a": 1.0, "other": 99.0}}, "w1": {"takes": {"a": 3.0, "b": 10.0}}}


@pytest.mark.parametrize(
    ("tasks", "users", "takes"),
    [
        (("a",), (), 2.0),  # of the workers that know
        (("a", "b"), (), 6.0),
        (("a", "b"), (("task", "a", 30.0), ("task", "b", 10.0)), 4.0),
        (("a", "b"), (("task", "a", 30.0), ("queue", "b", 10.0)), 2.0),
        (("a", "unknown"), (("task", "unknown", 30.0),), 2.0),
        (("unknown",), (("task", "unknown", 30.0),), None),
    ],
)
def test_mean_runtime_of_a_limit(tasks: tuple[str, ...], users: Any, takes: float | None) -> None:
    assert _takes(owned(*tasks), POOLS, stats(*users)) == takes


def test_mean_cost_of_a_call() -> None:
    assert _cost(owned(cost=3), stats(started=5, permits=50)) == 3
    assert _cost(owned(cost="size"), stats(started=5, permits=50)) == 10
    assert _cost(owned(cost="size"), stats()) == 1


@pytest.mark.parametrize(("is_green", "processes"), [(True, 100), (False, 3)])
def test_pool_status_of_a_worker(is_green: bool, processes: int) -> None:
    greenlets = SimpleNamespace(size=100)  # as of gevent and eventlet, once they have grown from ten
    pool = SimpleNamespace(is_green=is_green, limit=10, num_processes=3, _pool=greenlets)
    consumer = SimpleNamespace(pool=pool, task_consumer=SimpleNamespace(queues=[SimpleNamespace(name="celery")]))
    state = SimpleNamespace(consumer=consumer)
    assert pool_status(state) == {"processes": processes, "queues": ["celery"], "takes": {}}
    Pool(pool)._mean_runtimes.update({f"task {n}": float(n) for n in range(300)})
    takes = pool_status(state)["takes"]
    assert (len(takes), takes["task 299"], "task 0" in takes) == (200, 299.0, False), "the longest runtimes"
    consumer.task_consumer = None  # while Celery connects anew
    assert pool_status(state)["queues"] == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("redis://h:6379/0", "redis://user:secret@h/3", True),
        ("redis://h:6379/0", "redis://h:6380/0", False),
        ("redis://localhost", "redis:///1", True),
        ("unix:///run/a.sock", "redis+socket:///run/a.sock", True),
        ("redis://h/0", "amqp://h//", False),
        ("redis://h/0", None, False),
        ("redis://h:port/0", "redis://h/0", False),
    ],
)
def test_urls_of_the_same_server_are_recognized(one: str, other: Any, same: bool) -> None:
    assert (_server_of(one) == _server_of(other)) is same
