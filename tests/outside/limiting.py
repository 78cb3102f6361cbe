"""A pytest plugin: Celery's suite with :class:`LimitedTask`, and how many deliveries it met.

A suite that waits for each result would seldom find its limit closed. So somebody else has a hand in the quota: just
before a message meets the gate for the first time, another client takes the permit that may be there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from celery import Celery
from celery.signals import task_received

from celery_ratelimit import Limit, Limiter, RateLimitedTask
from celery_ratelimit.signals import task_throttled


class LimitedTask(RateLimitedTask):
    """All tasks of the suite share one quota, so that a chain's second step is too early as its first one ends."""

    limits: ClassVar[Limit] = Limit("25/s", name="suite")
    #: A task that is a little too early is sent back, too.
    inline_wait = 0.0


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Deliveries(), "celery-suite-deliveries")


@pytest.fixture(scope="session")
def celery_parameters() -> dict[str, Any]:
    return {"task_cls": f"{LimitedTask.__module__}:{LimitedTask.__name__}"}


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """The suite's fixture of each test refuses every queue but ``celery``: ours does the same and allows one more."""
    for item in items:
        names = item.fixturenames
        if "ZZZZ_set_app_current" in names:
            names[names.index("ZZZZ_set_app_current")] = "set_app_current"


@pytest.fixture
def set_app_current(app: Celery, celery_session_app: Celery) -> Iterator[None]:
    app.set_current()
    app.set_default()
    yield
    for each in (app, celery_session_app):
        assert set(each.amqp.queues) - {"celery.throttled"} == {"celery"}


class Deliveries:
    """Tasks by id and retry that a worker of this process has received, and those of them that were throttled."""

    def __init__(self) -> None:
        self.received: set[tuple[str, int]] = set()
        self.throttled: set[tuple[str, int]] = set()
        self.somebody_else = Limiter.from_url(os.environ["TEST_BROKER"])
        task_received.connect(self._note_received)
        task_throttled.connect(self._note_throttled)

    def _note_received(self, request: Any, **_: Any) -> None:
        if isinstance(request.task, LimitedTask) and _identity(request) not in self.received:
            self.received.add(_identity(request))
            self.somebody_else.acquire(LimitedTask.limits)

    def _note_throttled(self, request: Any, **_: Any) -> None:
        self.throttled.add(_identity(request))

    def counts(self) -> dict[str, int]:
        return {"received": len(self.received), "throttled": len(self.received & self.throttled)}


def _identity(request: Any) -> tuple[str, int]:
    return request.id, request.request_dict.get("retries") or 0
