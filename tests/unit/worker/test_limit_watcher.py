"""The watcher of stored limits polls without blocking the worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from celery_ratelimit import Limit
from celery_ratelimit.store_calls.store_calls import _reply_to
from celery_ratelimit.worker.limit_watcher import POLL_INTERVAL, LimitWatcher


class World:
    """A store with one stored value, a timer, and the order of their calls."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.waiting: Any = None
        self.during_read: Any = lambda: None
        self.stored = ""
        self.far: list[Any] | None = None  # calls to a distant store

    def call_after(self, seconds: float, callback: Any) -> Any:
        assert seconds >= POLL_INTERVAL
        self.steps.append("timer")
        self.waiting = callback
        return lambda: setattr(self, "waiting", None)

    def command(self, verb: str, *keys: str) -> list[str]:
        self.steps.append("read")
        self.during_read()
        return [self.stored] * len(keys)

    def fire(self) -> None:
        waiting, self.waiting = self.waiting, None
        waiting()

    def submit(self, call: Any, on_reply: Any) -> None:
        if self.far is None:
            on_reply(_reply_to(call))
        else:
            self.far.append((call, on_reply))


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def watcher(world: World) -> LimitWatcher:
    outage: Any = MagicMock(ask=lambda question, *_, **__: question(), read=lambda reply, *_, **__: reply())
    outage.__bool__.return_value = False
    worker: Any = SimpleNamespace(timers=world)
    asker: Any = SimpleNamespace(command=world.command, prefix="", is_cluster=False, drive=lambda _: None, core=None)
    store_calls: Any = world
    limits: Any = {"api": Limit("10/s", name="api")}
    return LimitWatcher(worker, asker, limits, outage, store_calls, lambda: False, lambda names: None, lambda: 1)


def test_next_poll_is_scheduled_after_the_reply(world: World, watcher: LimitWatcher) -> None:
    """Else a hanging store would leave no time to the loop."""
    watcher.watch()
    world.steps.clear()
    for _ in range(3):
        world.fire()
    assert world.steps == ["read", "timer"] * 3


def test_polling_continues_after_an_error(world: World, watcher: LimitWatcher) -> None:
    watcher.watch()
    world.during_read = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        world.fire()
    world.during_read = lambda: None
    world.fire()
    assert world.waiting is not None


def test_closing_during_a_poll_ends_polling(world: World, watcher: LimitWatcher) -> None:
    """A greenlet may close the watcher, and start it again."""
    watcher.watch()
    world.during_read = watcher.close
    world.fire()
    assert world.waiting is None
    world.during_read = lambda: None
    watcher.watch()
    assert world.waiting is not None


def test_poll_of_a_distant_store_does_not_block_the_loop(world: World, watcher: LimitWatcher) -> None:
    changed: list[set[str]] = []
    watcher._on_change = changed.append
    watcher.watch()
    sent = world.far = []
    world.steps.clear()
    world.fire()
    assert (world.steps, world.waiting) == ([], None), "the next poll follows the reply"
    question, done = sent.pop()
    world.stored = "20/s"
    done(_reply_to(question))
    assert (world.steps, changed) == (["read", "timer"], [{"api"}])
    world.fire()
    watcher.close()
    assert (len(sent), world.waiting) == (1, None)
    watcher.watch()  # the worker has reconnected: the earlier reply is ignored
    assert world.waiting is not None
