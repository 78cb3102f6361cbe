"""A limited task is also of the app's own task class."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, Task, shared_task

from celery_ratelimit import RateLimitedTask
from celery_ratelimit.task import RateLimitedMixin


class OnCommit(Task):
    """As ``celery.contrib.django.task.DjangoTask`` is; calls its ``super()`` as classes of users do."""

    abstract = True
    priority = 7

    def delay_on_commit(self, *args: Any) -> tuple[str, tuple[Any, ...]]:
        return self.name, args

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        steps.append("before_start")
        super().before_start(task_id, args, kwargs)


steps: list[str] = []


class Alone(Task):
    """Objects of it are laid out as those of no other class."""

    abstract = True
    __slots__ = ("place",)


@pytest.fixture(params=[OnCommit, f"{__name__}:OnCommit"], ids=["class", "by name"])
def app(request: pytest.FixtureRequest) -> Iterator[Celery]:
    app = Celery("shop", broker="memory://", task_cls=request.param, set_as_current=True)
    app.conf.update(ratelimit_url="memory://", task_always_eager=True)
    yield app
    app.close()


def test_limited_task_inherits_the_apps_task_class(app: Celery, request: pytest.FixtureRequest) -> None:
    @app.task(base=RateLimitedTask, limits="5/s")
    def charge(order: int) -> int:
        return order

    @shared_task(base=RateLimitedTask, limits="5/s", name=request.node.name)  # it stays for ever
    def refund(order: int) -> int:
        return order

    class Ours(RateLimitedTask):
        abstract = True
        limits = "7/s"

    @app.task(base=Ours)
    def settle(order: int) -> int: ...

    assert settle.delay_on_commit() == (settle.name, ())
    assert settle.limits == "7/s"
    assert Ours.__bases__ == (RateLimitedTask,), "what users write stays as it is"
    for task in (charge, refund):
        assert task.delay_on_commit(1) == (task.name, (1,))
        assert isinstance(task, RateLimitedTask)
        assert (task.limits, task.priority) == ("5/s", 7)
        names = [each.__name__ for each in type(task._get_current_object()).__mro__[1:]]
        assert names == ["RateLimitedTask", "RateLimitedMixin", "OnCommit", "Task", "object"]
        steps.clear()
        assert task.delay(3).get() == 3
        assert steps == ["before_start"]
        assert pickle.loads(pickle.dumps(task._get_current_object())).name == task.name


def test_base_of_the_apps_task_class_is_unchanged(app: Celery) -> None:
    class Mixed(RateLimitedMixin, OnCommit):
        abstract = True

    class Both(RateLimitedTask, OnCommit):
        abstract = True

    for base in (Mixed, Both):

        def body() -> None: ...

        task = app.task(body, name=base.__name__, base=base)._get_current_object()
        assert type(task).__bases__ == (base,)
        assert task.delay_on_commit() == (base.__name__, ())


def test_each_app_has_its_own_task_class(app: Celery) -> None:
    name = f"shop.of.both.{id(app)}"

    @shared_task(base=RateLimitedTask, limits="5/s", name=name)
    def refund(order: int) -> int:
        return order

    plain = Celery("plain", broker="memory://", set_as_current=False)
    assert not hasattr(plain.tasks[name], "delay_on_commit")
    assert type(plain.tasks[name]).__bases__ == (RateLimitedTask,)
    assert app.tasks[name].delay_on_commit() == (name, ())
    assert not hasattr(RateLimitedTask, "delay_on_commit")
    assert RateLimitedTask.__bases__ == (RateLimitedMixin, Task)


def test_incompatible_task_class_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    app = Celery("shop", broker="memory://", task_cls=Alone, set_as_current=False)

    with caplog.at_level(logging.WARNING, "celery_ratelimit"):

        @app.task(base=RateLimitedTask, limits="5/s", name="alone")
        def charge() -> None: ...

        assert charge.limits == "5/s"
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("Task alone is not of the app's task class")
    assert "class MyTask(celery_ratelimit.RateLimitedMixin, Alone)" in said
