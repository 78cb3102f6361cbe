"""Rescheduled limits survive lost replies and changes during a call."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit import Limit, StoreUnavailable
from celery_ratelimit.backlog.poll_timer import Rescheduler


class World:
    """A store in which something happens while it is asked, and a worker whose timers go off one by one."""

    can_park = True

    def __init__(self) -> None:
        self.limits = {"api": Limit("1/s", name="api")}
        self.said: list[Any] = []
        self.timers: list[Callable[[], None]] = []
        self.meanwhile: list[Callable[[], None]] = []
        self.contents = self.register = self
        worker: Any = SimpleNamespace(timers=self)
        every_part: Any = self
        self.rescheduler = Rescheduler(worker, every_part, every_part, every_part)

    def call_after(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        self.timers.append(call)
        return lambda: self.timers.remove(call)

    def run(self) -> list[Any]:
        """Let all timers go off. Returns what the store was told."""
        self.said = []
        while self.timers:
            self.timers.pop(0)()
        return self.said

    # -- The store -------------------------------------------------------------------------------------------------

    def _answer(self, said: Any) -> None:
        self.said.append(said)
        if self.meanwhile:
            self.meanwhile.pop(0)()

    def counts(self, names: Any) -> list[str]:
        self._answer("occupied")
        return list(names)

    def recall(self, name: str, after: str | None, offset: int) -> tuple[str | None, int]:
        self._answer(("recall", name, after))
        return None, 0

    def wake(self, demand: Any, since: int) -> tuple[int, bool]:
        self._answer(("wake", demand.name, since))
        return 5, False

    # -- The limits, and the outage --------------------------------------------------------------------------------

    names = property(lambda self: sorted(self.limits))

    def __len__(self) -> int:
        return len(self.limits)

    def __getitem__(self, name: str) -> Limit:
        return self.limits[name]

    def __contains__(self, name: str) -> bool:
        return name in self.limits

    def __bool__(self) -> bool:
        return False

    def ask(self, question: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return question()
        except StoreUnavailable:
            return otherwise


@pytest.fixture
def world() -> World:
    return World()


def lost() -> None:
    raise StoreUnavailable("no answer")


RECALL, WAKE, WAKE_OTHER_CODE = ("recall", "api", None), ("wake", "api", 0), ("wake", "api", -1)


def test_wake_suspended_is_repeated_without_a_reply(world: World) -> None:
    world.meanwhile = [lost, lambda: None, lost]
    world.rescheduler.recall()
    assert world.run() == ["occupied", "occupied", RECALL, RECALL]


def test_wake_suspended_requested_during_a_call_follows_it(world: World) -> None:
    world.meanwhile = [lambda: None, world.rescheduler.recall]
    world.rescheduler.recall()
    assert world.run() == ["occupied", RECALL] * 2


def test_change_during_a_call_is_sent_after_it(world: World) -> None:
    world.meanwhile = [lambda: world.rescheduler.has_another_code("api")]
    world.rescheduler.wake(["api"])
    assert world.run() == [WAKE, WAKE_OTHER_CODE]


def test_change_without_a_reply_is_repeated(world: World) -> None:
    world.meanwhile = [lost]
    world.rescheduler.has_another_code("api")
    assert world.run() == [WAKE_OTHER_CODE] * 2


def test_later_registered_limits_are_rescheduled(world: World) -> None:
    world.rescheduler.begin()
    assert world.run() == ["occupied", WAKE, RECALL]
    world.limits["later"] = Limit("1/s", name="later")
    world.rescheduler.begin()
    assert {("recall", "later", None), ("wake", "later", 0)} <= {*world.run()}
    world.rescheduler.begin()
    assert world.run() == []
