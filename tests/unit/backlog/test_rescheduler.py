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

    def __init__(self) -> None:
        self.limits = {"api": Limit("1/s", name="api")}
        self.said: list[Any] = []
        self.timers: list[Callable[[], None]] = []
        self.meanwhile: list[Callable[[], None]] = []
        worker: Any = SimpleNamespace(timers=self)
        parking: Any = SimpleNamespace(can_park=True, contents=self, register=self, wake=self.wake)
        limits: Any = self
        outage: Any = self
        self.rescheduler = Rescheduler(worker, parking, limits, outage)

    def call_after(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        self.timers.append(call)
        return lambda: self.timers.remove(call)

    def run(self) -> None:
        while self.timers:
            self.timers.pop(0)()

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


def test_wake_suspended_is_repeated_without_a_reply(world: World) -> None:
    world.meanwhile = [lost, lambda: None, lost]
    world.rescheduler.recall()
    world.run()
    assert world.said == ["occupied", "occupied", ("recall", "api", None), ("recall", "api", None)]


def test_wake_suspended_requested_during_a_call_follows_it(world: World) -> None:
    world.meanwhile = [lambda: None, world.rescheduler.recall]
    world.rescheduler.recall()
    world.run()
    assert world.said == ["occupied", ("recall", "api", None)] * 2


def test_change_during_a_call_is_sent_after_it(world: World) -> None:
    world.meanwhile = [lambda: world.rescheduler.has_another_code("api")]
    world.rescheduler.wake(["api"])
    world.run()
    assert world.said == [("wake", "api", 0), ("wake", "api", -1)]


def test_change_without_a_reply_is_repeated(world: World) -> None:
    world.meanwhile = [lost]
    world.rescheduler.has_another_code("api")
    world.run()
    assert world.said == [("wake", "api", -1)] * 2


def test_later_registered_limits_are_rescheduled(world: World) -> None:
    world.rescheduler.begin()
    world.run()
    assert world.said == ["occupied", ("wake", "api", 0), ("recall", "api", None)]
    world.said.clear()
    world.limits["later"] = Limit("1/s", name="later")
    world.rescheduler.begin()
    world.run()
    assert ("recall", "later", None) in world.said
    assert ("wake", "later", 0) in world.said
    world.said.clear()
    world.rescheduler.begin()
    world.run()
    assert world.said == []
